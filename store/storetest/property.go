package storetest

import (
	"bytes"
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// propertyCases test what can be said without an oracle.
var propertyCases = []Case{
	recordCase("PropertyOneOfFiftyStarts", nil, func(e *env) {
		for round := range e.h.times(6) {
			c := claim(testKey(round), idempotency.Hold)
			won := race(e, 50, func(int) idempotency.Claim { return again(c) })
			if len(won) != 1 {
				e.Fatalf("%d of 50 concurrent claims started", len(won))
			}
			want := fmt.Sprintf("the answer %d", round)
			e.done(won[0], ok(want))
			ctx := e.ctx()
			for _, err := range together(50, func(int) error {
				a, err := e.s.Reserve(ctx, again(c))
				if err == nil && (a.Outcome != idempotency.Replayed || !bytes.Equal(a.Record.Result.Payload, []byte(want))) {
					err = fmt.Errorf("it is %v with %s", a.Outcome, showResult(a.Record.Result))
				}
				return err
			}) {
				if err != nil {
					e.Fatalf("a concurrent replay: %v", err)
				}
			}
		}
	}),
	recordCase("PropertyOneOfFiftyRunsAgain", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		for range e.h.times(4) {
			e.done(r, later("busy", time.Second))
			e.clock.Advance(time.Second)
			won := race(e, 50, func(int) idempotency.Claim { return again(c) })
			if len(won) != 1 || won[0].Token <= r.Token {
				e.Fatalf("%d of 50 claims started after the window: %+v", len(won), won)
			}
			r = won[0]
		}
	}),
	recordCase("PropertyManyKeysAtOnce", nil, func(e *env) {
		const callers, each = 64, 8
		ctx := e.ctx()
		for _, err := range together(callers, func(i int) error {
			for j := range each {
				c := claim(testKey(i*each+j), idempotency.Hold)
				a, err := e.s.Reserve(ctx, c)
				if err := outcome(a, err)(idempotency.Started); err != nil {
					return err
				}
				if err := e.s.End(ctx, a.Reservation, idempotency.Done(ok(c.Key.ID.String()))); err != nil {
					return err
				}
			}
			return nil
		}) {
			if err != nil {
				e.Fatalf("one of many: %v", err)
			}
		}
		for i := range callers * each {
			k := testKey(i)
			if got := e.lookup(k).Result.Payload; string(got) != k.ID.String() {
				e.Fatalf("the record of %v has the payload %s", k.ID, showBytes(got))
			}
		}
	}),
	recordCase("PropertyOneEffectUnderTakeovers", nil, func(e *env) {
		// Ten attempts at once, again and again, each ending as it likes: at
		// any time at most one reservation can be ended, and in the end all
		// see one result.
		c := claim(testKey(1), idempotency.Retry)
		c.Terms.Quiet = 0
		var stale []idempotency.Reservation
		for range e.h.times(10) {
			won := race(e, 10, func(int) idempotency.Claim { return again(c) })
			if len(won) != 1 {
				e.Fatalf("%d of 10 claims took over", len(won))
			}
			for _, old := range stale {
				if old.Token >= won[0].Token {
					e.Fatalf("the token %d comes after %d", won[0].Token, old.Token)
				}
				e.isErr("End of a stale reservation", e.s.End(e.ctx(), old, idempotency.Done(ok("stale"))), idempotency.ErrFenced)
			}
			stale = append(stale, won[0])
			e.clock.Set(won[0].LeaseEnd)
		}
		last := stale[len(stale)-1]
		e.done(last, ok("the one"))
		if a := e.reserve(again(c), idempotency.Replayed); string(a.Record.Result.Payload) != "the one" {
			e.Fatalf("the replay is %s", showResult(a.Record.Result))
		}
	}),
}
