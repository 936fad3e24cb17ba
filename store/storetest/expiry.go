package storetest

import (
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// expiryCases test E1 and E2.
var expiryCases = []Case{
	recordCase("E1SweepRemovesOnlyWhatItMay", needsKeeper, func(e *env) {
		live := claim(testKey(1), idempotency.Retry)
		live.Terms.Lease = 1000 * time.Hour
		e.start(live)
		fresh := claim(testKey(2), idempotency.Hold)
		fresh.Terms.Retention = 1000 * time.Hour
		e.done(e.start(fresh), ok("fresh"))
		window := claim(testKey(3), idempotency.Hold)
		e.done(e.start(window), later("busy", 1000*time.Hour))
		var unknown []idempotency.Claim
		for i, u := range []idempotency.OnUnknown{idempotency.Hold, idempotency.Probe, idempotency.Fail} {
			c := claim(testKey(10+i), u)
			e.end(e.start(c), idempotency.UnknownEnding())
			unknown = append(unknown, c)
		}
		gone := claim(testKey(20), idempotency.Hold)
		e.done(e.start(gone), ok("gone"))
		stale := claim(testKey(21), idempotency.Retry)
		e.end(e.start(stale), idempotency.UnknownEnding())
		e.clock.Advance(retention)
		e.sweepAll()
		e.reserve(again(live), idempotency.InProgress)
		e.reserve(again(fresh), idempotency.Replayed)
		e.reserve(again(window), idempotency.Replayed)
		for _, c := range unknown {
			if rec := e.lookup(c.Key); rec.Status() != idempotency.StatusUnknown {
				e.Fatalf("after a sweep the unknown record is %v", show(rec))
			}
		}
		e.reserve(again(unknown[0]), idempotency.Unknown)
		e.free(gone.Key)
		e.free(stale.Key)
		e.start(again(gone))
	}),
	recordCase("E1SweepNotAMicrosecondEarly", needsKeeper, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.done(e.start(c), ok("x"))
		e.clock.Advance(retention - tick)
		if n := e.sweepAll(); n != 0 {
			e.Fatalf("Sweep removed %d records 1µs before their time", n)
		}
		e.reserve(again(c), idempotency.Replayed)
		u := claim(testKey(2), idempotency.Retry)
		r := e.start(u)
		e.clock.Set(r.LeaseEnd.Add(retention - tick))
		e.sweepAll()
		if got := e.lookup(u.Key).Status(); got != idempotency.StatusUnknown {
			e.Fatalf("the status is %q", got)
		}
	}),
	recordCase("E1SweepKeepsItsLimit", needsKeeper, func(e *env) {
		const n = 25
		for i := range n {
			e.done(e.start(claim(testKey(i), idempotency.Hold)), ok("x"))
		}
		e.clock.Advance(retention)
		for _, limit := range []int{0, 1, 7} {
			e.sweep(limit) // checks the bound
		}
		e.sweepAll()
		for i := range n {
			e.free(testKey(i))
		}
	}),
	recordCase("E1SweepShrinksAndRemembers", needsKeeper, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		c.Terms.Remember = 24 * time.Hour
		e.done(e.start(c), ok("x"))
		e.clock.Advance(retention)
		e.sweepAll()
		e.sweepAll()
		e.reserve(again(c), idempotency.Archived)
		e.clock.Advance(24*time.Hour - tick)
		e.sweepAll()
		a := e.reserve(again(c), idempotency.Archived)
		if a.Record.Result.Class != idempotency.Succeeded || a.Record.Result.Status != 201 {
			e.Fatalf("the archived result is %s", showResult(a.Record.Result))
		}
		d := again(c)
		d.Prints = []idempotency.Fingerprint{printOf("v1", "another request")}
		e.reserve(d, idempotency.Mismatched)
		e.clock.Advance(tick)
		e.sweepAll()
		e.free(c.Key)
		e.start(d)
	}),
	recordCase("E1ConcurrentSweepsAgree", needsKeeper, func(e *env) {
		const n = 60
		for i := range n {
			e.done(e.start(claim(testKey(i), idempotency.Hold)), ok("x"))
		}
		keep := claim(testKey(n), idempotency.Hold)
		keep.Terms.Retention = 1000 * time.Hour
		e.done(e.start(keep), ok("kept"))
		e.clock.Advance(retention)
		errs := together(4, func(int) error {
			for range n {
				removed, err := e.keeper().Sweep(e.ctx(), 5)
				if err != nil || removed == 0 {
					return err
				}
			}
			return nil
		})
		for _, err := range errs {
			if err != nil {
				e.Fatalf("a concurrent Sweep: %v", err)
			}
		}
		e.sweepAll()
		e.reserve(again(keep), idempotency.Replayed)
	}),
	recordCase("E2ExpiryIsDecidedWhenRead", nil, func(e *env) {
		// Nothing is swept here: the expired record is only looked at.
		c := claim(testKey(1), idempotency.Hold)
		e.done(e.start(c), ok("x"))
		end := e.clock.Now()
		e.clock.Set(end.Add(retention))
		e.free(c.Key)
		e.clock.Set(end.Add(retention - tick))
		e.reserve(again(c), idempotency.Replayed)
	}),
	recordCase("E2ExpiredRecordsAreNotListed", needsKeeper, func(e *env) {
		e.done(e.start(claim(testKey(1), idempotency.Hold)), ok("x"))
		long := claim(testKey(2), idempotency.Hold)
		long.Terms.Retention = 2 * retention
		e.done(e.start(long), ok("x"))
		e.void(testKey(3), idempotency.NewOwner())
		e.clock.Advance(retention)
		got := e.list(idempotency.Filter{})
		if len(got) != 1 || got[0].Key != long.Key {
			e.Fatalf("the list has %d records, want the one that has not expired", len(got))
		}
	}),
}
