package escapement_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// Faults of a Step are told before anything is called or saved.
func TestFaultySteps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		p := newProvider(true)
		stepless := r.another(escapement.Options{Records: struct{ idempotency.Store }{r.store}})
		ended, cancel := context.WithCancelCause(context.Background())
		cancel(errDied)
		long := strings.Repeat("x", idempotency.MaxStepName+1)
		for name, c := range map[string]struct {
			gate *escapement.Gate
			edit func(*escapement.Request)
			step func(ctx context.Context, a *escapement.Run) error
			says string
		}{
			"no store of steps": {gate: stepless, says: "StepStore"},
			"no name": {says: "name", step: func(ctx context.Context, a *escapement.Run) error {
				_, err := a.Step(ctx, "", p.call, p.options())
				return err
			}},
			"a long name": {says: "name", step: func(ctx context.Context, a *escapement.Run) error {
				_, err := a.Step(ctx, long, p.call, p.options())
				return err
			}},
			"no call": {says: "no call", step: func(ctx context.Context, a *escapement.Run) error {
				_, err := a.Step(ctx, "pay", nil, p.options())
				return err
			}},
			"a negative time": {says: "KeysFor", step: func(ctx context.Context, a *escapement.Run) error {
				_, err := a.Step(ctx, "pay", p.call, escapement.StepOptions{KeysFor: -1})
				return err
			}},
			"a status without a quiet time": {
				says: "quiet", edit: func(q *escapement.Request) { q.Policy.Terms.Quiet-- },
				step: func(ctx context.Context, a *escapement.Run) error {
					_, err := a.Step(ctx, "pay", p.call, escapement.StepOptions{Status: p.status})
					return err
				},
			},
			"another context": {says: "no key", step: func(context.Context, *escapement.Run) error {
				_, err := escapement.Step(context.Background(), "pay", p.call, p.options())
				return err
			}},
			"a context that has ended": {says: errDied.Error(), step: func(_ context.Context, a *escapement.Run) error {
				_, err := a.Step(ended, "pay", p.call, p.options())
				return err
			}},
			"no key": {says: "no key", edit: func(q *escapement.Request) { q.Key = idempotency.Key{} }},
		} {
			req := probing(1)
			if c.edit != nil {
				c.edit(&req)
			}
			if c.gate == nil {
				c.gate = r.gate
			}
			v, err := c.gate.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
				step := c.step
				if step == nil {
					step = func(ctx context.Context, a *escapement.Run) error {
						_, err := a.Step(ctx, "pay", p.call, p.options())
						return err
					}
				}
				err := step(ctx, a)
				if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, escapement.ErrStepUnknown) || errors.Is(err, escapement.ErrRecords) {
					t.Errorf("%s: %v", name, err)
				}
				return idempotency.NotRun()
			})
			if err != nil || !v.Ran {
				t.Errorf("%s: %+v, %v", name, v, err)
			}
			r.wantStatus(key(1), idempotency.StatusFree) // so no step was saved
		}
		p.want(t, 0, 0)
	})
}

// A record has room for so many steps; the next one is not called.
func TestStepOneTooMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		p := newProvider(true)
		for range 2 { // a later attempt finds them all
			_, err := r.gate.Do(t.Context(), probing(1), func(ctx context.Context, a *escapement.Run) idempotency.Ending {
				for i := range idempotency.MaxSteps {
					if _, err := a.Step(ctx, strconv.Itoa(i), p.call, p.options()); err != nil {
						t.Fatal(err)
					}
				}
				saves := r.net.count("step")
				_, err := a.Step(ctx, "one more", p.call, p.options())
				if err == nil || !strings.Contains(err.Error(), "one too many") || r.net.count("step") != saves {
					t.Error(err)
				}
				return idempotency.UnknownEnding()
			})
			if err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
		}
		if effects, keys := p.count(); effects != idempotency.MaxSteps || keys != idempotency.MaxSteps {
			t.Errorf("%d effects with %d keys", effects, keys)
		}
	})
}

// A step is done though its answer cannot be kept; all attempts see the same.
func TestStepTooLargeToKeep(t *testing.T) {
	for _, c := range []struct {
		name string
		res  escapement.StepResult
		id   int
		size int
	}{
		{"as large as can be", escapement.StepResult{ID: strings.Repeat("i", idempotency.MaxStepID), Answer: make([]byte, idempotency.MaxStepAnswer)}, idempotency.MaxStepID, idempotency.MaxStepAnswer},
		{"the answer", escapement.StepResult{ID: "id", Answer: make([]byte, idempotency.MaxStepAnswer+1)}, 2, 0},
		{"the id", escapement.StepResult{ID: strings.Repeat("i", idempotency.MaxStepID+1), Answer: []byte("answer")}, 0, 6},
	} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, escapement.Options{})
			calls := 0
			for range 2 {
				v, err := r.gate.Do(t.Context(), probing(1), func(ctx context.Context, a *escapement.Run) idempotency.Ending {
					s, err := a.Step(ctx, "pay", func(context.Context, string) (escapement.StepResult, error) {
						calls++
						return c.res, nil
					}, escapement.StepOptions{})
					if err != nil || !s.Done || len(s.ProviderID) != c.id || len(s.Answer) != c.size {
						t.Errorf("%s: an id of %d bytes, an answer of %d, %v", c.name, len(s.ProviderID), len(s.Answer), err)
					}
					return idempotency.UnknownEnding()
				})
				if err != nil || !v.Recorded {
					t.Fatalf("%+v, %v", v, err)
				}
				pass(time.Minute)
			}
			if calls != 1 {
				t.Errorf("%s: called %d times", c.name, calls)
			}
		})
	}
}

// stepTx is a txStore that keeps steps.
type stepTx struct{ *txStore }

func (s stepTx) SaveStep(ctx context.Context, r idempotency.Reservation, st idempotency.Step) error {
	t, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer t.commit()
	rec, err := idempotency.PutStep(t.rec, r, st, now())
	t.rec = rec
	return err
}

// While a transaction of the operation's own holds the record, no step is
// called, and the error says why; before it and after its rollback, one is.
func TestStepAndTransaction(t *testing.T) {
	for _, committed := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, escapement.Options{})
			s := newTxStore()
			p := newProvider(true)
			g := r.another(escapement.Options{Records: stepTx{s}})
			req := probing(1)
			v, err := g.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
				if _, err := a.Step(ctx, "pay", p.call, p.options()); err != nil {
					t.Error(err)
				}
				x, err := s.begin(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if err := a.FenceIn(ctx, x); err != nil {
					t.Error(err)
				}
				start := time.Now()
				if _, err := a.Step(ctx, "tell", p.call, p.options()); !errors.Is(err, escapement.ErrRecords) || !strings.Contains(err.Error(), "FenceIn") {
					t.Error(err)
				}
				within(t, "the refusal", time.Since(start), 0, 5*time.Second)
				if d, err := a.Step(ctx, "pay", p.call, p.options()); err != nil || !d.Done {
					t.Errorf("what is done: %+v, %v", d, err)
				}
				if err := a.EndIn(ctx, x, created); err != nil {
					t.Error(err)
				}
				if committed {
					x.commit()
					if _, err := a.Step(ctx, "tell", p.call, p.options()); !errors.Is(err, idempotency.ErrFenced) {
						t.Errorf("after the end: %v", err)
					}
				} else {
					x.rollback()
					if _, err := a.Step(ctx, "give back", p.call, p.options()); err != nil {
						t.Errorf("after the rollback: %v", err)
					}
				}
				return idempotency.UnknownEnding()
			})
			want := map[bool]idempotency.EndingKind{true: idempotency.EndedDone, false: idempotency.EndedNotRun}[committed]
			if err != nil || !v.Recorded || v.Ending.Kind != want {
				t.Fatalf("%+v, %v", v, err)
			}
			pass(time.Minute)
			rec := s.read()
			if committed == (rec.State == idempotency.Held) || len(rec.Steps) == 0 || !rec.Steps[0].Done {
				t.Errorf("%+v", rec)
			}
		})
	}
}

// A call that panics leaves the step started, and its name free for the next.
func TestStepWhoseCallPanics(t *testing.T) {
	both(t, func(t *testing.T, p *provider) {
		r := newRig(t, escapement.Options{})
		v, err := r.gate.Do(t.Context(), probing(1), func(ctx context.Context, a *escapement.Run) idempotency.Ending {
			func() {
				defer func() {
					if recover() != errDied {
						t.Error("the panic was kept")
					}
				}()
				_, _ = a.Step(ctx, "pay", func(ctx context.Context, key string) (escapement.StepResult, error) {
					_, _ = p.call(ctx, key)
					panic(errDied)
				}, p.options())
			}()
			_, err := a.Step(ctx, "pay", p.call, p.options())
			if errors.Is(err, escapement.ErrStepUnknown) == p.knows || (err == nil) != p.knows {
				t.Error(err)
			}
			return escapement.EndingOf(err)
		})
		if err != nil || !v.Recorded {
			t.Fatalf("%+v, %v", v, err)
		}
		if effects, _ := p.count(); effects != 1 {
			t.Errorf("%d effects", effects)
		}
	})
}

// What an observer and the log are told of steps has neither ids nor answers.
func TestStepsAreObserved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var out bytes.Buffer
		r := newRig(t, escapement.Options{Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		p := newProvider(false)
		r.net.set(func(op string, n int) fault {
			if op == "step" && n > 0 {
				return fault{before: errAway}
			}
			return fault{}
		})
		for range 2 {
			if _, err := r.gate.Do(t.Context(), probing(1), func(ctx context.Context, a *escapement.Run) idempotency.Ending {
				p.pay(ctx, a)
				return idempotency.UnknownEnding()
			}); err != nil {
				t.Fatal(err)
			}
			r.net.set(nil)
			pass(time.Minute)
		}
		var got []string
		for _, kind := range []escapement.EventKind{escapement.StepSaved, escapement.StepCalled, escapement.StepAsked} {
			for _, e := range r.events.of(kind) {
				if e.Key != key(1) || e.RequestID != "request" {
					t.Errorf("%+v", e)
				}
				got = append(got, fmt.Sprintf("%v %s %v %v %v", e.Kind, e.Step, e.StepDone, e.StepStatus, e.Err != nil))
			}
		}
		want := "step_saved pay false unclear false;" + strings.Repeat("step_saved pay true unclear true;", 4) +
			"step_saved pay true unclear false;step_called pay false unclear false;step_asked pay false found false"
		if all := strings.Join(got, ";"); all != want {
			t.Errorf("events:\n%s\nwant\n%s", all, want)
		}
		if log := out.String(); !strings.Contains(log, "step=pay") || strings.Contains(log, "ch_") || strings.Contains(log, "paid") {
			t.Errorf("the log:\n%s", log)
		}
	})
}

// sqlError is an error as drivers of databases have it.
type sqlError string

func (e sqlError) Error() string    { return "ERROR: " + string(e) }
func (e sqlError) SQLState() string { return string(e) }

func TestEndingOf(t *testing.T) {
	wrap := func(errs ...error) error { return fmt.Errorf("the order: %w", errors.Join(errs...)) }
	retryable := idempotency.Done(idempotency.Result{Class: idempotency.FailedRetryable, Status: 503})
	for _, c := range []struct {
		err  error
		want idempotency.Ending
	}{
		{nil, idempotency.UnknownEnding()},
		{errAway, idempotency.UnknownEnding()},
		{wrap(escapement.ErrStepUnknown), idempotency.UnknownEnding()},
		{wrap(escapement.ErrRecords), idempotency.UnknownEnding()},
		{wrap(idempotency.ErrFenced), idempotency.UnknownEnding()},
		{wrap(escapement.ErrNotExecuted), idempotency.NotRun()},
		{wrap(escapement.ErrNotExecuted, escapement.ErrStepUnknown), idempotency.UnknownEnding()},
		{wrap(sqlError("40001")), retryable},
		{wrap(errAway, sqlError("40P01")), retryable},
		{wrap(sqlError("40001"), escapement.ErrStepUnknown), idempotency.UnknownEnding()},
		{wrap(sqlError("40003")), idempotency.UnknownEnding()}, // statement_completion_unknown
		{wrap(sqlError("23505")), idempotency.UnknownEnding()},
	} {
		got := escapement.EndingOf(c.err)
		if got.Kind != c.want.Kind || !got.Result.Equal(c.want.Result) || got.Validate() != nil {
			t.Errorf("%v: %+v, want %+v", c.err, got, c.want)
		}
	}
}

// P2, P3: operations of three steps, over a network that loses and delays, on
// nodes that die at any moment: each provider does each step once, whoever asks.
func TestP3RandomCrashes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("ESCAPEMENT_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	rounds := 150
	if os.Getenv("ESCAPEMENT_SOAK") != "" {
		rounds = 20_000
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("ESCAPEMENT_SEED=%d", seed)
		}
	})
	var crashes atomic.Int32
	both(t, func(t *testing.T, p *provider) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		var mu sync.Mutex
		roll := func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return rnd.IntN(n)
		}
		span := func(d time.Duration) time.Duration { return time.Duration(roll(int(d))) }
		for round := range rounds {
			r := newRig(t, escapement.Options{})
			p.effects, p.calls, p.asked = map[string]int{}, nil, 0
			req := probing(1)
			for attempt := 0; ; attempt++ {
				if attempt == 50 {
					t.Fatalf("round %d: not done after 50 attempts", round)
				}
				// A node of its own for each attempt, with a network of its own.
				net := &faulty{Store: r.store}
				dies := int32(roll(24)) // at so many events of it; or it lives
				var events atomic.Int32
				event := func() bool { return events.Add(1) > dies }
				net.set(func(op string, _ int) fault {
					if event() {
						crashes.Add(1)
						return fault{before: errAway}
					}
					switch d := span(8 * time.Second); roll(12) {
					case 0:
						return fault{late: d}
					case 1:
						return fault{slow: d}
					case 2:
						return fault{after: errAway}
					case 3:
						return fault{before: errAway}
					}
					return fault{}
				})
				call := func(ctx context.Context, key string) (escapement.StepResult, error) {
					if event() {
						panic(errDied)
					}
					res, err := p.call(ctx, key)
					if event() {
						panic(errDied)
					}
					switch roll(8) {
					case 0:
						return escapement.StepResult{}, errAway
					case 1:
						<-time.After(span(70 * time.Second))
					}
					return res, err
				}
				v, err := r.another(escapement.Options{Records: net}).Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
					var all string
					for _, name := range []string{"one", "two", "three"} {
						s, err := escapement.Step(ctx, name, call, p.options())
						if err != nil {
							return escapement.EndingOf(err)
						}
						all += s.ProviderID + " "
					}
					return idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: []byte(all)})
				})
				switch {
				case err != nil && !errors.Is(err, escapement.ErrRecords):
					t.Fatalf("round %d: %v", round, err)
				case err == nil && v.Outcome == escapement.Unknown:
					t.Fatalf("round %d: held as unknown", round)
				}
				pass(span(2 * time.Minute))
				if rec, ok := r.record(req.Key); ok && rec.State == idempotency.Ended {
					want := ""
					for _, name := range []string{"one", "two", "three"} {
						want += "ch_" + idempotency.StepKey(req.Key, name) + " "
					}
					if string(rec.Result.Payload) != want {
						t.Errorf("round %d: %q", round, rec.Result.Payload)
					}
					break
				}
			}
			if effects, keys := p.count(); effects != 3 || keys != 3 {
				t.Fatalf("round %d: %d effects with %d keys", round, effects, keys)
			}
		}
	})
	if crashes.Load() < int32(rounds/2) {
		t.Errorf("only %d crashes: the faults do not bite", crashes.Load())
	}
}
