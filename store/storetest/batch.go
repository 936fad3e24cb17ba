package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// batchCases test F5 to F7: calls that a store gathers stay apart.
var batchCases = []Case{
	recordCase("F6OneBadOperationNeverFailsTheOthers", nil, func(e *env) {
		const n = 24
		held := make([]idempotency.Reservation, n)
		for i := range n {
			held[i] = e.start(claim(testKey(1000+i), idempotency.Hold))
		}
		done := claim(testKey(5000), idempotency.Hold)
		e.done(e.start(done), ok("fine"))
		ctx := e.ctx()
		gone, cancel := context.WithCancel(ctx)
		cancel()
		kinds := []struct {
			name string
			call func(i int) error
			want func(error) bool
		}{
			{"a Reserve", func(i int) error {
				return outcome(e.s.Reserve(ctx, claim(testKey(i), idempotency.Hold)))(idempotency.Started)
			}, isNil},
			{"an End", func(i int) error { return e.s.End(ctx, held[i], idempotency.Done(ok("x"))) }, isNil},
			{"a replay", func(int) error { return outcome(e.s.Reserve(ctx, again(done)))(idempotency.Replayed) }, isNil},
			{"an End of a stranger", func(i int) error {
				r := held[i]
				r.Owner = idempotency.NewOwner()
				return e.s.End(ctx, r, idempotency.Done(ok("stolen")))
			}, func(err error) bool { return errors.Is(err, idempotency.ErrFenced) }},
			{"a mismatch", func(int) error {
				c := again(done)
				c.Prints = []idempotency.Fingerprint{printOf("v1", "another request")}
				return outcome(e.s.Reserve(ctx, c))(idempotency.Mismatched)
			}, isNil},
			{"an invalid claim", func(int) error { _, err := e.s.Reserve(ctx, idempotency.Claim{}); return err }, isNotNil},
			{"an invalid ending", func(i int) error { return e.s.End(ctx, held[i], idempotency.Done(idempotency.Result{})) }, isNotNil},
			{"a cancelled Reserve", func(i int) error {
				_, _ = e.s.Reserve(gone, claim(testKey(2000+i), idempotency.Hold))
				return nil
			}, isNil},
		}
		for i, err := range together(n*len(kinds), func(i int) error { return kinds[i%len(kinds)].call(i / len(kinds)) }) {
			if k := kinds[i%len(kinds)]; !k.want(err) {
				e.Fatalf("%s among others returns %v", k.name, err)
			}
		}
		for i := range n {
			if got := e.lookup(held[i].Key); string(got.Result.Payload) != "x" {
				e.Fatalf("the record that was ended among others is %v", show(got))
			}
		}
	}),
	recordCase("F6CancelledCallsAreNotAppliedOrVoidable", nil, func(e *env) {
		const n = 60
		claims := make([]idempotency.Claim, n)
		answers := make([]idempotency.Answer, n)
		for i := range n {
			claims[i] = claim(testKey(i), idempotency.Hold)
		}
		ctx := e.ctx()
		errs := together(n, func(i int) error {
			mine, cancel := context.WithCancel(ctx)
			defer cancel()
			switch i % 3 {
			case 0:
				cancel()
			case 1:
				go cancel() // before, while or after it is under way
			}
			var err error
			answers[i], err = e.s.Reserve(mine, claims[i])
			return err
		})
		for i, err := range errs {
			switch {
			case err == nil && answers[i].Outcome != idempotency.Started:
				e.Fatalf("the only claim for its key is %v", answers[i].Outcome)
			case err != nil && i%3 == 2:
				e.Fatalf("a claim that nobody cancelled: %v", err)
			case err != nil:
				e.void(claims[i].Key, claims[i].Owner)
				e.start(again(claims[i]))
				e.reserve(claims[i], idempotency.Refused)
			default:
				e.reserve(again(claims[i]), idempotency.InProgress)
				e.done(answers[i].Reservation, ok("x"))
			}
		}
	}),
	recordCase("F6CancelledEndHappenedOrDidNot", nil, func(e *env) {
		const n = 30
		held := make([]idempotency.Reservation, n)
		for i := range n {
			held[i] = e.start(claim(testKey(i), idempotency.Hold))
		}
		ctx := e.ctx()
		errs := together(n, func(i int) error {
			mine, cancel := context.WithCancel(ctx)
			defer cancel()
			go cancel()
			return e.s.End(mine, held[i], idempotency.Done(ok("x")))
		})
		for i, err := range errs {
			rec := e.lookup(held[i].Key)
			if err == nil && rec.State != idempotency.Ended {
				e.Fatalf("an End that returned nil left the record %v", show(rec))
			}
			e.done(held[i], ok("x")) // may be repeated, whatever came of it (F2)
			if rec = e.lookup(held[i].Key); string(rec.Result.Payload) != "x" {
				e.Fatalf("the record is %v", show(rec))
			}
		}
	}),
	recordCase("F6StalledStoreLosesNothing", func(h Harness) bool { return h.Faults.Stall != nil }, func(e *env) {
		const n = 12
		held := make([]idempotency.Reservation, n)
		for i := range n {
			held[i] = e.start(claim(testKey(1000+i), idempotency.Hold))
		}
		claims := make([]idempotency.Claim, n)
		for i := range n {
			claims[i] = claim(testKey(i), idempotency.Hold)
		}
		resume := e.h.Faults.Stall(e, e.s)
		ctx := e.ctx()
		short, cancel := context.WithCancel(ctx)
		returned := make(chan struct{}, 3*n)
		finish := make(chan []error, 1)
		answers := make([]idempotency.Answer, n)
		go func() {
			finish <- together(3*n, func(i int) (err error) {
				defer func() { returned <- struct{}{} }()
				switch i % 3 {
				case 0:
					return e.s.End(ctx, held[i/3], idempotency.Done(ok("x")))
				case 1: // given up while the store does not answer
					_, err = e.s.Reserve(short, claims[i/3])
					return err
				}
				answers[i/3], err = e.s.Reserve(ctx, claim(testKey(2000+i), idempotency.Hold))
				return err
			})
		}()
		cancel()
		for range n { // those that were given up return, though the store is stalled
			select {
			case <-returned:
			case <-time.After(patience):
				resume()
				e.Fatal("a Reserve whose context ended does not return while the store is stalled")
			}
		}
		resume()
		for i, err := range <-finish {
			switch i % 3 {
			case 0, 2:
				if err != nil {
					e.Fatalf("a call that nobody cancelled: %v", err)
				}
			case 1:
				if err == nil {
					continue
				}
				e.void(claims[i/3].Key, claims[i/3].Owner)
				e.reserve(claims[i/3], idempotency.Refused)
				e.start(again(claims[i/3]))
			}
		}
		for i := range n {
			if got := e.lookup(held[i].Key); string(got.Result.Payload) != "x" {
				e.Fatalf("the record that was ended is %v", show(got))
			}
			if answers[i].Outcome != idempotency.Started {
				e.Fatalf("the only claim for its key is %v", answers[i].Outcome)
			}
		}
	}),
	recordCase("F5ExtendIsNotOvertakenByTheNextClaim", nil, func(e *env) {
		// The lease is over. Owner and next attempt come at once: one of them
		// has the key, never both and never neither.
		for i := range e.h.times(20) {
			c := claim(testKey(i), idempotency.Retry)
			c.Terms.Quiet = 0
			r := e.start(c)
			e.clock.Set(r.LeaseEnd)
			next := again(c)
			var a idempotency.Answer
			ctx := e.ctx()
			errs := together(2, func(i int) (err error) {
				if i == 0 {
					_, err = e.s.Extend(ctx, r, lease)
					return err
				}
				a, err = e.s.Reserve(ctx, next)
				return err
			})
			extended, started := errs[0] == nil, a.Outcome == idempotency.Started
			if errs[1] != nil || errs[0] != nil && !errors.Is(errs[0], idempotency.ErrFenced) || extended == started {
				e.Fatalf("Extend returns %v, the next Reserve is %v, %v", errs[0], a.Outcome, errs[1])
			}
		}
	}),
	recordCase("F7NobodyWaitsForAUsersTransaction", func(h Harness) bool { return h.Caps.EndInTx != nil }, func(e *env) {
		for i, commit := range []bool{true, false} {
			c := claim(testKey(10*i), idempotency.Hold)
			r := e.start(c)
			other := e.start(claim(testKey(10*i+1), idempotency.Hold))
			finish := e.h.Caps.EndInTx(e, e.s, r, idempotency.Done(ok("in a transaction")))
			e.reserve(again(c), idempotency.InProgress)
			if got := e.lookup(c.Key).State; got != idempotency.Held {
				e.Fatalf("what a transaction did not commit is seen: the record is %v", got)
			}
			if _, err := e.s.Extend(e.ctx(), r, lease); err != nil {
				e.Fatalf("Extend while a transaction holds the record: %v", err)
			}
			e.done(other, ok("fine"))
			e.start(claim(testKey(10*i+2), idempotency.Hold))
			finish(commit)
			want := idempotency.Replayed
			if !commit {
				want = idempotency.InProgress
			}
			e.reserve(again(c), want)
		}
	}),
}

func isNil(err error) bool    { return err == nil }
func isNotNil(err error) bool { return err != nil }

// outcome returns a function that turns an answer into an error unless its
// outcome is the wanted one.
func outcome(a idempotency.Answer, err error) func(want idempotency.Outcome) error {
	return func(want idempotency.Outcome) error {
		if err == nil && a.Outcome != want {
			return fmt.Errorf("the outcome is %v, want %v", a.Outcome, want)
		}
		return err
	}
}
