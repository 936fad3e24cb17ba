package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// faultCases test contexts that end, replies that are lost, and servers that
// restart.
var faultCases = []Case{
	recordCase("R10CancelledReserveLosesNoKey", nil, func(e *env) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		c := claim(testKey(1), idempotency.Hold)
		a, err := e.s.Reserve(ctx, c)
		if err == nil {
			if a.Outcome != idempotency.Started {
				e.Fatalf("the only claim for its key is %v", a.Outcome)
			}
			e.reserve(again(c), idempotency.InProgress)
		}
		e.void(c.Key, c.Owner)
		e.free(c.Key)
		e.reserve(c, idempotency.Refused)
		e.start(again(c))
	}),
	recordCase("R10CallsWithAnEndedContextErrOrDecide", nil, func(e *env) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		if _, err := e.s.Extend(ctx, r, time.Hour); isAny(err, idempotency.ErrFenced, idempotency.ErrNotFound) {
			e.Fatalf("Extend with an ended context decides wrongly: %v", err)
		}
		if err := e.s.End(ctx, r, idempotency.Done(ok("x"))); isAny(err, idempotency.ErrFenced, idempotency.ErrNotFound) {
			e.Fatalf("End with an ended context decides wrongly: %v", err)
		}
		if _, err := e.s.Lookup(ctx, c.Key); errors.Is(err, idempotency.ErrNotFound) {
			e.Fatal("Lookup with an ended context says that there is no record")
		}
		e.done(r, ok("x"))
		e.reserve(again(c), idempotency.Replayed)
		if err := e.s.Void(ctx, testKey(2), idempotency.NewOwner()); isAny(err, idempotency.ErrFenced, idempotency.ErrNotFound) {
			e.Fatalf("Void with an ended context decides wrongly: %v", err)
		}
	}),
	recordCase("R10CancelledInFlightLosesNoKey", nil, func(e *env) {
		for i := range e.h.times(100) {
			c := claim(testKey(i), idempotency.Hold)
			ctx, cancel := context.WithCancel(context.Background())
			go cancel()
			a, err := e.s.Reserve(ctx, c)
			cancel()
			if err == nil {
				if a.Outcome != idempotency.Started {
					e.Fatalf("the only claim for its key is %v", a.Outcome)
				}
				e.done(a.Reservation, ok("x"))
				continue
			}
			e.void(c.Key, c.Owner)
			next := e.start(again(c))
			e.reserve(c, idempotency.Refused)
			e.done(next, ok("x"))
		}
	}),
	recordCase("R12VoidAndReserveAtOnce", nil, func(e *env) {
		// Whichever comes first, the owner ends up with nothing.
		for i := range e.h.times(50) {
			c := claim(testKey(i), idempotency.Hold)
			ctx := e.ctx()
			for _, err := range together(2, func(j int) error {
				if j == 0 {
					return e.s.Void(ctx, c.Key, c.Owner)
				}
				a, err := e.s.Reserve(ctx, c)
				if err == nil && a.Outcome != idempotency.Refused {
					err = outcome(a, err)(idempotency.Started)
				}
				return err
			}) {
				if err != nil {
					e.Fatalf("Void and Reserve at once: %v", err)
				}
			}
			e.free(c.Key)
			e.reserve(c, idempotency.Refused)
			e.start(again(c))
		}
	}),
	recordCase("R10LostReplyIsVoidable", func(h Harness) bool { return h.Faults.LoseReply != nil }, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.h.Faults.LoseReply(e, e.s)
		if a, err := e.s.Reserve(e.ctx(), c); err == nil {
			if a.Outcome != idempotency.Started || !a.Reservation.Repeated {
				e.Fatalf("a Reserve whose reply was lost is %v, %+v: want an error, or a reservation marked as repeated", a.Outcome, a.Reservation)
			}
		}
		e.void(c.Key, c.Owner)
		e.free(c.Key)
		e.reserve(c, idempotency.Refused)
		e.start(again(c))
	}),
	recordCase("R10RestartLosesNothing", func(h Harness) bool { return h.Faults.Restart != nil }, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.done(e.start(c), ok("kept"))
		held := claim(testKey(2), idempotency.Hold)
		r := e.start(held)
		gone := claim(testKey(3), idempotency.Hold)
		e.void(gone.Key, gone.Owner)
		e.h.Faults.Restart(e, e.s)
		begin := time.Now()
		for {
			_, err := e.s.Lookup(e.ctx(), c.Key)
			if err == nil {
				break
			}
			if errors.Is(err, idempotency.ErrNotFound) {
				e.Fatal("a done record is gone after a restart")
			}
			if time.Since(begin) > patience {
				e.Fatalf("after a restart the store does not come back: %v", err)
			}
		}
		if a := e.reserve(again(c), idempotency.Replayed); string(a.Record.Result.Payload) != "kept" {
			e.Fatalf("the replay is %s", showResult(a.Record.Result))
		}
		e.reserve(again(held), idempotency.InProgress)
		e.reserve(gone, idempotency.Refused)
		e.done(r, ok("after the restart"))
	}),
}
