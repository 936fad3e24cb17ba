package escapement_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/memstore"
)

func TestLeaseIsRenewedWhileItRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		op := creating(48 * time.Second)
		first := do(r.gate, retrying(1), op)
		for range 47 { // another attempt never gets in
			pass(time.Second)
			v, err := r.gate.Do(t.Context(), retrying(1), op.run)
			if err != nil || v.Outcome != escapement.InProgress {
				t.Fatalf("%v, %v", v.Outcome, err)
			}
		}
		if got := <-first; got.err != nil || !got.v.Recorded || got.v.Fenced {
			t.Errorf("%+v", got)
		}
		r.wantEffects(op, 1)
		if got := r.net.count("extend"); got != 9 {
			t.Errorf("%d renewals in 48 s with a lease of 15 s, want 9", got)
		}
	})
}

// A hung operation is cancelled, its key becomes unknown, and its lease is not
// renewed any more (I11). What it says much later is the truth.
func TestTimeOutThenTheTruth(t *testing.T) {
	for _, truth := range []idempotency.Ending{idempotency.Done(created), idempotency.NotRun()} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, escapement.Options{MaxRunning: 1})
			op := creating(200 * time.Second)
			op.ending = truth
			start := time.Now()
			got := <-do(r.gate, request(1), op)
			within(t, "a hung operation", time.Since(start), time.Minute, time.Minute)
			if v := got.v; got.err != nil || !v.TimedOut || v.Ending.Kind != idempotency.EndedUnknown || !v.Recorded || !v.Ran {
				t.Fatalf("%+v", got)
			}
			r.wantStatus(key(1), idempotency.StatusUnknown)
			renewals := r.net.count("extend")
			if _, err := r.gate.Do(t.Context(), request(2), op.run); !errors.Is(err, escapement.ErrBusy) {
				t.Errorf("while it still runs: %v, want its slot to be taken", err)
			}
			pass(141 * time.Second)
			if r.net.count("extend") != renewals {
				t.Error("the lease was renewed after the time-out")
			}
			want := idempotency.StatusSucceeded
			if truth.Kind == idempotency.EndedNotRun {
				want = idempotency.StatusFree
			}
			r.wantStatus(key(1), want)
			if v, err := r.gate.Do(t.Context(), request(2), creating(0).run); err != nil || !v.Recorded {
				t.Errorf("afterwards: %+v, %v", v, err)
			}
			r.wantEffects(op, 1)
		})
	}
}

// An operation that answers its cancellation while unknown is being recorded.
func TestTruthDuringTheTimeOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		r.net.set(func(op string, n int) fault {
			if op == "end" && n == 0 {
				return fault{slow: time.Second}
			}
			return fault{}
		})
		v, err := r.gate.Do(t.Context(), request(1), func(ctx context.Context, _ *escapement.Run) idempotency.Ending {
			<-ctx.Done()
			<-time.After(500 * time.Millisecond)
			return idempotency.NotRun()
		})
		if err != nil || !v.TimedOut || v.Ending.Kind != idempotency.EndedNotRun || !v.Recorded {
			t.Fatalf("%+v, %v", v, err)
		}
		r.wantStatus(key(1), idempotency.StatusFree)
	})
}

// frozen lets no renewal through while the operation runs, as if its node had
// been stopped; so another node takes over.
func frozen(op string, _ int) fault {
	if op == "extend" {
		return fault{before: errAway}
	}
	return fault{}
}

// T3: the lease of a hung holder runs out; a repeat takes over, once, and ends
// right. The former holder can change nothing (F1), and is answered by the record.
func TestT3TakeoverFromAHungHolder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		healthy := r.another(escapement.Options{Records: r.store})
		r.net.set(frozen)
		zombie := creating(40 * time.Second)
		zombie.ending = idempotency.Done(idempotency.Result{Class: idempotency.FailedFinal, Status: 500})
		first := do(r.gate, retrying(1), zombie)
		pass(14 * time.Second)
		op := creating(10 * time.Second)
		if v, err := healthy.Do(t.Context(), retrying(1), op.run); err != nil || v.Outcome != escapement.InProgress {
			t.Fatalf("the lease is alive: %v, %v", v.Outcome, err)
		}
		pass(time.Second)
		second, third := do(healthy, retrying(1), op), do(healthy, retrying(1), op)
		a, b := <-second, <-third
		if a.v.Outcome == escapement.InProgress {
			a, b = b, a
		}
		if a.v.Outcome != escapement.Admitted || !a.v.Recorded || b.v.Outcome != escapement.InProgress {
			t.Fatalf("%+v\n%+v", a, b)
		}
		got := <-first
		if v := got.v; got.err != nil || !v.Fenced || v.Recorded || v.Outcome != escapement.Replayed || !v.Record.Result.Equal(created) {
			t.Errorf("the former holder: %+v", got)
		}
		rec, _ := r.record(key(1))
		if !rec.Takeover || rec.Attempt != 2 || !rec.Result.Equal(created) {
			t.Errorf("%+v", rec)
		}
		r.wantEffects(op, 1)
	})
}

// T3: the same for a dead holder.
func TestT3TakeoverFromADeadHolder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		req := retrying(1)
		dead := idempotency.Claim{Key: req.Key, Owner: idempotency.NewOwner(), Terms: req.Policy.Terms}
		if _, err := r.store.Reserve(t.Context(), dead); err != nil {
			t.Fatal(err)
		}
		op := creating(time.Second)
		tries := 0
		for {
			v, err := r.gate.Do(t.Context(), req, op.run)
			if err != nil {
				t.Fatal(err)
			}
			if v.Outcome == escapement.Admitted {
				break
			}
			tries++
			pass(time.Second)
		}
		if tries != 15 {
			t.Errorf("taken over after %d s, want 15", tries)
		}
		r.wantStatus(key(1), idempotency.StatusSucceeded)
		r.wantEffects(op, 1)
	})
}

// Fault 1: a zombie must not overwrite the new owner's result, nor renew or
// release the key, at any stage of the successor.
func TestFault01ZombieChangesNothing(t *testing.T) {
	for name, e := range map[string]idempotency.Ending{
		"done": idempotency.Done(created), "not run": idempotency.NotRun(), "unknown": idempotency.UnknownEnding(),
	} {
		for _, after := range []time.Duration{20 * time.Second, 100 * time.Second} { // the successor runs, or is done
			t.Run(name+" after "+after.String(), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r := newRig(t, escapement.Options{})
					healthy := r.another(escapement.Options{Records: r.store})
					r.net.set(frozen)
					req := retrying(1)
					req.Policy.Timeout = 10 * time.Minute
					zombie := creating(after)
					zombie.ending = e
					first := do(r.gate, req, zombie)
					pass(16 * time.Second)
					op := creating(30 * time.Second)
					op.ending = idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 202})
					second := do(healthy, req, op)
					got := <-first
					want := escapement.InProgress
					if after > 46*time.Second {
						want = escapement.Replayed
					}
					if v := got.v; got.err != nil || !v.Fenced || v.Recorded || v.Outcome != want || v.Record.Key != req.Key {
						t.Errorf("the zombie: %+v", got)
					}
					if s := <-second; s.err != nil || s.v.Fenced || !s.v.Recorded {
						t.Errorf("the successor: %+v", s)
					}
					if rec, _ := r.record(key(1)); rec.Result.Status != 202 {
						t.Errorf("the record has the result %+v", rec.Result)
					}
					r.wantEffects(op, 1)
				})
			})
		}
	}
}

// A former holder whose successor has lost the key too sends its client back to
// ask again, since the next try takes the key over. Held keys stay unknown.
func TestFormerHolderOfAKeyThatIsLostAgain(t *testing.T) {
	for policy, want := range map[idempotency.OnUnknown]escapement.Outcome{
		idempotency.Retry: escapement.InProgress, idempotency.Fail: escapement.InProgress, idempotency.Hold: escapement.Unknown,
	} {
		t.Run(policy.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, escapement.Options{})
				r.net.set(frozen)
				req := retrying(1)
				first := do(r.gate, req, creating(50*time.Second))
				pass(16 * time.Second)
				terms := req.Policy.Terms
				terms.OnUnknown = policy
				dead := idempotency.Claim{Key: req.Key, Owner: idempotency.NewOwner(), Terms: terms}
				if a, err := r.store.Reserve(t.Context(), dead); err != nil || a.Outcome != idempotency.Started {
					t.Fatal(a.Outcome, err)
				}
				if v := (<-first).v; !v.Ran || !v.Fenced || v.Recorded || v.Outcome != want {
					t.Errorf("the former holder: %+v", v)
				}
			})
		})
	}
}

// Fault 2: an error is not final because it is an error. What may pass stays
// retryable, and what nobody knows unknown.
func TestFault02TemporaryIsNotFinal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		op := creating(0)
		op.ending = idempotency.Done(idempotency.Result{Class: idempotency.FailedRetryable, Status: 503, Window: 2 * time.Second})
		for i, want := range []escapement.Outcome{escapement.Admitted, escapement.Replayed} {
			if v, err := r.gate.Do(t.Context(), request(1), op.run); err != nil || v.Outcome != want {
				t.Fatalf("try %d: %v, %v", i, v.Outcome, err)
			}
		}
		pass(2 * time.Second)
		op.ending = idempotency.Done(created)
		if v, err := r.gate.Do(t.Context(), request(1), op.run); err != nil || v.Outcome != escapement.Admitted || !v.Recorded {
			t.Fatalf("after its window: %v, %v", v.Outcome, err)
		}
		r.wantStatus(key(1), idempotency.StatusSucceeded)
		if _, err := r.gate.Do(t.Context(), request(2), func(context.Context, *escapement.Run) idempotency.Ending { panic("boom") }); err != nil {
			t.Fatal(err)
		}
		r.wantStatus(key(2), idempotency.StatusUnknown)
	})
}

// Fault 3: the error path must not mark a record that another attempt owns:
// a panic, or a time-out, of a former holder changes nothing.
func TestFault03ErrorPathIsFenced(t *testing.T) {
	for _, panics := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, escapement.Options{})
			healthy := r.another(escapement.Options{Records: r.store})
			r.net.set(frozen)
			req := retrying(1)
			req.Policy.Timeout = 30 * time.Second
			first := make(chan result, 1)
			go func() {
				v, err := r.gate.Do(context.Background(), req, func(context.Context, *escapement.Run) idempotency.Ending {
					<-time.After(40 * time.Second)
					if panics {
						panic("boom")
					}
					return idempotency.NotRun()
				})
				first <- result{v, err}
			}()
			pass(16 * time.Second)
			op := creating(0)
			if v, err := healthy.Do(t.Context(), req, op.run); err != nil || !v.Recorded {
				t.Fatalf("%+v, %v", v, err)
			}
			if got := <-first; got.err != nil || !got.v.Fenced || got.v.Outcome != escapement.Replayed || !got.v.TimedOut {
				t.Errorf("%+v", got)
			}
			pass(time.Minute)
			r.wantStatus(key(1), idempotency.StatusSucceeded)
		})
	}
}

// Fault 11: no record stays in progress for ever, whatever its holder does.
func TestFault11NothingStaysInProgress(t *testing.T) {
	for _, terms := range []func(uint64) escapement.Request{request, retrying} {
		for name, net := range map[string]func(string, int) fault{
			"hung": nil,
			"hung and cut off": func(op string, _ int) fault {
				if op == "extend" || op == "end" {
					return fault{before: errAway}
				}
				return fault{}
			},
		} {
			bubble(t, func(t *testing.T) {
				r := newRig(t, escapement.Options{})
				r.net.set(net)
				got := <-do(r.gate, terms(1), creating(2*time.Minute))
				if !got.v.TimedOut || got.v.Recorded != (net == nil) {
					t.Fatalf("%s: %+v", name, got)
				}
				pass(15 * time.Second)
				r.wantStatus(key(1), idempotency.StatusUnknown)
				pass(2 * time.Minute)
			})
		}
	}
}

// With terms that let others take over, a lost lease cancels the operation; with
// hold it goes on.
func TestLeaseLost(t *testing.T) {
	for _, hold := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, escapement.Options{})
			req := retrying(1)
			if hold {
				req = request(1)
			}
			var cause, held error
			start := time.Now()
			first := make(chan result, 1)
			go func() {
				v, err := r.gate.Do(context.Background(), req, func(ctx context.Context, run *escapement.Run) idempotency.Ending {
					select {
					case <-ctx.Done():
						cause = context.Cause(ctx)
					case <-time.After(30 * time.Second):
					}
					held = run.Hold(context.Background())
					return idempotency.UnknownEnding()
				})
				first <- result{v, err}
			}()
			pass(4 * time.Second)
			r.net.set(frozen)
			pass(12 * time.Second) // the lease is over
			if !hold {
				c := idempotency.Claim{Key: req.Key, Owner: idempotency.NewOwner(), Terms: req.Policy.Terms}
				if a, err := r.store.Reserve(t.Context(), c); err != nil || a.Outcome != idempotency.Started {
					t.Fatal(a, err)
				}
				r.net.set(nil)
			}
			got := <-first
			if hold {
				if cause != nil || held == nil || errors.Is(held, idempotency.ErrFenced) {
					t.Errorf("cause %v, held %v", cause, held)
				}
				return
			}
			if !errors.Is(cause, idempotency.ErrFenced) || !errors.Is(held, idempotency.ErrFenced) {
				t.Errorf("cause %v, held %v", cause, held)
			}
			within(t, "noticing it", time.Since(start), 16*time.Second, 20*time.Second)
			if !got.v.Fenced || got.v.Outcome != escapement.InProgress {
				t.Errorf("%+v", got)
			}
			if n := len(r.events.of(escapement.LeaseLost)); n != 1 {
				t.Errorf("%d events that the lease is lost, want 1", n)
			}
		})
	}
}

// With hold, only a person can take the key; the operation goes on, and its
// client is answered by what the person said.
func TestSettledByAnOperatorMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		r.net.set(frozen)
		req := request(1)
		req.Policy.Timeout, req.Policy.Terms.Quiet = 5*time.Minute, time.Minute
		op := creating(100 * time.Second)
		op.obeys = true
		first := do(r.gate, req, op)
		pass(76 * time.Second)
		rec, _ := r.record(key(1))
		settled := idempotency.Result{Class: idempotency.Succeeded, Status: 299}
		if err := r.store.Settle(t.Context(), key(1), rec.Revision, settled); err != nil {
			t.Fatal(err)
		}
		r.net.set(nil)
		got := <-first
		if !got.v.Fenced || got.v.Outcome != escapement.Replayed || got.v.Record.Result.Status != 299 || got.v.Ending.Kind != idempotency.EndedDone {
			t.Errorf("%+v", got)
		}
		if n := len(r.events.of(escapement.LeaseLost)); n != 1 {
			t.Errorf("%d events that the lease is lost, want 1", n)
		}
	})
}

// A key that was forgotten while its operation ran says nothing: unknown.
func TestForgottenMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		r.net.set(frozen)
		req := request(1)
		req.Policy.Timeout = 5 * time.Minute
		first := do(r.gate, req, creating(100*time.Second))
		pass(76 * time.Second)
		rec, _ := r.record(key(1))
		if err := r.store.Forget(t.Context(), key(1), rec.Revision); err != nil {
			t.Fatal(err)
		}
		got := <-first
		if !got.v.Fenced || got.v.Outcome != escapement.Unknown || got.v.Record.Key != key(1) {
			t.Errorf("%+v", got)
		}
	})
}

// F8: a reply to Reserve that comes when the lease may be over is not enough:
// the lease is extended before anything is sent.
func TestF8LateReplyExtendsFirst(t *testing.T) {
	for name, c := range map[string]struct {
		taken   bool // somebody took over meanwhile
		extend  fault
		runs    int
		err     error
		outcome escapement.Outcome
	}{
		"extended":      {false, fault{}, 1, nil, escapement.Admitted},
		"store away":    {false, fault{before: errAway}, 0, escapement.ErrRecords, 0},
		"always late":   {false, fault{slow: 20 * time.Second}, 0, escapement.ErrRecords, 0},
		"taken over":    {true, fault{}, 0, nil, escapement.InProgress},
		"over and away": {true, fault{after: errAway}, 0, escapement.ErrRecords, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, escapement.Options{RecordsDeadline: 30 * time.Second})
				r.net.set(func(op string, _ int) fault {
					switch op {
					case "reserve":
						return fault{slow: 16 * time.Second}
					case "extend":
						return c.extend
					}
					return fault{}
				})
				req := retrying(1)
				req.Policy.Timeout = 5 * time.Minute
				op := creating(0)
				first := do(r.gate, req, op)
				if c.taken {
					pass(15*time.Second + 1)
					claim := idempotency.Claim{Key: req.Key, Owner: idempotency.NewOwner(), Terms: req.Policy.Terms}
					if a, err := r.store.Reserve(t.Context(), claim); err != nil || a.Outcome != idempotency.Started {
						t.Fatal(a, err)
					}
				}
				got := <-first
				if !errors.Is(got.err, c.err) || got.v.Ran != (c.runs > 0) || got.err == nil && got.v.Outcome != c.outcome || got.v.Fenced != (c.taken && c.err == nil) {
					t.Errorf("%+v", got)
				}
				r.wantEffects(op, c.runs)
				if log := r.net.log(); log[1] != "extend" {
					t.Errorf("calls %v: want extend right after reserve", log)
				}
				if !c.taken && c.runs == 0 {
					r.wantStatus(key(1), idempotency.StatusFree)
				}
			})
		})
	}
}

// The function asks again before it sends, after long preparations.
func TestHoldInsideTheOperation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		r.net.set(frozen)
		v, err := r.gate.Do(t.Context(), request(1), func(ctx context.Context, run *escapement.Run) idempotency.Ending {
			<-time.After(10 * time.Second)
			calls := r.net.count("extend")
			if err := run.Hold(ctx); err != nil || r.net.count("extend") != calls {
				t.Errorf("the lease is alive: %v, %d calls", err, r.net.count("extend")-calls)
			}
			<-time.After(10 * time.Second)
			if err := run.Hold(ctx); !errors.Is(err, escapement.ErrRecords) || !errors.Is(err, errAway) {
				t.Errorf("the lease is over and the store away: %v", err)
			}
			r.net.set(nil)
			if err := run.Hold(ctx); err != nil {
				t.Errorf("the store is back: %v", err)
			}
			<-ctx.Done()
			<-time.After(time.Second)
			if err := run.Hold(context.Background()); !errors.Is(err, idempotency.ErrFenced) {
				t.Errorf("given up: %v", err)
			}
			return idempotency.NotRun()
		})
		if err != nil || !v.TimedOut {
			t.Fatalf("%+v, %v", v, err)
		}
		pass(2 * time.Second)
		r.wantStatus(key(1), idempotency.StatusFree)
	})
}

// locked is a store whose record a transaction may hold: then Extend returns the
// stored end, and lengthens nothing.
type locked struct {
	*memstore.Records
	held atomic.Bool
}

func (l *locked) Extend(ctx context.Context, r idempotency.Reservation, lease time.Duration) (time.Time, error) {
	if !l.held.Load() {
		return l.Records.Extend(ctx, r, lease)
	}
	rec, err := l.Lookup(ctx, r.Key)
	if err == nil && (rec.Owner != r.Owner || rec.Token != r.Token) {
		err = idempotency.ErrFenced
	}
	return rec.LeaseEnd, err
}

// F8: while a transaction of the operation's own holds the record, Extend
// succeeds and the lease does not grow. What the Gate takes for sure is never
// longer than the lease is at the store, whatever is lost on the way, whoever
// holds the record, and if the store's clock is set back.
func TestF8LeaseThatDoesNotGrow(t *testing.T) {
	type at map[int]func(l *locked, n *faulty, clock *time.Duration)
	hold := func(l *locked, _ *faulty, _ *time.Duration) { l.held.Store(true) }
	let := func(l *locked, _ *faulty, _ *time.Duration) { l.held.Store(false) }
	set := func(f fault) func(*locked, *faulty, *time.Duration) {
		return func(_ *locked, n *faulty, _ *time.Duration) {
			n.set(func(op string, _ int) fault {
				if op == "extend" {
					return f
				}
				return fault{}
			})
		}
	}
	step := func(d time.Duration) func(*locked, *faulty, *time.Duration) {
		return func(_ *locked, _ *faulty, clock *time.Duration) { *clock += d }
	}
	for _, c := range []struct {
		name    string
		at      at
		reserve fault
		fenceIn int    // at this second a transaction commits with nothing but FenceIn
		alive   string // by the second, from 0 on
	}{
		{"nothing", at{}, fault{}, 0, "111111111111111111111111111111111111111111111111"},
		{"held from the start", at{0: hold}, fault{}, 0, "111111111111111"},
		{"held after a renewal", at{6: hold}, fault{}, 0, "11111111111111111111"},
		{"held, then let go", at{6: hold, 26: let}, fault{}, 0, "11111111111111111111000000111111111111"},
		{"a reply lost, then held", at{4: set(fault{after: errAway}), 6: func(l *locked, n *faulty, _ *time.Duration) { hold(l, n, nil); n.set(nil) }}, fault{}, 0, "11111111111111111111"},
		{"late, then held", at{4: set(fault{late: 3 * time.Second}), 6: func(l *locked, n *faulty, _ *time.Duration) { hold(l, n, nil); n.set(nil) }}, fault{}, 0, "111111111111111"},
		{"the clock steps back, a little", at{7: step(-3 * time.Second)}, fault{}, 0, "111111111111111111111111111111111111111111111111"},
		{"the clock steps back, and it is held", at{7: step(-3 * time.Second), 12: hold}, fault{}, 0, "1111111111111111111111111"},
		{"the clock steps back by more than the lease", at{7: step(-20 * time.Second)}, fault{}, 0, "11111111111111111111000000111111111111111111"},
		{"the clock steps forward, then it is held", at{7: step(4 * time.Second), 12: hold}, fault{}, 0, "1111111111111111111111111"},
		{"a transaction that only fences, then held", at{7: hold}, fault{}, 6, "111111111111111111111"},
		{"the claim comes late", at{}, fault{late: 4 * time.Second}, 0, "111111111111111111111111111111111111111111111111"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var clock time.Duration
				mem, err := memstore.NewRecords(memstore.RecordsOptions{Now: func() time.Time { return time.Now().Add(clock) }})
				if err != nil {
					t.Fatal(err)
				}
				r := newRig(t, escapement.Options{})
				l := &locked{Records: mem}
				r.net.Store = l
				r.net.set(func(op string, _ int) fault {
					if op == "reserve" {
						return c.reserve
					}
					return fault{}
				})
				req := retrying(1)
				v, err := r.gate.Do(t.Context(), req, func(_ context.Context, a *escapement.Run) idempotency.Ending {
					r.net.set(nil)
					for second := range 55 {
						if f := c.at[second]; f != nil {
							f(l, r.net, &clock)
						}
						if second > 0 && second == c.fenceIn {
							if err := a.FenceIn(context.Background(), mem); err != nil {
								t.Error(err)
							}
						}
						err := a.Hold(context.Background())
						rec, lookErr := mem.Lookup(context.Background(), req.Key)
						if lookErr != nil {
							t.Fatal(lookErr)
						}
						if err == nil && !rec.AsOf.Before(rec.LeaseEnd) {
							t.Errorf("after %d s: believed alive, and over for %v", second, rec.AsOf.Sub(rec.LeaseEnd))
						}
						if second < len(c.alive) {
							if want := c.alive[second] == '1'; want != (err == nil) {
								t.Errorf("after %d s: %v, want alive: %v", second, err, want)
							}
						}
						if err != nil && !errors.Is(err, escapement.ErrRecords) {
							t.Errorf("after %d s: %v", second, err)
						}
						<-time.After(time.Second)
					}
					return idempotency.Done(created)
				})
				if err != nil || !v.Recorded {
					t.Errorf("%+v, %v", v, err)
				}
			})
		})
	}
}

// Where a renewal has lengthened nothing, the next one comes sooner: the lease is
// longer again soon after the transaction is over.
func TestLeaseAfterATransaction(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		l := &locked{Records: r.store}
		r.net.Store = l
		v, err := r.gate.Do(t.Context(), retrying(1), func(context.Context, *escapement.Run) idempotency.Ending {
			<-time.After(6 * time.Second)
			l.held.Store(true)
			<-time.After(10 * time.Second)
			l.held.Store(false)
			<-time.After(3 * time.Second)
			if rec, _ := r.record(key(1)); rec.LeaseEnd.Sub(rec.AsOf) < 10*time.Second {
				t.Errorf("3 s after the transaction the lease lasts for %v", rec.LeaseEnd.Sub(rec.AsOf))
			}
			return idempotency.Done(created)
		})
		if err != nil || !v.Recorded {
			t.Errorf("%+v, %v", v, err)
		}
	})
}
