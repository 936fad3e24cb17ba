package storetest

import (
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// fenceCases test F1 to F4.
var fenceCases = []Case{
	recordCase("F1OwnerAndTokenJudge", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		good := e.start(c)
		e.clock.Advance(time.Second)
		e.refuses(c.Key, wrong(good)...)
		e.done(good, ok("fine"))
	}),
	recordCase("F1StepsAreFencedToo", needsSteps, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		good := e.start(c)
		for _, bad := range wrong(good) {
			e.fenced("SaveStep", c.Key, func() error {
				return e.steps().SaveStep(e.ctx(), bad, idempotency.Step{Name: "pay"})
			})
		}
		e.done(good, ok("fine"))
		e.fenced("SaveStep after the end", c.Key, func() error {
			return e.steps().SaveStep(e.ctx(), good, idempotency.Step{Name: "pay"})
		})
	}),
	recordCase("F1TheAttemptThatWasTakenOverIsFenced", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Retry)
		first := e.start(c)
		e.clock.Set(first.LeaseEnd.Add(quiet))
		second := e.start(again(c))
		e.refuses(c.Key, first)
		e.done(second, ok("fine"))
		e.refuses(c.Key, first)
	}),
	recordCase("F1FreeKeyHasNoOwner", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.end(r, idempotency.NotRun())
		e.fenced("Extend", c.Key, func() error { _, err := e.s.Extend(e.ctx(), r, lease); return err })
		e.fenced("Done", c.Key, func() error { return e.s.End(e.ctx(), r, idempotency.Done(ok("x"))) })
		e.fenced("Unknown", c.Key, func() error { return e.s.End(e.ctx(), r, idempotency.UnknownEnding()) })
		never := idempotency.Reservation{Key: testKey(2), Owner: idempotency.NewOwner(), Token: 1}
		e.fenced("Extend of a key that never was", never.Key, func() error { _, err := e.s.Extend(e.ctx(), never, lease); return err })
		e.fenced("Done of a key that never was", never.Key, func() error { return e.s.End(e.ctx(), never, idempotency.Done(ok("x"))) })
	}),
	recordCase("F1NobodyOwnsNothing", nil, func(e *env) {
		// A record of nobody must not be owned by a reservation of nobody.
		c := claim(testKey(1), idempotency.Probe)
		first := e.start(c)
		e.clock.Set(first.LeaseEnd.Add(quiet))
		second := e.start(again(c))
		e.end(second, idempotency.NotRun())
		second.Owner = idempotency.Owner{}
		e.refuses(c.Key, second)
	}),
	recordCase("F1ExpiredRecordFences", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Retry)
		r := e.start(c)
		e.clock.Set(r.LeaseEnd.Add(retention))
		e.fenced("Extend", c.Key, func() error { _, err := e.s.Extend(e.ctx(), r, lease); return err })
		e.fenced("Done", c.Key, func() error { return e.s.End(e.ctx(), r, idempotency.Done(ok("x"))) })
	}),
	recordCase("F2TheSameEndTwiceIsFine", nil, func(e *env) {
		for i, g := range []idempotency.Ending{
			idempotency.Done(ok("x")), idempotency.Done(ok("")), idempotency.Done(later("x", time.Minute)),
			idempotency.NotRun(), idempotency.UnknownEnding(),
		} {
			c := claim(testKey(i), idempotency.Probe)
			r := e.start(c)
			e.end(r, g)
			before, errBefore := e.s.Lookup(e.ctx(), c.Key)
			e.clock.Advance(time.Second)
			e.end(r, g)
			after, errAfter := e.s.Lookup(e.ctx(), c.Key)
			if (errBefore == nil) != (errAfter == nil) {
				e.Fatalf("Lookup before and after the second End(%v): %v and %v", g.Kind, errBefore, errAfter)
			}
			before.AsOf, after.AsOf = time.Time{}, time.Time{}
			e.same("after the second End", after, before)
		}
	}),
	recordCase("F2NotRunTwiceOfATakeover", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Probe)
		first := e.start(c)
		e.clock.Set(first.LeaseEnd.Add(quiet))
		second := e.start(again(c))
		e.end(second, idempotency.NotRun())
		e.end(second, idempotency.NotRun())
	}),
	recordCase("F2AnotherEndingOfADoneRecordIsFenced", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.done(r, ok("right"))
		for name, g := range map[string]idempotency.Ending{
			"Done with other bytes":  idempotency.Done(ok("wrong")),
			"Done with more bytes":   idempotency.Done(ok("right ")),
			"Done with other status": idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 200, Payload: []byte("right")}),
			"Done with other class":  idempotency.Done(idempotency.Result{Class: idempotency.FailedFinal, Status: 201, Payload: []byte("right")}),
			"NotRun":                 idempotency.NotRun(),
			"Unknown":                idempotency.UnknownEnding(),
		} {
			e.fenced(name, c.Key, func() error { return e.s.End(e.ctx(), r, g) })
		}
		e.fenced("Extend", c.Key, func() error { _, err := e.s.Extend(e.ctx(), r, time.Hour); return err })
	}),
	recordCase("F3TheTokenJudgesNotTheClock", nil, func(e *env) {
		for i, u := range []idempotency.OnUnknown{idempotency.Hold, idempotency.Retry, idempotency.Probe, idempotency.Fail} {
			c := claim(testKey(i), u)
			r := e.start(c)
			e.clock.Set(r.LeaseEnd.Add(quiet + time.Minute))
			e.at("the lease after Extend", e.extend(r, lease), e.clock.Now().Add(lease))
			e.reserve(again(c), idempotency.InProgress)
			e.clock.Advance(lease + quiet + time.Minute)
			e.done(r, ok("late but ours"))
			e.reserve(again(c), idempotency.Replayed)
		}
	}),
	recordCase("F3ExtendNeverShortens", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.at("the lease after a shorter Extend", e.extend(r, time.Second), r.LeaseEnd)
		e.at("the record's lease end", e.lookup(c.Key).LeaseEnd, r.LeaseEnd)
		e.at("the lease after an Extend of 0", e.extend(r, 0), r.LeaseEnd)
		e.clock.Advance(-time.Hour)
		e.at("the lease after an Extend on an earlier clock", e.extend(r, lease), r.LeaseEnd)
		e.clock.Advance(time.Hour + time.Second)
		e.at("the lease after an Extend", e.extend(r, lease), e.clock.Now().Add(lease))
	}),
	recordCase("F4TokensOnlyGrow", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Retry)
		c.Terms.Quiet = 0
		var last idempotency.Token
		for i := range 12 {
			r := e.start(again(c))
			if r.Token <= last {
				e.Fatalf("attempt %d has the token %d, and there was %d before", i+1, r.Token, last)
			}
			last = r.Token
			switch i % 4 {
			case 0:
				e.clock.Set(r.LeaseEnd)
			case 1:
				e.end(r, idempotency.UnknownEnding())
			case 2:
				e.end(r, idempotency.NotRun()) // found unknown: stays so
			case 3:
				e.done(r, later("busy", 0))
			}
		}
	}),
}

// wrong returns reservations that resemble r and do not own its key.
func wrong(r idempotency.Reservation) []idempotency.Reservation {
	owner, below, above, nobody := r, r, r, r
	owner.Owner = idempotency.NewOwner()
	below.Token--
	above.Token++
	nobody.Owner = idempotency.Owner{}
	return []idempotency.Reservation{owner, below, above, nobody}
}

// refuses demands that End and Extend are fenced, whatever the ending is.
func (e *env) refuses(k idempotency.Key, list ...idempotency.Reservation) {
	e.Helper()
	for _, r := range list {
		e.fenced("Extend", k, func() error { _, err := e.s.Extend(e.ctx(), r, time.Hour); return err })
		for _, g := range []idempotency.Ending{
			idempotency.Done(ok("stolen")), idempotency.Done(later("stolen", 0)), idempotency.NotRun(), idempotency.UnknownEnding(),
		} {
			e.fenced("End", k, func() error { return e.s.End(e.ctx(), r, g) })
		}
	}
}
