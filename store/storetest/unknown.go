package storetest

import (
	"net/http"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// unknownCases test what becomes of a key whose attempt did not say how it
// ended: R5 and R11.
var unknownCases = []Case{
	recordCase("R5HoldIsUnknownAtOnce", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.clock.Set(r.LeaseEnd.Add(-tick))
		e.reserve(again(c), idempotency.InProgress)
		e.clock.Set(r.LeaseEnd)
		before := e.lookup(c.Key)
		a := e.reserve(again(c), idempotency.Unknown)
		if a.Record.Status() != idempotency.StatusUnknown || a.Record.Owner != c.Owner {
			e.Fatalf("the unknown record is %v", show(a.Record))
		}
		e.same("after Unknown", e.lookup(c.Key), before)
		e.clock.Advance(quiet + time.Hour)
		e.reserve(again(c), idempotency.Unknown)
	}),
	recordCase("R5RetryAndProbeTakeOverAfterTheQuietTime", nil, func(e *env) {
		for i, u := range []idempotency.OnUnknown{idempotency.Retry, idempotency.Probe} {
			c := claim(testKey(i), u)
			first := e.start(c)
			e.clock.Set(first.LeaseEnd.Add(quiet - tick))
			a := e.reserve(again(c), idempotency.InProgress)
			e.at("the lease's end", a.Record.LeaseEnd, first.LeaseEnd)
			e.clock.Advance(tick)
			if got := e.lookup(c.Key).Status(); got != idempotency.StatusUnknown {
				e.Fatalf("the status after the quiet time is %q", got)
			}
			next := again(c)
			next.Origin.Trace = "another"
			a = e.reserve(next, idempotency.Started)
			second := a.Reservation
			if !second.Takeover || second.Token <= first.Token || a.Record.Attempt != 2 {
				e.Fatalf("the takeover is %+v, attempt %d: want a takeover, a token above %d, attempt 2", second, a.Record.Attempt, first.Token)
			}
			if a.Record.Origin != c.Origin {
				e.Fatalf("the origin after a takeover is %+v, want the first run's, %+v", a.Record.Origin, c.Origin)
			}
			e.reserve(again(c), idempotency.InProgress)
			e.fenced("End of the attempt that was taken over", c.Key, func() error {
				return e.s.End(e.ctx(), first, idempotency.Done(ok("late")))
			})
			e.done(second, ok("right"))
			if got := e.reserve(again(c), idempotency.Replayed); string(got.Record.Result.Payload) != "right" {
				e.Fatalf("the replay is %s", showResult(got.Record.Result))
			}
		}
	}),
	recordCase("R5RetryWithoutQuietTakesOverAtTheLeasesEnd", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Retry)
		c.Terms.Quiet = 0
		r := e.start(c)
		e.clock.Set(r.LeaseEnd.Add(-tick))
		e.reserve(again(c), idempotency.InProgress)
		e.clock.Set(r.LeaseEnd)
		if !e.start(again(c)).Takeover {
			e.Fatal("the claim is no takeover")
		}
	}),
	recordCase("R5TakeoverSeesTheSteps", needsSteps, func(e *env) {
		c := claim(testKey(1), idempotency.Probe)
		r := e.start(c)
		e.saveStep(r, idempotency.Step{Name: "pay", ProviderKey: "pk"})
		e.saveStep(r, idempotency.Step{Name: "pay", Done: true, ProviderID: "ch_1", Answer: []byte("paid")})
		e.saveStep(r, idempotency.Step{Name: "mail", ProviderKey: "mk"})
		e.clock.Set(r.LeaseEnd.Add(quiet))
		a := e.reserve(again(c), idempotency.Started)
		if n := len(a.Record.Steps); n != 2 || !a.Record.Steps[0].Done || string(a.Record.Steps[0].Answer) != "paid" || a.Record.Steps[1].Done {
			e.Fatalf("the takeover sees the steps %+v: want pay done, mail started", a.Record.Steps)
		}
	}),
	recordCase("R5FailSettlesAsAFinalFailure", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Fail)
		r := e.start(c)
		e.clock.Set(r.LeaseEnd.Add(quiet - tick))
		e.reserve(again(c), idempotency.InProgress)
		e.clock.Advance(tick)
		a := e.reserve(again(c), idempotency.Replayed)
		want := idempotency.Result{Class: idempotency.FailedFinal, Status: http.StatusInternalServerError, By: idempotency.FromPolicy}
		if d := sameResult(a.Record.Result, want); d != "" {
			e.Fatalf("the result is %s", d)
		}
		rec := e.lookup(c.Key)
		if rec.Status() != idempotency.StatusFailedFinal || !rec.Owner.IsZero() || rec.Token <= r.Token {
			e.Fatalf("the record is %v: want failed_final, no owner, a token above %d", show(rec), r.Token)
		}
		e.at("Expires", rec.Expires, e.clock.Now().Add(retention))
		e.fenced("End after fail", c.Key, func() error { return e.s.End(e.ctx(), r, idempotency.Done(ok("late"))) })
	}),
	recordCase("R5GoesByTheRecordsTerms", nil, func(e *env) {
		held := claim(testKey(1), idempotency.Hold)
		r := e.start(held)
		e.clock.Set(r.LeaseEnd.Add(quiet))
		d := again(held)
		d.Terms = terms(idempotency.Retry)
		e.reserve(d, idempotency.Unknown)

		probed := claim(testKey(2), idempotency.Probe)
		probed.Terms.Quiet = time.Hour
		r = e.start(probed)
		e.clock.Set(r.LeaseEnd.Add(time.Hour - tick))
		d = again(probed)
		d.Terms = terms(idempotency.Retry)
		d.Terms.Quiet, d.Terms.Lease = 0, time.Minute
		e.reserve(d, idempotency.InProgress)
		e.clock.Advance(tick)
		second := e.start(d)
		e.at("the lease's end, by the new terms,", second.LeaseEnd, e.clock.Now().Add(time.Minute))
		e.clock.Set(second.LeaseEnd)
		e.start(again(probed)) // the record has the terms of its last claim
	}),
	recordCase("R5OneOfManyTakesOver", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Probe)
		r := e.start(c)
		e.clock.Set(r.LeaseEnd.Add(quiet))
		won := race(e, 20, func(int) idempotency.Claim { return again(c) })
		if len(won) != 1 || !won[0].Takeover || won[0].Token <= r.Token {
			e.Fatalf("%d of 20 concurrent claims took over: %+v", len(won), won)
		}
	}),
	recordCase("R11UnknownEndsTheLeaseNow", nil, func(e *env) {
		held := claim(testKey(1), idempotency.Hold)
		e.end(e.start(held), idempotency.UnknownEnding())
		e.at("the lease's end", e.lookup(held.Key).LeaseEnd, e.clock.Now())
		e.reserve(again(held), idempotency.Unknown)

		for i, u := range []idempotency.OnUnknown{idempotency.Retry, idempotency.Probe, idempotency.Fail} {
			c := claim(testKey(10+i), u)
			r := e.start(c)
			e.clock.Advance(time.Second)
			e.end(r, idempotency.UnknownEnding())
			e.clock.Advance(quiet - tick)
			e.reserve(again(c), idempotency.InProgress)
			e.clock.Advance(tick)
			if u == idempotency.Fail {
				e.reserve(again(c), idempotency.Replayed)
			} else if !e.start(again(c)).Takeover {
				e.Fatalf("under %v the claim is no takeover", u)
			}
		}
	}),
	recordCase("R11SaidAgainDoesNotProlong", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Probe)
		r := e.start(c)
		e.end(r, idempotency.UnknownEnding())
		rec := e.lookup(c.Key)
		e.clock.Advance(time.Second)
		e.end(r, idempotency.UnknownEnding())
		rec.AsOf = e.clock.Now()
		e.same("after the second Unknown", e.lookup(c.Key), rec)
	}),
	recordCase("R11OwnerMayStillSayHowItEnded", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.end(r, idempotency.UnknownEnding())
		e.clock.Advance(time.Hour)
		e.done(r, ok("it was done"))
		e.reserve(again(c), idempotency.Replayed)
	}),
	recordCase("R11LeaseThatIsOverStaysWhereItEnded", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Probe)
		r := e.start(c)
		e.clock.Set(r.LeaseEnd.Add(time.Second))
		e.end(r, idempotency.UnknownEnding())
		e.at("the lease's end", e.lookup(c.Key).LeaseEnd, r.LeaseEnd)
	}),
}
