package escapement_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

func charge(name string, kind ratelimit.Kind, quota int64) ratelimit.Charge {
	return ratelimit.Charge{
		Rule:    ratelimit.Rule{Name: name, Quota: quota, Window: time.Hour},
		Subject: "s", Cost: 1, Kind: kind,
	}
}

// left is what the rule of c would still admit.
func (r *rig) left(c ratelimit.Charge) int64 {
	r.Helper()
	c.Cost = 0
	d, err := r.limits.Take(context.Background(), []ratelimit.Charge{c})
	if err != nil {
		r.Fatal(err)
	}
	return d.Levels[0].Remaining
}

// A1: an outcome other than Started charges only rules of the kind requests.
func TestA1OnlyWhatRunsIsChargedAsExecution(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		each, ran := charge("each", ratelimit.Requests, 100), charge("ran", ratelimit.Executions, 100)
		req := request(1)
		req.Charges = []ratelimit.Charge{ran, each}
		req.Prints = []idempotency.Fingerprint{{Tag: "a"}}
		op := creating(time.Second)

		first := do(r.gate, req, op)
		pass(time.Millisecond)
		second, err := r.gate.Do(t.Context(), req, op.run)
		if err != nil || second.Outcome != escapement.InProgress {
			t.Fatalf("while it runs: %v, %v", second.Outcome, err)
		}
		if got := (<-first).v; got.Outcome != escapement.Admitted || len(got.Decision.Levels) != 2 ||
			got.Decision.Levels[0].Rule.Name != "ran" || got.Decision.Levels[1].Rule.Name != "each" {
			t.Fatalf("first: %+v", got)
		}
		third, err := r.gate.Do(t.Context(), req, op.run)
		if err != nil || third.Outcome != escapement.Replayed {
			t.Fatalf("after it: %v, %v", third.Outcome, err)
		}
		other := req
		other.Prints = []idempotency.Fingerprint{{Tag: "a", Sum: [32]byte{1}}}
		fourth, err := r.gate.Do(t.Context(), other, op.run)
		if err != nil || fourth.Outcome != escapement.Mismatched {
			t.Fatalf("another request: %v, %v", fourth.Outcome, err)
		}
		if a, b := r.left(each), r.left(ran); a != 96 || b != 99 {
			t.Errorf("left: %d of requests and %d of executions, want 96 and 99", a, b)
		}
		r.wantEffects(op, 1)
	})
}

// A2: Limited leaves no reservation.
func TestA2LimitedLeavesNoReservation(t *testing.T) {
	for _, away := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, escapement.Options{})
			ran := charge("ran", ratelimit.Executions, 1)
			op := creating(0)
			req := request(1)
			req.Charges = []ratelimit.Charge{ran}
			if v, err := r.gate.Do(t.Context(), req, op.run); err != nil || v.Outcome != escapement.Admitted {
				t.Fatalf("first: %v, %v", v.Outcome, err)
			}
			if away {
				r.net.set(func(op string, n int) fault {
					if op == "end" && n < 3 {
						return fault{before: errAway}
					}
					return fault{}
				})
			}
			stop := r.work(r.gate)
			req.Key = key(2)
			v, err := r.gate.Do(t.Context(), req, op.run)
			if err != nil || v.Outcome != escapement.Limited || v.Ran || v.Decision.Allowed {
				t.Fatalf("second: %+v, %v", v, err)
			}
			if wait, ok := v.Decision.RetryAfter(); !ok || wait <= 0 {
				t.Errorf("retry after %v, %v", wait, ok)
			}
			pass(5 * time.Second)
			r.wantStatus(key(2), idempotency.StatusFree)
			r.wantEffects(op, 1)
			stop()
		})
	}
}

func TestRequestsLimitBeforeTheClaim(t *testing.T) {
	paths(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		req := request(1)
		req.Charges = []ratelimit.Charge{charge("each", ratelimit.Requests, 1), charge("ran", ratelimit.Executions, 9)}
		op := creating(0)
		if v, err := r.gate.Do(t.Context(), req, op.run); err != nil || v.Outcome != escapement.Admitted {
			t.Fatalf("first: %v, %v", v.Outcome, err)
		}
		v, err := r.gate.Do(t.Context(), req, op.run)
		if err != nil || v.Outcome != escapement.Limited || len(v.Decision.Levels) != 1 {
			t.Fatalf("second: %+v, %v", v, err)
		}
		if got := r.net.count("reserve"); got != 1 {
			t.Errorf("%d claims, want 1", got)
		}
	})
}

func TestUnkeyedTakesBothKindsInOrder(t *testing.T) {
	r := newRig(t, escapement.Options{})
	a, b := charge("ran", ratelimit.Executions, 1), charge("each", ratelimit.Requests, 5)
	req := escapement.Request{Charges: []ratelimit.Charge{a, b}}
	op := creating(0)
	v, err := r.gate.Do(t.Context(), req, func(ctx context.Context, run *escapement.Run) idempotency.Ending {
		if d := run.Decision(); !d.Allowed || len(d.Levels) != 2 {
			t.Errorf("the attempt's decision: %+v", d)
		}
		return op.run(ctx, run)
	})
	if err != nil || v.Outcome != escapement.Admitted || !v.Ran || v.Recorded || v.Decision.Levels[0].Rule.Name != "ran" {
		t.Fatalf("first: %+v, %v", v, err)
	}
	if v, err = r.gate.Do(t.Context(), req, op.run); err != nil || v.Outcome != escapement.Limited || v.Ran {
		t.Fatalf("second: %+v, %v", v, err)
	}
	if got := r.left(b); got != 4 {
		t.Errorf("%d left of the second rule, want 4: all or none", got)
	}
	r.wantEffects(op, 1)
}

// away is a limiter that cannot be reached, for some kinds of charges.
type away struct {
	ratelimit.Store
	kind     ratelimit.Kind
	returned int
}

func (a *away) Take(ctx context.Context, c []ratelimit.Charge) (ratelimit.Decision, error) {
	if c[0].Kind != a.kind {
		return a.Store.Take(ctx, c)
	}
	<-ctx.Done() // its deadline
	return ratelimit.Decision{}, ctx.Err()
}

func (a *away) Return(ctx context.Context, t *ratelimit.Taken) error {
	a.returned++
	return a.Store.Return(ctx, t)
}

func TestLimiterAway(t *testing.T) {
	for _, kind := range []ratelimit.Kind{ratelimit.Requests, ratelimit.Executions} {
		for _, keyed := range []bool{true, false} {
			bubble(t, func(t *testing.T) {
				r := newRig(t, escapement.Options{})
				g := r.another(escapement.Options{Limits: &away{Store: r.limits, kind: kind}})
				req := request(1)
				req.Charges = []ratelimit.Charge{charge("x", kind, 5)}
				if !keyed {
					req.Key = idempotency.Key{}
				}
				op := creating(0)
				start := time.Now()
				_, err := g.Do(t.Context(), req, op.run)
				if !errors.Is(err, escapement.ErrLimits) || !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("%v keyed=%v: %v", kind, keyed, err)
				}
				within(t, "a limiter that is away", time.Since(start), time.Second, time.Second)
				r.wantEffects(op, 0)
				r.wantStatus(key(1), idempotency.StatusFree)
			})
		}
	}
}

func TestLimit(t *testing.T) {
	r := newRig(t, escapement.Options{})
	c := charge("each", ratelimit.Requests, 1)
	for i, want := range []bool{true, false} {
		d, err := r.gate.Limit(t.Context(), []ratelimit.Charge{c})
		if err != nil || d.Allowed != want {
			t.Fatalf("Limit %d: %+v, %v", i, d, err)
		}
	}
	if d, err := r.gate.Limit(t.Context(), nil); err != nil || !d.Allowed {
		t.Errorf("no charges: %+v, %v", d, err)
	}
	c.Cost = -1
	if _, err := r.gate.Limit(t.Context(), []ratelimit.Charge{c}); err == nil || errors.Is(err, escapement.ErrLimits) {
		t.Errorf("a negative cost: %v", err)
	}
	if err := r.gate.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.gate.Limit(t.Context(), nil); !errors.Is(err, escapement.ErrClosed) {
		t.Errorf("after Shutdown: %v", err)
	}
}

// What was charged for an operation that was never called is given back.
func TestChargesOfWhatDidNotRunAreReturned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{RecordsDeadline: time.Minute})
		lim := &away{Store: r.limits, kind: 99}
		g := r.another(escapement.Options{Limits: lim, RecordsDeadline: time.Minute})
		ran := charge("ran", ratelimit.Executions, 5)
		req := request(1)
		req.Charges = []ratelimit.Charge{ran}
		r.net.set(func(op string, _ int) fault {
			switch op {
			case "reserve":
				return fault{slow: 20 * time.Second}
			case "extend":
				return fault{before: errAway}
			}
			return fault{}
		})
		op := creating(0)
		if _, err := g.Do(t.Context(), req, op.run); !errors.Is(err, escapement.ErrRecords) {
			t.Fatal(err)
		}
		if got := r.left(ran); got != 5 || lim.returned != 1 {
			t.Errorf("%d left of 5, %d returns", got, lim.returned)
		}
		r.wantEffects(op, 0)
		r.wantStatus(key(1), idempotency.StatusFree)
	})
}
