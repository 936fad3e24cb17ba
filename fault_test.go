package escapement_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/memstore"
)

// kinds of faults of one call, with a deadline of 5 s.
var kinds = []struct {
	name  string
	fault fault
}{
	{"error before", fault{before: errAway}},
	{"error after the effect", fault{after: errAway}},
	{"request late", fault{late: 7 * time.Second}},
	{"request late, within the deadline", fault{late: 4 * time.Second}},
	{"reply late", fault{slow: 7 * time.Second}},
	{"reply late, within the deadline", fault{slow: 4 * time.Second}},
}

// Every call of the store, with every kind of fault, once, a few times, and for
// as long as a minute: the operation takes effect once at most, and not at all
// where Do returned an error; then the key is settled, and a repeat is answered.
func TestFaultsOfTheStore(t *testing.T) {
	paths(t, func(t *testing.T) {
		for _, op := range []string{"reserve", "void", "extend", "end", "lookup"} {
			for _, kind := range kinds {
				for _, times := range []int{1, 3, 1000} {
					for _, e := range []idempotency.Ending{idempotency.Done(created), idempotency.NotRun()} {
						for _, terms := range []func(uint64) escapement.Request{request, retrying} {
							name := fmt.Sprintf("%s/%s/%d times/%v/%v", op, kind.name, times, e.Kind, terms(1).Policy.Terms.OnUnknown)
							t.Run(name, func(t *testing.T) {
								bubble(t, func(t *testing.T) {
									faultOfTheStore(t, op, kind.fault, times, e, terms(1))
								})
							})
						}
					}
				}
			}
		}
	})
}

func faultOfTheStore(t *testing.T, op string, f fault, times int, e idempotency.Ending, req escapement.Request) {
	r := newRig(t, escapement.Options{})
	defer r.work(r.gate)()
	begin := time.Now()
	plan := func(name string, n int) fault {
		switch {
		case time.Since(begin) >= time.Minute:
		case name == op && n < times:
			return f
		case name == "reserve" && n == 0 && op == "void": // so that there is a Void
			return fault{after: errAway}
		case name == "end" && n == 0 && op == "lookup":
			return fault{after: errAway}
		}
		return fault{}
	}
	r.net.set(plan)
	worker := creating(12 * time.Second)
	worker.ending = e
	v, err := r.gate.Do(context.Background(), req, worker.run)
	switch {
	case err != nil && !errors.Is(err, escapement.ErrRecords):
		t.Fatal(err)
	case err != nil:
		r.wantEffects(worker, 0)
	case v.Outcome != escapement.Admitted || v.Fenced || v.TimedOut || v.Ending.Kind != e.Kind:
		t.Fatalf("%+v", v)
	default:
		r.wantEffects(worker, 1)
	}
	ran := err == nil

	// While it is not settled, nobody else runs it, and nobody is told that its
	// outcome is unknown.
	for time.Since(begin) < time.Minute+20*time.Second {
		if rec, ok := r.record(req.Key); !ok || rec.State == idempotency.Ended {
			break
		}
		v, err := r.gate.Do(context.Background(), req, worker.run)
		if err == nil && ran && v.Outcome != escapement.InProgress && v.Outcome != escapement.Replayed {
			if _, ok := r.record(req.Key); ok || e.Kind == idempotency.EndedDone { // else it was given back just now
				t.Fatalf("after %v a repeat came to %v", time.Since(begin), v.Outcome)
			}
		}
		if err == nil && v.Ran {
			break
		}
		pass(time.Second)
	}
	r.net.set(nil)
	pass(30 * time.Second) // one lease, and the longest pause between two tries
	want := idempotency.StatusFree
	if e.Kind == idempotency.EndedDone && worker.count() > 0 {
		want = idempotency.StatusSucceeded
	}
	if rec, _ := r.record(req.Key); rec.Attempt == 2 && e.Kind == idempotency.EndedNotRun {
		// The Void came after the lease and a takeover, which gave back what it
		// had found. Only terms that retry permit that, and the next one runs.
		want = idempotency.StatusUnknown
		if op != "void" || times < 1000 || req.Policy.Terms.OnUnknown != idempotency.Retry {
			t.Errorf("a takeover: %+v", rec)
		}
	}
	r.wantStatus(req.Key, want)
	worker.ending, worker.takes = idempotency.Done(created), 0
	v, err = r.gate.Do(context.Background(), req, worker.run)
	if err != nil || v.Outcome != escapement.Admitted && v.Outcome != escapement.Replayed {
		t.Fatalf("the repeat: %+v, %v", v, err)
	}
	if e.Kind == idempotency.EndedDone {
		r.wantEffects(worker, 1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.gate.Shutdown(ctx); err != nil {
		t.Errorf("something is still open: %v", err)
	}
}

// R10: whatever gets lost on the way, and whoever stops waiting at whatever
// moment, an error of Reserve executes nothing, and the key is free for the
// next, which runs exactly once.
func TestR10LostReservations(t *testing.T) {
	rounds := 10_000
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	bubble(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(seed, 10))
		var mu sync.Mutex
		roll := func(n int64) int64 {
			mu.Lock()
			defer mu.Unlock()
			return rnd.Int64N(n)
		}
		r := newRig(t, escapement.Options{RecordsDeadline: 50 * time.Millisecond, MaxRunning: rounds})
		defer r.work(r.gate)()
		r.net.set(func(op string, _ int) fault {
			var f fault
			d := time.Duration(roll(int64(100 * time.Millisecond)))
			switch p := roll(10); {
			case p < 2:
				f.late = d
			case p < 4:
				f.slow = d
			case p < 5:
				f.before = errAway
			case p < 6:
				f.after = errAway
			}
			return f
		})
		var wg sync.WaitGroup
		free := make(chan struct{}, 50)
		for i := range rounds {
			free <- struct{}{}
			req := request(uint64(i))
			gone, takes := time.Duration(roll(int64(200*time.Millisecond))), time.Duration(roll(int64(100*time.Millisecond)))
			wg.Go(func() {
				defer func() { <-free }()
				op := creating(takes)
				for range 2000 {
					ctx, cancel := context.WithTimeout(context.Background(), gone)
					before := op.count()
					v, err := r.gate.Do(ctx, req, op.run)
					cancel()
					switch {
					case err != nil && (op.count() != before || !errors.Is(err, escapement.ErrRecords)):
						t.Errorf("key %d: %v, and it ran %d times", i, err, op.count()-before)
						return
					case err != nil, v.Outcome == escapement.InProgress:
						<-time.After(20 * time.Millisecond)
					case v.Outcome == escapement.Replayed && v.Record.Result.Equal(created),
						v.Outcome == escapement.Admitted && v.Ending.Result.Equal(created) && !v.Fenced:
						if op.count() != 1 {
							t.Errorf("key %d: it ran %d times", i, op.count())
						}
						return
					default:
						t.Errorf("key %d: %v, ran: %v, ending %v", i, v.Outcome, v.Ran, v.Ending.Kind)
						return
					}
				}
				t.Errorf("key %d: never answered", i)
			})
		}
		wg.Wait()
		if n := len(r.events.of(escapement.ClaimVoided)); n < rounds/10 {
			t.Errorf("only %d claims were voided: the faults do not bite", n)
		}
		r.net.set(nil)
		pass(time.Minute)
		for i := range rounds {
			if got := r.status(key(uint64(i))); got != idempotency.StatusSucceeded {
				t.Errorf("key %d is %s", i, got)
			}
		}
		if err := r.gate.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		t.Logf("seed %d", seed)
	}
}

// An outage is answered by ErrBusy before memory grows, and leaves nothing but
// two lines in the log.
func TestOutageIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var out bytes.Buffer
		r := newRig(t, escapement.Options{MaxRunning: 10, Logger: slog.New(slog.NewTextHandler(&out, nil))})
		r.net.set(func(op string, _ int) fault {
			return fault{before: errAway}
		})
		busy := 0
		for i := range uint64(100) {
			if i == 50 { // it can be read, and not written
				r.net.set(func(op string, _ int) fault {
					if op == "lookup" {
						return fault{}
					}
					return fault{before: errAway}
				})
			}
			_, err := r.gate.Do(t.Context(), request(i), creating(0).run)
			if errors.Is(err, escapement.ErrBusy) {
				busy++
			} else if !errors.Is(err, escapement.ErrRecords) {
				t.Fatal(err)
			}
		}
		if busy != 50 || r.net.count("reserve") != 10 {
			t.Errorf("%d times busy and %d claims, want 50 and 10", busy, r.net.count("reserve"))
		}
		r.net.set(nil)
		stop := r.work(r.gate)
		pass(6 * time.Second)
		stop()
		op := creating(0)
		for i := range uint64(100) {
			if v, err := r.gate.Do(t.Context(), request(i), op.run); err != nil || !v.Recorded {
				t.Fatalf("key %d: %+v, %v", i, v, err)
			}
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "is unavailable") || !strings.Contains(lines[1], "is available again") {
			t.Errorf("lines:\n%s", out.String())
		}
	})
}

// Without Run, later calls of Do work off what is queued.
func TestWithoutRunLaterCallsHelp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{MaxRunning: 2})
		r.net.set(func(op string, n int) fault {
			if op == "reserve" && n == 0 {
				return fault{after: errAway}
			}
			return fault{}
		})
		op := creating(0)
		if _, err := r.gate.Do(t.Context(), request(1), op.run); !errors.Is(err, escapement.ErrRecords) {
			t.Fatal(err)
		}
		r.wantStatus(key(1), idempotency.StatusInProgress)
		if v, err := r.gate.Do(t.Context(), request(1), op.run); err != nil || !v.Recorded {
			t.Fatalf("%+v, %v", v, err)
		}
		r.wantEffects(op, 1)
	})
}

// A result that cannot be recorded keeps its lease: nobody takes over meanwhile.
func TestLeaseIsKeptWhileAResultWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		defer r.work(r.gate)()
		r.net.set(func(op string, _ int) fault {
			if op == "end" {
				return fault{before: errAway}
			}
			return fault{}
		})
		op := creating(0)
		v, err := r.gate.Do(t.Context(), retrying(1), op.run)
		if err != nil || v.Recorded || v.Ending.Kind != idempotency.EndedDone {
			t.Fatalf("%+v, %v", v, err)
		}
		for range 300 {
			pass(time.Second)
			if v, err := r.gate.Do(t.Context(), retrying(1), op.run); err != nil || v.Outcome != escapement.InProgress {
				t.Fatalf("%+v, %v", v, err)
			}
		}
		r.net.set(nil)
		pass(6 * time.Second)
		r.wantStatus(key(1), idempotency.StatusSucceeded)
		r.wantEffects(op, 1)
	})
}

// What a function says late replaces the unknown that is still waiting.
func TestLateTruthReplacesWhatWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		defer r.work(r.gate)()
		r.net.set(func(op string, _ int) fault {
			if op == "end" || op == "extend" {
				return fault{before: errAway}
			}
			return fault{}
		})
		got := <-do(r.gate, request(1), creating(90*time.Second))
		if !got.v.TimedOut || got.v.Recorded {
			t.Fatalf("%+v", got)
		}
		pass(40 * time.Second)
		r.net.set(nil)
		pass(6 * time.Second)
		r.wantStatus(key(1), idempotency.StatusSucceeded)
		if err := r.gate.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A full store has changed nothing: there is nothing to withdraw.
func TestFullStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		small, err := memstore.NewRecords(memstore.RecordsOptions{MaxRecords: 1})
		if err != nil {
			t.Fatal(err)
		}
		r.net.Store = small
		op := creating(0)
		if v, err := r.gate.Do(t.Context(), request(1), op.run); err != nil || !v.Recorded {
			t.Fatalf("%+v, %v", v, err)
		}
		_, err = r.gate.Do(t.Context(), request(2), op.run)
		if !errors.Is(err, escapement.ErrRecords) || !errors.Is(err, idempotency.ErrFull) {
			t.Errorf("full: %v", err)
		}
		if v, err := r.gate.Do(t.Context(), request(1), op.run); err != nil || v.Outcome != escapement.Replayed {
			t.Errorf("what it has: %v, %v", v.Outcome, err)
		}
		r.wantEffects(op, 1)
		if err := r.gate.Shutdown(t.Context()); err != nil || r.net.count("void") != 0 {
			t.Errorf("%v, %d claims voided", err, r.net.count("void"))
		}
	})
}

// The truth comes while the unknown of a time-out already waits.
func TestTruthAfterAFailedUnknown(t *testing.T) {
	for _, e := range []idempotency.Ending{idempotency.Done(created), idempotency.NotRun()} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, escapement.Options{})
			defer r.work(r.gate)()
			r.net.set(func(op string, n int) fault {
				if op == "end" && n == 0 {
					return fault{late: 20 * time.Second} // and arrives after all else
				}
				return fault{}
			})
			v, err := r.gate.Do(t.Context(), request(1), func(ctx context.Context, _ *escapement.Run) idempotency.Ending {
				<-ctx.Done()
				<-time.After(time.Second)
				return e
			})
			if err != nil || !v.TimedOut || v.Ending.Kind != e.Kind || !v.Recorded {
				t.Errorf("%+v, %v", v, err)
			}
			pass(time.Minute)
			for _, ev := range r.events.of(escapement.EndingRecorded) {
				if errors.Is(ev.Err, idempotency.ErrFenced) {
					t.Errorf("what was superseded was still sent: %v", ev.Ending.Kind)
				}
			}
			want := idempotency.StatusSucceeded
			if e.Kind == idempotency.EndedNotRun {
				want = idempotency.StatusFree
			}
			r.wantStatus(key(1), want)
		})
	}
}
