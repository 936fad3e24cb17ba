package escapement_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/memstore"
)

// provider is somebody else's system, which counts what it is told to do.
type provider struct {
	mu      sync.Mutex
	knows   bool           // keys
	effects map[string]int // by key
	calls   []string       // the keys, in order
	asked   int
	key     string        // of the call that a test makes itself
	fails   error         // after the effect
	takes   time.Duration // before the effect
}

func newProvider(knowsKeys bool) *provider {
	return &provider{knows: knowsKeys, effects: map[string]int{}}
}

func (p *provider) call(_ context.Context, key string) (escapement.StepResult, error) {
	p.mu.Lock()
	p.calls = append(p.calls, key)
	takes := p.takes
	p.mu.Unlock()
	if takes > 0 {
		<-time.After(takes)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.effects[key] == 0 || !p.knows {
		p.effects[key]++
	}
	return escapement.StepResult{ID: "ch_" + key, Answer: []byte("paid")}, p.fails
}

func (p *provider) status(_ context.Context, key string) (escapement.StepResult, escapement.StepStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.effects[key] == 0 {
		return escapement.StepResult{}, escapement.StepAbsent, nil
	}
	return escapement.StepResult{ID: "ch_" + key, Answer: []byte("paid")}, escapement.StepFound, nil
}

func (p *provider) options() escapement.StepOptions {
	if p.knows {
		return escapement.StepOptions{KeysFor: 23 * time.Hour}
	}
	return escapement.StepOptions{Status: p.status}
}

// count returns how many effects there were, and of how many keys.
func (p *provider) count() (effects, keys int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.effects {
		effects += n
	}
	return effects, len(p.effects)
}

func (p *provider) want(t *testing.T, effects, calls int) {
	t.Helper()
	got, keys := p.count()
	if got != effects || keys > 1 || len(p.calls) != calls {
		t.Errorf("%d effects with %d keys in %d calls, want %d in %d", got, keys, len(p.calls), effects, calls)
	}
}

// probing are terms with which steps continue.
func probing(n uint64) escapement.Request {
	r := request(n)
	r.Policy.Terms.OnUnknown = idempotency.Probe
	return r
}

// pay is an operation of one step.
func (p *provider) pay(ctx context.Context, a *escapement.Run) idempotency.Ending {
	s, err := a.Step(ctx, "pay", p.call, p.options())
	if err != nil {
		return escapement.EndingOf(err)
	}
	return idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: []byte(s.ProviderID + " " + string(s.Answer))})
}

// both runs f with a provider that knows keys and with one that can be asked.
func both(t *testing.T, f func(t *testing.T, p *provider)) {
	t.Helper()
	for _, knows := range []bool{true, false} {
		t.Run(map[bool]string{true: "keys", false: "status"}[knows], func(t *testing.T) {
			bubble(t, func(t *testing.T) { f(t, newProvider(knows)) })
		})
	}
}

// errDied is what an attempt panics with whose node dies.
var errDied = errors.New("the node died")

// P2: an attempt's node dies at every point of a step; the next attempt ends
// the operation, and the provider has done it once.
func TestP2CrashAtEveryPointOfAStep(t *testing.T) {
	type crash struct {
		name    string
		step    func(n int) (f fault, die bool) // at the n-th SaveStep
		call    func(p *provider) (escapement.StepResult, error)
		effects int // of the attempt that died
		calls   int // in the end
	}
	dead := fault{before: errAway}
	for _, c := range []crash{
		{name: "before the start is saved", step: func(int) (fault, bool) { return dead, true }, calls: 1},
		{name: "after the start is saved", step: func(int) (fault, bool) { return fault{after: errAway}, true }, calls: 1},
		{name: "before the call", call: func(*provider) (escapement.StepResult, error) { panic(errDied) }, calls: 1},
		{name: "in the call", call: func(p *provider) (escapement.StepResult, error) {
			p.mu.Lock()
			p.calls = append(p.calls, "")
			p.mu.Unlock()
			panic(errDied)
		}, calls: 2},
		{name: "after the call", call: func(p *provider) (escapement.StepResult, error) {
			if _, err := p.call(context.Background(), p.key); err != nil {
				return escapement.StepResult{}, err
			}
			panic(errDied)
		}, effects: 1, calls: 1},
		{name: "before the end is saved", step: func(n int) (fault, bool) { return dead, n > 0 }, effects: 1, calls: 1},
		{name: "after the end is saved", step: func(n int) (fault, bool) { return fault{after: errAway}, n > 0 }, effects: 1, calls: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			both(t, func(t *testing.T, p *provider) {
				r := newRig(t, escapement.Options{})
				healthy := r.another(escapement.Options{Records: r.store})
				dies := false
				r.net.set(func(op string, n int) fault {
					switch {
					case dies:
						return dead
					case op == "step" && c.step != nil:
						f, die := c.step(n)
						if dies = die; die {
							return f
						}
					}
					return fault{}
				})
				req := probing(1)
				first, err := r.gate.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
					call := p.call
					if c.call != nil {
						call = func(_ context.Context, key string) (escapement.StepResult, error) {
							p.key = key
							defer func() {
								r.net.mu.Lock()
								dies = true
								r.net.mu.Unlock()
							}()
							return c.call(p)
						}
					}
					if _, err := a.Step(ctx, "pay", call, p.options()); err == nil && c.effects == 0 {
						t.Error("the step went on")
					}
					panic(errDied)
				})
				if err != nil || first.Recorded || first.Panicked == nil {
					t.Fatalf("%+v, %v", first, err)
				}
				p.want(t, c.effects, len(p.calls))
				// Its lease ends 15 s after the claim, or after its last renewal.
				op := &operation{ending: idempotency.Done(created)}
				for since := time.Duration(0); since < 74*time.Second; since += time.Second {
					if v, err := healthy.Do(t.Context(), req, op.run); err != nil || v.Outcome != escapement.InProgress {
						t.Fatalf("after %v: %v, %v", since, v.Outcome, err)
					}
					pass(time.Second)
				}
				pass(10 * time.Second)
				v, err := healthy.Do(t.Context(), req, p.pay)
				want := "ch_" + idempotency.StepKey(req.Key, "pay") + " paid"
				if err != nil || !v.Recorded || string(v.Ending.Result.Payload) != want {
					t.Fatalf("%+v, %v", v, err)
				}
				calls := c.calls
				if p.knows && c.effects == 1 && c.name != "after the end is saved" {
					calls++ // with the same key
				}
				p.want(t, 1, calls)
				rec, _ := r.record(req.Key)
				if len(rec.Steps) != 1 || !rec.Steps[0].Done || rec.Steps[0].ProviderID != "ch_"+idempotency.StepKey(req.Key, "pay") || !rec.Takeover {
					t.Errorf("%+v", rec)
				}
				if v, err := r.another(escapement.Options{Records: r.store}).Do(t.Context(), req, p.pay); err != nil || v.Outcome != escapement.Replayed {
					t.Errorf("the repeat: %v, %v", v.Outcome, err)
				}
				p.want(t, 1, calls)
			})
		})
	}
}

// The reply to a SaveStep is lost, or takes its time, once or for long: nothing
// is called whose start is not known to be saved, and what was done stays done.
func TestP2LostRepliesOfSaveStep(t *testing.T) {
	for _, at := range []int{0, 1} { // the start, the end
		for _, kind := range kinds {
			for _, times := range []int{1, 3, 1000} {
				t.Run(fmt.Sprintf("%d/%s/%d times", at, kind.name, times), func(t *testing.T) {
					both(t, func(t *testing.T, p *provider) {
						r := newRig(t, escapement.Options{})
						saves, bad := 0, false
						r.net.set(func(op string, n int) fault {
							if op == "step" {
								if saves++; saves > at && saves <= at+times {
									bad = true
									return kind.fault
								}
							}
							return fault{}
						})
						req := probing(1)
						var done idempotency.Step
						var failed error
						v, err := r.gate.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
							done, failed = a.Step(ctx, "pay", p.call, p.options())
							return escapement.EndingOf(failed)
						})
						if err != nil || !bad || !v.Recorded {
							t.Fatalf("%+v, %v", v, err)
						}
						if failed != nil {
							if at != 0 || !errors.Is(failed, escapement.ErrRecords) || errors.Is(failed, escapement.ErrStepUnknown) {
								t.Fatal(failed)
							}
							p.want(t, 0, 0)
						} else {
							if !done.Done || string(done.Answer) != "paid" {
								t.Errorf("%+v", done)
							}
							p.want(t, 1, 1)
						}
						r.net.set(nil)
						pass(90 * time.Second)
						v, err = r.gate.Do(t.Context(), req, p.pay)
						if err != nil || v.Outcome != escapement.Admitted || !v.Recorded || v.Ending.Kind != idempotency.EndedDone {
							t.Fatalf("the next attempt: %+v, %v", v, err)
						}
						if got, _ := p.count(); got != 1 {
							t.Errorf("%d effects, want 1", got)
						}
					})
				})
			}
		}
	}
}

// P3: of an operation with several steps, a later attempt repeats only what is
// not done.
func TestP3OnlyWhatIsNotDone(t *testing.T) {
	both(t, func(t *testing.T, p *provider) {
		r := newRig(t, escapement.Options{})
		req := probing(1)
		names := []string{"reserve stock", "pay", "ship", "tell"}
		run := func(dieAt int) (escapement.Verdict, []string) {
			var called []string
			v, err := r.gate.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
				if got := escapement.RunFrom(ctx); got != a {
					t.Error("the context belongs to another attempt")
				}
				for i, name := range names {
					s, err := escapement.Step(ctx, name, func(ctx context.Context, key string) (escapement.StepResult, error) {
						called = append(called, name)
						if i == dieAt {
							panic(errDied)
						}
						return p.call(ctx, key)
					}, p.options())
					if err != nil {
						t.Error(err)
						return escapement.EndingOf(err)
					}
					if want := idempotency.StepKey(req.Key, name); !s.Done || s.Name != name || s.ProviderKey != want || s.ProviderID != "ch_"+want {
						t.Errorf("%+v", s)
					}
				}
				return idempotency.Done(created)
			})
			if err != nil {
				t.Fatal(err)
			}
			pass(2 * time.Minute)
			return v, called
		}
		for i := range names {
			v, called := run(i)
			if want := names[max(i-1, 0) : i+1]; v.Panicked == nil || !slices.Equal(called, want) {
				t.Errorf("attempt %d called %q, want %q", i, called, want)
			}
		}
		if v, called := run(-1); !v.Recorded || !slices.Equal(called, names[3:]) {
			t.Errorf("the last attempt called %q: %+v", called, v)
		}
		if effects, keys := p.count(); effects != 4 || keys != 4 {
			t.Errorf("%d effects with %d keys, want 4", effects, keys)
		}
	})
}

// unclear is a call that fails after its effect, as a client that saw the
// connection break.
func (p *provider) unclear(ctx context.Context, key string) (escapement.StepResult, error) {
	_, err := p.call(ctx, key)
	return escapement.StepResult{}, errors.Join(err, errAway)
}

// What a later attempt, and the same one, does with a step that was started.
func TestStepThatWasStarted(t *testing.T) {
	asked := func(status escapement.StepStatus, err error) func(p *provider) escapement.StepOptions {
		return func(p *provider) escapement.StepOptions {
			return escapement.StepOptions{Status: func(context.Context, string) (escapement.StepResult, escapement.StepStatus, error) {
				p.asked++
				return escapement.StepResult{ID: "found"}, status, err
			}}
		}
	}
	keys := func(d time.Duration) func(p *provider) escapement.StepOptions {
		return func(*provider) escapement.StepOptions { return escapement.StepOptions{KeysFor: d} }
	}
	expired := func(p *provider) escapement.StepOptions {
		return escapement.StepOptions{KeysFor: time.Minute, Status: p.status}
	}
	for _, c := range []struct {
		name    string
		options func(p *provider) escapement.StepOptions
		same    bool // is called again within the same attempt
		calls   int  // in the later attempt
		asked   int
		unknown bool
		id      string
	}{
		{name: "nothing is offered", options: func(*provider) escapement.StepOptions { return escapement.StepOptions{} }, unknown: true},
		{name: "keys", options: keys(time.Hour), same: true, calls: 1, id: "ch"},
		{name: "keys, forgotten meanwhile", options: keys(time.Minute), same: true, unknown: true},
		{name: "keys, forgotten, and a status", options: expired, same: true, asked: 1, id: "ch"},
		{name: "found", options: asked(escapement.StepFound, nil), asked: 1, id: "found"},
		{name: "absent", options: asked(escapement.StepAbsent, nil), asked: 1, calls: 1, id: "ch"},
		{name: "unclear", options: asked(escapement.StepUnclear, nil), asked: 1, unknown: true},
		{name: "no such status", options: asked(200, nil), asked: 1, unknown: true},
		{name: "absent, and an error", options: asked(escapement.StepAbsent, errAway), asked: 1, unknown: true},
		{name: "found, and an error", options: asked(escapement.StepFound, errAway), asked: 1, unknown: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, escapement.Options{})
				p := newProvider(true)
				req := probing(1)
				v, err := r.gate.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
					_, err := a.Step(ctx, "pay", p.unclear, c.options(p))
					if !errors.Is(err, escapement.ErrStepUnknown) || !errors.Is(err, errAway) {
						t.Error(err)
					}
					_, again := a.Step(ctx, "pay", p.unclear, c.options(p))
					if !errors.Is(again, escapement.ErrStepUnknown) || errors.Is(again, errAway) != c.same {
						t.Error(again)
					}
					return escapement.EndingOf(err)
				})
				want := 1
				if c.same {
					want = 2
				}
				if err != nil || v.Ending.Kind != idempotency.EndedUnknown || len(p.calls) != want || p.asked != 0 {
					t.Fatalf("%+v, %v; %d calls, asked %d times", v, err, len(p.calls), p.asked)
				}
				pass(time.Minute - time.Second)
				if v, err = r.gate.Do(t.Context(), req, p.pay); err != nil || v.Outcome != escapement.InProgress {
					t.Fatalf("in the quiet time: %v, %v", v.Outcome, err)
				}
				pass(time.Second)
				p.calls = nil
				var step idempotency.Step
				v, err = r.gate.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
					var err error
					step, err = a.Step(ctx, "pay", p.call, c.options(p))
					if errors.Is(err, escapement.ErrStepUnknown) != c.unknown || err == nil != !c.unknown {
						t.Error(err)
					}
					if err != nil {
						return escapement.EndingOf(err)
					}
					return idempotency.Done(created)
				})
				if err != nil || !v.Recorded || len(p.calls) != c.calls || p.asked != c.asked {
					t.Errorf("%+v, %v; %d calls, asked %d times", v, err, len(p.calls), p.asked)
				}
				if !strings.HasPrefix(step.ProviderID, c.id) || (c.id == "") != (step.ProviderID == "") {
					t.Errorf("%+v", step)
				}
				for _, k := range p.calls {
					if k != idempotency.StepKey(req.Key, "pay") {
						t.Errorf("called with the key %q", k)
					}
				}
				if effects, _ := p.count(); effects != 1 {
					t.Errorf("%d effects", effects)
				}
			})
		})
	}
}

// A status is asked only after the quiet time of the attempt that called, also
// if that attempt's terms had a shorter one, or if it left a retryable result.
func TestStepIsAskedAfterTheQuietTime(t *testing.T) {
	for name, settled := range map[string]bool{
		"terms that were shorter": false,
		// Its attempt may have called until its time-out, and then the quiet time runs.
		"a retryable result of an operator's": true,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, escapement.Options{})
				p := newProvider(false)
				req := probing(1)
				req.Policy.Terms.Quiet = 0
				if _, err := r.gate.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
					_, err := a.Step(ctx, "pay", p.unclear, escapement.StepOptions{})
					if !errors.Is(err, escapement.ErrStepUnknown) {
						t.Error(err)
					}
					return idempotency.UnknownEnding()
				}); err != nil {
					t.Fatal(err)
				}
				if settled {
					rec, _ := r.record(req.Key)
					if err := r.store.Settle(t.Context(), req.Key, rec.Revision, idempotency.Result{Class: idempotency.FailedRetryable, Status: 503}); err != nil {
						t.Fatal(err)
					}
				}
				req = probing(1)
				v, err := r.gate.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
					_, err := a.Step(ctx, "pay", p.call, p.options())
					if !errors.Is(err, escapement.ErrStepUnknown) || !strings.Contains(err.Error(), "quiet time") {
						t.Error(err)
					}
					return idempotency.UnknownEnding()
				})
				if err != nil || !v.Recorded || p.asked != 0 {
					t.Fatalf("%+v, %v, asked %d times", v, err, p.asked)
				}
				pass(time.Minute)
				v, err = r.gate.Do(t.Context(), req, p.pay)
				if err != nil || !v.Recorded || v.Ending.Kind != idempotency.EndedDone || p.asked != 1 {
					t.Errorf("%+v, %v, asked %d times", v, err, p.asked)
				}
				p.want(t, 1, 1)
			})
		})
	}
}

// A call that did nothing may be made again, by this attempt and by a later one;
// the operation cannot be given back, since it has a step (R9).
func TestStepThatWasNotExecuted(t *testing.T) {
	both(t, func(t *testing.T, p *provider) {
		r := newRig(t, escapement.Options{})
		req := probing(1)
		refused := func(context.Context, string) (escapement.StepResult, error) {
			return escapement.StepResult{}, fmt.Errorf("dial: %w", escapement.ErrNotExecuted)
		}
		v, err := r.gate.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
			for range 3 {
				_, err := a.Step(ctx, "pay", refused, p.options())
				if !errors.Is(err, escapement.ErrNotExecuted) || errors.Is(err, escapement.ErrStepUnknown) {
					t.Error(err)
				}
			}
			if s, err := a.Step(ctx, "tax", p.call, p.options()); err != nil || !s.Done {
				t.Error(s, err)
			}
			return escapement.EndingOf(escapement.ErrNotExecuted)
		})
		if err != nil || v.Ending.Kind != idempotency.EndedNotRun || !v.Recorded {
			t.Fatalf("%+v, %v", v, err)
		}
		pass(time.Minute)
		r.wantStatus(req.Key, idempotency.StatusUnknown)
		for range 2 {
			v, err = r.gate.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
				if _, err := a.Step(ctx, "pay", refused, p.options()); !errors.Is(err, escapement.ErrNotExecuted) {
					t.Error(err)
				}
				return p.pay(ctx, a)
			})
		}
		if err != nil || v.Outcome != escapement.Replayed || v.Record.Attempt != 2 {
			t.Errorf("%+v, %v", v, err)
		}
		if effects, keys := p.count(); effects != 2 || keys != 2 {
			t.Errorf("%d effects with %d keys", effects, keys)
		}
	})
}

// Steps of one name wait for each other; the second has what the first has done.
// Those of other names do not wait.
func TestStepsAtOnce(t *testing.T) {
	both(t, func(t *testing.T, p *provider) {
		p.takes = time.Second
		r := newRig(t, escapement.Options{})
		start := time.Now()
		v, err := r.gate.Do(t.Context(), probing(1), func(ctx context.Context, a *escapement.Run) idempotency.Ending {
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Go(func() {
					s, err := a.Step(ctx, fmt.Sprint("step ", i%4), p.call, p.options())
					if err != nil || !s.Done || string(s.Answer) != "paid" {
						t.Error(s, err)
					}
				})
			}
			gone, cancel := context.WithTimeoutCause(ctx, time.Millisecond, errDied)
			defer cancel()
			<-time.After(time.Microsecond)
			if _, err := a.Step(gone, "step 0", p.call, p.options()); !errors.Is(err, errDied) {
				t.Errorf("a caller that does not wait: %v", err)
			}
			wg.Wait()
			return idempotency.Done(created)
		})
		if err != nil || !v.Recorded {
			t.Fatalf("%+v, %v", v, err)
		}
		within(t, "four steps at once", time.Since(start), time.Second, time.Second)
		if effects, keys := p.count(); effects != 4 || keys != 4 || len(p.calls) != 4 {
			t.Errorf("%d effects with %d keys in %d calls", effects, keys, len(p.calls))
		}
	})
}

// A former holder neither settles nor starts a step: when it wakes up before its
// call, its view of the lease stops it; and where a clock that was set forward
// has let somebody take over while its view was good, the store does.
func TestStepsOfAZombie(t *testing.T) {
	for _, jumps := range []bool{false, true} {
		for _, inCall := range []bool{false, true} {
			t.Run(fmt.Sprintf("clock jumps %v/in the call %v", jumps, inCall), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					var clock time.Duration
					mem, err := memstore.NewRecords(memstore.RecordsOptions{Now: func() time.Time { return time.Now().Add(clock) }})
					if err != nil {
						t.Fatal(err)
					}
					r := newRig(t, escapement.Options{})
					r.store, r.net.Store = mem, mem
					healthy := r.another(escapement.Options{Records: mem})
					req := probing(1)
					req.Policy.Timeout, req.Policy.Terms.Quiet = 2*time.Minute, 2*time.Minute
					if jumps {
						req.Policy.Terms.Lease = 10 * time.Minute
					} else {
						r.net.set(frozen)
					}
					p := newProvider(true)
					wake := make(chan struct{})
					first := make(chan result, 1)
					calls := 0
					go func() {
						v, err := r.gate.Do(context.Background(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
							op := ctx
							ctx = context.WithoutCancel(ctx)
							if !inCall {
								<-wake
							}
							s, err := a.Step(ctx, "pay", func(ctx context.Context, key string) (escapement.StepResult, error) {
								calls++
								res, err := p.call(ctx, key)
								<-wake
								return res, err
							}, p.options())
							if !errors.Is(err, idempotency.ErrFenced) || s.Done {
								t.Errorf("the zombie's step: %+v, %v", s, err)
							}
							if jumps && !errors.Is(context.Cause(op), idempotency.ErrFenced) {
								t.Errorf("the zombie's context: %v", context.Cause(op))
							}
							if _, err = a.Step(ctx, "another", p.call, p.options()); !errors.Is(err, idempotency.ErrFenced) {
								t.Errorf("another step: %v", err)
							}
							return idempotency.UnknownEnding()
						})
						first <- result{v, err}
					}()
					pass(time.Second)
					if jumps {
						clock = 20 * time.Minute
					} else {
						pass(140 * time.Second)
					}
					v, err := healthy.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
						r.net.set(nil)
						close(wake)
						if jumps { // it has not heard that it lost its key, nor timed out
							<-first
						}
						return p.pay(ctx, a)
					})
					if err != nil || v.Outcome != escapement.Admitted || !v.Recorded {
						t.Fatalf("%+v, %v", v, err)
					}
					if !jumps {
						<-first
					}
					if n := len(r.events.of(escapement.LeaseLost)); jumps && n != 1 { // else it has timed out before
						t.Errorf("%d events that the lease is lost, want 1", n)
					}
					if want := map[bool]int{true: 1}[inCall]; calls != want {
						t.Errorf("the zombie has called %d times, want %d", calls, want)
					}
					p.want(t, 1, 1+calls)
					rec, _ := r.record(req.Key)
					if len(rec.Steps) != 1 || rec.Result.Class != idempotency.Succeeded {
						t.Errorf("%+v", rec)
					}
				})
			})
		}
	}
}

// A start that takes so long to be saved that the lease may be over is not
// followed by a call (F8).
func TestStepWhoseStartIsSlow(t *testing.T) {
	both(t, func(t *testing.T, p *provider) {
		r := newRig(t, escapement.Options{RecordsDeadline: 30 * time.Second})
		r.net.set(func(op string, _ int) fault {
			switch op {
			case "step":
				return fault{slow: 16 * time.Second}
			case "extend":
				return fault{before: errAway}
			}
			return fault{}
		})
		v, err := r.gate.Do(t.Context(), probing(1), func(ctx context.Context, a *escapement.Run) idempotency.Ending {
			_, err := a.Step(ctx, "pay", p.call, p.options())
			if !errors.Is(err, escapement.ErrRecords) {
				t.Error(err)
			}
			r.net.set(nil)
			return p.pay(ctx, a) // it is known that nothing was called
		})
		if err != nil || !v.Recorded || v.Ending.Kind != idempotency.EndedDone {
			t.Errorf("%+v, %v", v, err)
		}
		p.want(t, 1, 1)
	})
}

// What was done is saved though the caller's context ends meanwhile, and though
// the attempt is given up.
func TestStepIsSavedForItself(t *testing.T) {
	both(t, func(t *testing.T, p *provider) {
		r := newRig(t, escapement.Options{})
		p.takes = 70 * time.Second
		v, err := r.gate.Do(t.Context(), probing(1), p.pay)
		if err != nil || !v.TimedOut || !v.Recorded {
			t.Fatalf("%+v, %v", v, err)
		}
		pass(20 * time.Second)
		rec, _ := r.record(key(1))
		if len(rec.Steps) != 1 || !rec.Steps[0].Done || rec.State != idempotency.Ended {
			t.Errorf("%+v", rec)
		}
		p.want(t, 1, 1)
	})
}

// The key that is stored is the one that is used; if there is none, the provider
// knows none.
func TestStepUsesTheStoredKey(t *testing.T) {
	for _, stored := range []string{"a key of another version", ""} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, escapement.Options{})
			req := probing(1)
			c := idempotency.Claim{Key: req.Key, Owner: idempotency.NewOwner(), Terms: req.Policy.Terms}
			a, err := r.store.Reserve(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.store.SaveStep(t.Context(), a.Reservation, idempotency.Step{Name: "pay", ProviderKey: stored}); err != nil {
				t.Fatal(err)
			}
			pass(75 * time.Second)
			p := newProvider(true)
			if v, err := r.gate.Do(t.Context(), req, p.pay); err != nil || (v.Ending.Kind == idempotency.EndedDone) != (stored != "") {
				t.Fatalf("%+v, %v", v, err)
			}
			if stored != "" && (len(p.calls) != 1 || p.calls[0] != stored) || stored == "" && len(p.calls) > 0 {
				t.Errorf("called with %q", p.calls)
			}
		})
	}
}

// A retryable result says that the next attempt may begin at once. It is not
// believed while nobody knows what became of a step's call, which may still be
// under way: the quiet time must come first.
func TestStepLeftOpenIsNotRetryable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		p := newProvider(false)
		req := probing(1)
		temporary := idempotency.Result{Class: idempotency.FailedRetryable, Status: 503}
		late := func(ctx context.Context, key string) (escapement.StepResult, error) {
			go func() { // it arrives when the attempt has long given up
				<-time.After(30 * time.Second)
				_, _ = p.call(context.Background(), key)
			}()
			return escapement.StepResult{}, errAway
		}
		attempt := func(call func(context.Context, string) (escapement.StepResult, error)) func(context.Context, *escapement.Run) idempotency.Ending {
			return func(ctx context.Context, a *escapement.Run) idempotency.Ending {
				if _, err := a.Step(ctx, "pay", call, p.options()); err == nil {
					return idempotency.Done(created)
				}
				if err := a.EndIn(ctx, r.store, temporary); !errors.Is(err, escapement.ErrStepUnknown) {
					t.Errorf("EndIn of a retryable result says %v", err)
				}
				return idempotency.Done(temporary)
			}
		}
		died := func(context.Context, string) (escapement.StepResult, error) {
			return escapement.StepResult{}, errAway
		}
		for i, call := range []func(context.Context, string) (escapement.StepResult, error){died, late} {
			v, err := r.gate.Do(t.Context(), req, attempt(call))
			if err != nil || v.Ending.Kind != idempotency.EndedUnknown {
				t.Fatalf("attempt %d: %+v, %v", i+1, v, err)
			}
			if v, err = r.gate.Do(t.Context(), req, attempt(p.call)); err != nil || v.Outcome != escapement.InProgress {
				t.Fatalf("in the quiet time after attempt %d: %v, %v", i+1, v.Outcome, err)
			}
			pass(time.Minute)
		}
		if v, err := r.gate.Do(t.Context(), req, attempt(p.call)); err != nil || v.Ending.Kind != idempotency.EndedDone {
			t.Errorf("the last attempt: %+v, %v", v, err)
		}
		if effects, _ := p.count(); effects != 1 {
			t.Errorf("%d effects", effects)
		}
	})
}

// Who has called a step may change what it was given.
func TestStepsAnswerIsTheCallersOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		p := newProvider(true)
		_, err := r.gate.Do(t.Context(), probing(1), func(ctx context.Context, a *escapement.Run) idempotency.Ending {
			if a.Stepped() {
				t.Error("a step was called before there was one")
			}
			for range 3 {
				s, err := a.Step(ctx, "pay", p.call, p.options())
				if err != nil || string(s.Answer) != "paid" {
					t.Fatalf("%+v, %v", s, err)
				}
				copy(s.Answer, "xxxx")
			}
			if !a.Stepped() {
				t.Error("a step was called, and is not told")
			}
			return idempotency.Done(created)
		})
		if err != nil {
			t.Fatal(err)
		}
		rec, _ := r.record(key(1))
		if len(rec.Steps) != 1 || string(rec.Steps[0].Answer) != "paid" {
			t.Errorf("%+v", rec.Steps)
		}
	})
}
