package storetest

import (
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// notRunCases test R9: NotRun restores what the claim found.
var notRunCases = []Case{
	recordCase("R9FreeKeyIsFreeAgain", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.end(e.start(c), idempotency.NotRun())
		e.free(c.Key)
		d := again(c)
		d.Prints = []idempotency.Fingerprint{printOf("v1", "another request")}
		if a := e.reserve(d, idempotency.Started); a.Reservation.Takeover || a.Record.Attempt != 1 {
			e.Fatalf("the claim after NotRun is %+v, attempt %d: want no takeover, attempt 1", a.Reservation, a.Record.Attempt)
		}
	}),
	recordCase("R9UnknownKeyIsUnknownAgain", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Probe)
		first := e.start(c)
		e.clock.Set(first.LeaseEnd.Add(quiet))
		second := e.start(again(c))
		e.clock.Advance(time.Second)
		e.end(second, idempotency.NotRun())
		rec := e.lookup(c.Key)
		if rec.State != idempotency.Held || !rec.Owner.IsZero() || rec.Token != second.Token || rec.Status() != idempotency.StatusUnknown {
			e.Fatalf("the record after NotRun is %v: want it unknown, of nobody, with the token %d", show(rec), second.Token)
		}
		e.at("the lease's end", rec.LeaseEnd, first.LeaseEnd)
		e.fenced("End of the attempt before", c.Key, func() error { return e.s.End(e.ctx(), first, idempotency.Done(ok("late"))) })
		e.fenced("End after NotRun", c.Key, func() error { return e.s.End(e.ctx(), second, idempotency.Done(ok("late"))) })
		e.fenced("Extend after NotRun", c.Key, func() error { _, err := e.s.Extend(e.ctx(), second, time.Hour); return err })
		third := e.start(again(c))
		if !third.Takeover || third.Token <= second.Token {
			e.Fatalf("the next claim is %+v: want a takeover and a token above %d", third, second.Token)
		}
	}),
	recordCase("R9UnknownKeepsItsSteps", needsSteps, func(e *env) {
		c := claim(testKey(1), idempotency.Probe)
		first := e.start(c)
		e.saveStep(first, idempotency.Step{Name: "pay", ProviderKey: "pk", Done: true})
		e.clock.Set(first.LeaseEnd.Add(quiet))
		e.end(e.start(again(c)), idempotency.NotRun())
		rec := e.lookup(c.Key)
		if len(rec.Steps) != 1 || rec.Steps[0].Name != "pay" || rec.Status() != idempotency.StatusUnknown {
			e.Fatalf("the record is %v: want it unknown, with its step", show(rec))
		}
		e.at("the lease's end", rec.LeaseEnd, first.LeaseEnd)
	}),
	recordCase("R9OpenStepOfATakeoverIsQuietFromNow", needsSteps, func(e *env) {
		for i, before := range []bool{true, false} { // whose step it is
			c := claim(testKey(i), idempotency.Probe)
			first := e.start(c)
			if before {
				e.saveStep(first, idempotency.Step{Name: "pay", ProviderKey: "pk"})
			}
			e.clock.Set(first.LeaseEnd.Add(quiet))
			second := e.start(again(c))
			if !before {
				e.saveStep(second, idempotency.Step{Name: "pay", ProviderKey: "pk"})
			}
			e.clock.Advance(time.Second)
			e.end(second, idempotency.NotRun())
			e.at("the lease's end", e.lookup(c.Key).LeaseEnd, e.clock.Now())
			e.clock.Advance(quiet - tick)
			e.reserve(again(c), idempotency.InProgress)
			e.clock.Advance(tick)
			if !e.start(again(c)).Takeover {
				e.Fatal("the claim after it is no takeover")
			}
		}
	}),
	recordCase("R9RetryableKeyIsRetryableAgain", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.done(e.start(c), later("busy", time.Minute))
		e.clock.Advance(time.Minute)
		second := e.start(again(c))
		e.clock.Advance(time.Second)
		e.end(second, idempotency.NotRun())
		rec := e.lookup(c.Key)
		if rec.Status() != idempotency.StatusFailedRetryable || !rec.Owner.IsZero() || rec.Token != second.Token {
			e.Fatalf("the record after NotRun is %v: want it failed_retryable, of nobody, with the token %d", show(rec), second.Token)
		}
		if d := sameResult(rec.Result, later("busy", time.Minute)); d != "" {
			e.Fatalf("the result that the claim had found is %s", d)
		}
		third := e.start(again(c))
		if third.Takeover || third.Token <= second.Token {
			e.Fatalf("the next claim is %+v: want no takeover and a token above %d", third, second.Token)
		}
		e.done(third, ok("fine"))
	}),
	recordCase("R9StartedStepMakesItUnknown", needsSteps, func(e *env) {
		for i, s := range []idempotency.Step{
			{Name: "pay", ProviderKey: "pk"},
			{Name: "pay", ProviderKey: "pk", Done: true, ProviderID: "ch_1"},
		} {
			c := claim(testKey(i), idempotency.Hold)
			r := e.start(c)
			e.saveStep(r, s)
			e.end(r, idempotency.NotRun())
			rec := e.lookup(c.Key)
			if rec.Status() != idempotency.StatusUnknown || !rec.Owner.IsZero() || len(rec.Steps) != 1 {
				e.Fatalf("the record after a step and NotRun is %v: want it unknown, of nobody, with the step", show(rec))
			}
			e.at("the lease's end", rec.LeaseEnd, e.clock.Now())
			e.reserve(again(c), idempotency.Unknown)
		}
	}),
	recordCase("R9StepAfterARetryableResultMakesItUnknown", needsSteps, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.done(e.start(c), later("busy", 0))
		r := e.start(again(c))
		e.saveStep(r, idempotency.Step{Name: "pay", ProviderKey: "pk"})
		e.end(r, idempotency.NotRun())
		e.reserve(again(c), idempotency.Unknown)
	}),
	recordCase("R9LateNotRunFreesAStaleLease", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.clock.Set(r.LeaseEnd.Add(time.Hour))
		e.reserve(again(c), idempotency.Unknown)
		e.end(r, idempotency.NotRun())
		e.start(again(c))
	}),
}

// withdrawCases test R10 and R12: Void, and the mark that it leaves.
var withdrawCases = []Case{
	recordCase("R10VoidFreesWhatItsOwnerHolds", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.void(c.Key, c.Owner)
		e.free(c.Key)
		e.fenced("Extend after Void", c.Key, func() error { _, err := e.s.Extend(e.ctx(), r, time.Hour); return err })
		e.fenced("Done after Void", c.Key, func() error { return e.s.End(e.ctx(), r, idempotency.Done(ok("x"))) })
		e.reserve(c, idempotency.Refused)
		e.start(again(c))
	}),
	recordCase("R10VoidLeavesOthersAlone", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.void(c.Key, idempotency.NewOwner())
		rec := e.lookup(c.Key)
		if rec.Owner != c.Owner || rec.Token != r.Token {
			e.Fatalf("the record after another's Void is %v", show(rec))
		}
		e.at("the lease's end", rec.LeaseEnd, r.LeaseEnd)
		e.done(r, ok("fine"))
		e.void(c.Key, idempotency.NewOwner())
		if a := e.reserve(again(c), idempotency.Replayed); string(a.Record.Result.Payload) != "fine" {
			e.Fatalf("the replay is %s", showResult(a.Record.Result))
		}
	}),
	recordCase("R10VoidOfATakeoverRestoresTheUnknown", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Probe)
		first := e.start(c)
		e.clock.Set(first.LeaseEnd.Add(quiet))
		d := again(c)
		e.start(d)
		e.void(c.Key, d.Owner)
		e.at("the lease's end", e.lookup(c.Key).LeaseEnd, first.LeaseEnd)
		e.reserve(d, idempotency.Refused)
		if !e.start(again(c)).Takeover {
			e.Fatal("the claim after it is no takeover")
		}
	}),
	recordCase("R10VoidAfterTheOwnersResultKeepsIt", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.done(e.start(c), ok("kept"))
		e.void(c.Key, c.Owner)
		e.reserve(c, idempotency.Refused)
		if a := e.reserve(again(c), idempotency.Replayed); string(a.Record.Result.Payload) != "kept" {
			e.Fatalf("the replay is %s", showResult(a.Record.Result))
		}
	}),
	recordCase("R10VoidOfNobodyDoesNothing", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Probe)
		e.void(c.Key, idempotency.Owner{})
		e.free(c.Key)
		first := e.start(c)
		e.clock.Set(first.LeaseEnd.Add(quiet))
		e.end(e.start(again(c)), idempotency.NotRun()) // held by nobody now
		before := e.lookup(c.Key)
		e.void(c.Key, idempotency.Owner{})
		e.same("after a Void of nobody", e.lookup(c.Key), before)
	}),
	recordCase("R12LateReserveAfterVoidChangesNothing", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.void(c.Key, c.Owner)
		e.free(c.Key)
		e.clock.Advance(idempotency.MarkTime - tick)
		e.reserve(c, idempotency.Refused)
		e.free(c.Key)
		r := e.start(again(c))
		e.reserve(c, idempotency.Refused)
		e.done(r, ok("fine"))
		e.reserve(c, idempotency.Refused)
	}),
	recordCase("R12MarkLastsAMinute", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.void(c.Key, c.Owner)
		e.clock.Advance(idempotency.MarkTime)
		e.start(c)
	}),
	recordCase("R12VoidAgainProlongsTheMark", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.void(c.Key, c.Owner)
		e.clock.Advance(idempotency.MarkTime / 2)
		e.void(c.Key, c.Owner)
		e.clock.Advance(idempotency.MarkTime - tick)
		e.reserve(c, idempotency.Refused)
	}),
	recordCase("R12MarkOutlivesTheRecord", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		c.Terms.Retention = time.Second
		e.done(e.start(c), ok("short"))
		gone := idempotency.NewOwner()
		e.void(c.Key, gone)
		e.clock.Advance(30 * time.Second)
		e.free(c.Key)
		late := c
		late.Owner = gone
		e.reserve(late, idempotency.Refused)
		e.end(e.start(again(c)), idempotency.NotRun())
		e.reserve(late, idempotency.Refused)
	}),
	recordCase("R12SeveralMarksStandSideBySide", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		var gone []idempotency.Owner
		for range 8 {
			o := idempotency.NewOwner()
			gone = append(gone, o)
			e.void(c.Key, o)
			e.clock.Advance(time.Second)
		}
		e.start(c)
		for _, o := range gone {
			d := c
			d.Owner = o
			e.reserve(d, idempotency.Refused)
		}
	}),
	recordCase("R12RepeatedNotRunLeavesAMark", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.start(c)
		r := e.start(c)
		if !r.Repeated {
			e.Fatal("the second reservation of one owner is not marked as repeated")
		}
		e.end(r, idempotency.NotRun())
		e.reserve(c, idempotency.Refused)
		e.start(again(c))
	}),
	recordCase("R12NotRunSaidToBeRepeatedLeavesAMark", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		r.Repeated = true // its caller knows of a lost reply
		e.end(r, idempotency.NotRun())
		e.reserve(c, idempotency.Refused)
	}),
	recordCase("R12RepeatedNotRunOfAFreeKeyLeavesAMark", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.end(r, idempotency.NotRun())
		r.Repeated = true
		e.end(r, idempotency.NotRun())
		e.free(c.Key)
		e.reserve(c, idempotency.Refused)
		e.start(again(c))
	}),
	recordCase("R12RepeatedRetryableResultLeavesAMark", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		r.Repeated = true
		e.done(r, later("busy", 0))
		e.reserve(c, idempotency.Refused) // else a late copy would claim by R6
		e.start(again(c))
	}),
	recordCase("R12SweepKeepsMarks", needsKeeper, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.void(c.Key, c.Owner)
		e.clock.Advance(idempotency.MarkTime - tick)
		if n := e.sweepAll(); n != 0 {
			e.Fatalf("Sweep removed %d records, and the only one has a mark", n)
		}
		e.reserve(c, idempotency.Refused)
	}),
}
