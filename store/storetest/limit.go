package storetest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// limitCases test Q1 to Q7, Return and Reset.
var limitCases = []Case{
	limitCase("Q1AllOrNone", nil, func(e *limitEnv) {
		for i, narrow := range e.h.kept(bucket("narrow", 2, time.Minute, 0), windowLog("narrow-log", 2, time.Minute)) {
			wide := bucket("wide", 100, time.Minute, 0)
			wideLog := e.h.other("wide-log", 100, time.Minute)
			subject := string(rune('a' + i))
			all := []ratelimit.Charge{charge(wide, subject, 1), charge(narrow, subject, 1), charge(wideLog, subject, 3)}
			e.allowed(all...)
			e.allowed(all...)
			d := e.refused(all...)
			if !d.Levels[0].Allowed || d.Levels[1].Allowed || !d.Levels[2].Allowed {
				e.Fatalf("the levels are %s: want only the second to refuse", showLevels(d.Levels))
			}
			if d.Levels[0].Remaining != 98 || d.Levels[2].Remaining != 94 {
				e.Fatalf("the levels of a refusal are %s: want what is left without it", showLevels(d.Levels))
			}
			e.left(wide, subject, 98)
			e.left(narrow, subject, 0)
			e.left(wideLog, subject, 94)
			e.refused(charge(narrow, subject, 1), charge(wide, subject, 1)) // in whatever order
			e.left(wide, subject, 98)
		}
	}),
	limitCase("Q1NoChargesAreAllowed", nil, func(e *limitEnv) {
		if d := e.take(); !d.Allowed {
			e.Fatal("a Take of no charges is refused")
		}
	}),
	limitCase("Q1ChargesOfOneBucketAddUp", nil, func(e *limitEnv) {
		for _, r := range e.h.kept(bucket("b", 5, time.Minute, 0), windowLog("l", 5, time.Minute)) {
			e.refused(charge(r, "s", 3), charge(r, "s", 3))
			e.left(r, "s", 5)
			d := e.allowed(charge(r, "s", 3), charge(r, "s", 2))
			if d.Levels[0].Remaining != 0 || d.Levels[1].Remaining != 0 {
				e.Fatalf("the levels after both are %s", showLevels(d.Levels))
			}
			e.left(r, "s", 0)
		}
	}),
	limitCase("Q1ManyChargesAtOnce", nil, func(e *limitEnv) {
		var all []ratelimit.Charge
		for i := range 12 {
			all = append(all, charge(bucket("rule-"+string(rune('a'+i)), 3, time.Minute, 0), "s", 1))
		}
		for range 3 {
			e.allowed(all...)
		}
		d := e.refused(all...)
		e.exact(d, all...)
	}),
	limitCase("Q1LevelsSayWhatIsLeft", nil, func(e *limitEnv) {
		a, b := bucket("a", 10, 10*time.Second, 20), bucket("b", 10, 10*time.Second, 0)
		d := e.allowed(charge(a, "s", 5), charge(b, "s", 6))
		want := []ratelimit.Level{
			{Rule: a, Subject: "s", Allowed: true, Remaining: 15, ResetAfter: 5 * time.Second},
			{Rule: b, Subject: "s", Allowed: true, Remaining: 4, ResetAfter: 6 * time.Second},
		}
		if showLevels(d.Levels) != showLevels(want) {
			e.Fatalf("the levels are\n%s, want\n%s", showLevels(d.Levels), showLevels(want))
		}
		e.clock.Advance(2 * time.Second)
		d = e.refused(charge(a, "s", 18), charge(b, "s", 6))
		want = []ratelimit.Level{
			{Rule: a, Subject: "s", Remaining: 17, RetryAfter: time.Second, ResetAfter: 3 * time.Second},
			{Rule: b, Subject: "s", Allowed: true, Remaining: 6, ResetAfter: 4 * time.Second},
		}
		if showLevels(d.Levels) != showLevels(want) {
			e.Fatalf("the levels of a refusal are\n%s, want\n%s", showLevels(d.Levels), showLevels(want))
		}
	}),
	limitCase("Q1LevelsOfALogSayWhatIsLeft", needsLogs, func(e *limitEnv) {
		b, l := bucket("b", 10, 10*time.Second, 20), windowLog("l", 10, 10*time.Second)
		d := e.allowed(charge(b, "s", 5), charge(l, "s", 5))
		want := []ratelimit.Level{
			{Rule: b, Subject: "s", Allowed: true, Remaining: 15, ResetAfter: 5 * time.Second},
			{Rule: l, Subject: "s", Allowed: true, Remaining: 5, ResetAfter: 10 * time.Second},
		}
		if showLevels(d.Levels) != showLevels(want) {
			e.Fatalf("the levels are\n%s, want\n%s", showLevels(d.Levels), showLevels(want))
		}
		e.clock.Advance(2 * time.Second)
		d = e.refused(charge(b, "s", 18), charge(l, "s", 6))
		want = []ratelimit.Level{
			{Rule: b, Subject: "s", Remaining: 17, RetryAfter: time.Second, ResetAfter: 3 * time.Second},
			{Rule: l, Subject: "s", Remaining: 5, RetryAfter: 8 * time.Second, ResetAfter: 8 * time.Second},
		}
		if showLevels(d.Levels) != showLevels(want) {
			e.Fatalf("the levels of a refusal are\n%s, want\n%s", showLevels(d.Levels), showLevels(want))
		}
	}),
	limitCase("Q1RulesAndSubjectsAreSeparate", nil, func(e *limitEnv) {
		long := strings.Repeat("s", ratelimit.MaxSubject)
		r1, r2 := bucket("a", 1, time.Hour, 0), bucket("ab", 1, time.Hour, 0)
		for _, x := range []struct {
			r ratelimit.Rule
			s string
		}{
			{r1, "bc"},
			{r2, "c"},
			{r1, ""},
			{r2, ""},
			{r1, "b:c"},
			{r1, "{b}c"},
			{r1, "b\x00c"},
			{r1, "b\nc"},
			{r1, "é\xff"},
			{r1, long},
			{r1, long[:254]},
			{r1, "BC"},
			{r1, " bc"},
			{e.h.other("a.log", 1, time.Hour), "bc"},
		} {
			e.left(x.r, x.s, 1)
			e.allowed(charge(x.r, x.s, 1))
			e.left(x.r, x.s, 0)
		}
	}),
	limitCase("InvalidChargeIsAnError", nil, func(e *limitEnv) {
		good := charge(bucket("good", 5, time.Minute, 0), "s", 1)
		for name, bad := range map[string]ratelimit.Charge{
			"a negative cost":      charge(bucket("bad", 5, time.Minute, 0), "s", -1),
			"no quota":             charge(bucket("bad", 0, time.Minute, 0), "s", 1),
			"no window":            charge(bucket("bad", 5, 0, 0), "s", 1),
			"no name":              charge(bucket("", 5, time.Minute, 0), "s", 1),
			"a subject of 256":     charge(bucket("bad", 5, time.Minute, 0), strings.Repeat("s", ratelimit.MaxSubject+1), 1),
			"a log with too much":  charge(windowLog("bad", ratelimit.MaxLogQuota+1, time.Minute), "s", 1),
			"an unknown algorithm": {Rule: ratelimit.Rule{Name: "bad", Algorithm: 99, Quota: 1, Window: time.Second}, Subject: "s", Cost: 1},
		} {
			if d, err := e.s.Take(e.ctx, []ratelimit.Charge{good, bad}); !errors.Is(err, ratelimit.ErrCharge) {
				e.Fatalf("Take with %s is allowed %v, with the error %v, want an ErrCharge", name, d.Allowed, err)
			}
		}
		other := good
		other.Rule.Quota++
		if d, err := e.s.Take(e.ctx, []ratelimit.Charge{good, other}); !errors.Is(err, ratelimit.ErrCharge) {
			e.Fatalf("Take of one bucket by two rules of a name is allowed %v, with the error %v, want an ErrCharge", d.Allowed, err)
		}
		e.left(good.Rule, "s", 5)
	}),
	limitCase("OtherAlgorithmIsAnError", func(h Harness) bool { return h.Caps.BucketsOnly }, func(e *limitEnv) {
		b, l := bucket("b", 5, time.Minute, 0), windowLog("l", 5, time.Minute)
		for _, charges := range [][]ratelimit.Charge{{charge(l, "s", 1)}, {charge(l, "s", 0)}, {charge(b, "s", 1), charge(l, "s", 1)}} {
			if d, err := e.s.Take(e.ctx, charges); !errors.Is(err, ratelimit.ErrCharge) {
				e.Fatalf("Take of %s is allowed %v, with the error %v, want an ErrCharge", showCharges(charges), d.Allowed, err)
			}
		}
		e.left(b, "s", 5)
	}),
	limitCase("Q2RefusalChangesNothing", nil, func(e *limitEnv) {
		for _, r := range e.h.kept(bucket("b", 3, 7*time.Second, 3), windowLog("l", 3, 7*time.Second)) {
			e.allowed(charge(r, "s", 1))
			e.clock.Advance(1234567 * time.Microsecond)
			e.allowed(charge(r, "s", 1))
			two := charge(r, "s", 2) // and one is left
			first := e.refused(two)
			begin := e.clock.Now()
			wait, _ := first.RetryAfter()
			for i := range int64(50) { // a flood, until just before the time
				e.clock.Set(begin.Add(time.Duration(i) * (wait - tick) / 50))
				before := e.look(r, "s")
				d := e.refused(two, charge(r, "other", 0))
				if got, _ := d.RetryAfter(); got != wait-e.clock.Now().Sub(begin) {
					e.Fatalf("under a flood the wait is %v, want %v", got, wait-e.clock.Now().Sub(begin))
				}
				if after := e.look(r, "s"); after != before {
					e.Fatalf("a refusal changed the level from %+v to %+v", before, after)
				}
			}
			e.clock.Set(begin)
			e.exact(first, two)
		}
	}),
	limitCase("Q3CostZeroLooks", nil, func(e *limitEnv) {
		for _, r := range e.h.kept(bucket("b", 2, time.Minute, 0), windowLog("l", 2, time.Minute)) {
			for range 5 {
				e.left(r, "s", 2)
			}
			e.allowed(charge(r, "s", 2))
			before := e.look(r, "s")
			for range 5 {
				if l := e.look(r, "s"); l != before || l.Remaining != 0 {
					e.Fatalf("a look at an empty subject is %+v, and was %+v", l, before)
				}
			}
			e.refused(charge(r, "s", 1), charge(r, "s", 0))
		}
	}),
	limitCase("Q3LookAmongChargesChargesTheOthers", nil, func(e *limitEnv) {
		a, b := bucket("a", 2, time.Minute, 0), bucket("b", 2, time.Minute, 0)
		e.allowed(charge(a, "s", 1), charge(b, "s", 0))
		e.left(a, "s", 1)
		e.left(b, "s", 2)
	}),
	limitCase("Q4ClockThatStepsBackAdmitsNoMore", nil, func(e *limitEnv) {
		for _, r := range e.h.kept(bucket("b", 10, 10*time.Second, 0), windowLog("l", 10, 10*time.Second)) {
			start := e.clock.Now()
			for _, back := range []time.Duration{tick, time.Second, 9 * time.Second, 10 * time.Second, time.Hour, 24 * 365 * time.Hour} {
				e.reset(r.Name, "s")
				e.clock.Set(start)
				e.allowed(charge(r, "s", 6))
				e.clock.Set(start.Add(-back))
				if l := e.look(r, "s"); l.Remaining > 4 {
					e.Fatalf("with 6 of 10 taken and the clock %v earlier, %d are left", back, l.Remaining)
				}
				e.refused(charge(r, "s", 5))
				for e.take(charge(r, "s", 1)).Allowed { // whatever is left
				}
				e.left(r, "s", 0)
				e.clock.Advance(time.Second - tick) // what flows in the time that passes is all there is
				if l := e.look(r, "s"); l.Remaining > 1 {
					e.Fatalf("%v after a step back by %v, %d are left", time.Second-tick, back, l.Remaining)
				}
			}
			e.clock.Set(start.Add(time.Hour))
		}
	}),
	limitCase("Q4ArrivalTooFarAheadIsClamped", nil, func(e *limitEnv) {
		for _, r := range e.h.kept(bucket("b", 10, 10*time.Second, 20), windowLog("l", 10, 10*time.Second)) {
			c := charge(r, "s", 1)
			full := time.Duration(r.Capacity()) * time.Second
			e.allowed(charge(r, "s", r.Capacity()))
			e.clock.Advance(-1000 * time.Hour)
			d := e.refused(c)
			if wait, _ := d.RetryAfter(); wait > full {
				e.Fatalf("after a step back of 1000 h the wait is %v, want at most the time to full, %v", wait, full)
			}
			e.exact(d, c)
			e.clock.Advance(full)
			e.left(r, "s", r.Capacity())
			e.clock.Advance(1000 * time.Hour)
		}
	}),
	limitCase("Q5BucketBurstsThenFlows", nil, func(e *limitEnv) {
		r := bucket("b", 10, time.Second, 20) // 10 per second, 20 at once
		for range 20 {
			e.allowed(charge(r, "s", 1))
		}
		e.refused(charge(r, "s", 1))
		passed := 0
		for range 3000 {
			e.clock.Advance(time.Millisecond)
			if e.take(charge(r, "s", 1)).Allowed {
				passed++
			}
		}
		if passed != 30 {
			e.Fatalf("in 3 s at 10/s, after the burst, %d passed, want 30", passed)
		}
		e.clock.Advance(time.Hour)
		e.left(r, "s", 20)
	}),
	limitCase("Q5LogHoldsEveryHalfOpenWindow", needsLogs, func(e *limitEnv) {
		r := windowLog("l", 3, 10*time.Second)
		start := e.clock.Now()
		for _, s := range []time.Duration{0, 4 * time.Second, 9 * time.Second} {
			e.clock.Set(start.Add(s))
			e.allowed(charge(r, "s", 1))
		}
		e.clock.Set(start.Add(10*time.Second - tick))
		e.refused(charge(r, "s", 1))
		e.clock.Set(start.Add(10 * time.Second)) // the first has left the window
		e.allowed(charge(r, "s", 1))
		e.refused(charge(r, "s", 1))
		e.clock.Set(start.Add(14 * time.Second))
		e.allowed(charge(r, "s", 1))
		e.refused(charge(r, "s", 1))
	}),
	limitCase("Q5LogCountsTheSameMicrosecondTwice", needsLogs, func(e *limitEnv) {
		r := windowLog("l", 5, time.Second)
		for range 5 {
			e.allowed(charge(r, "s", 1))
		}
		e.refused(charge(r, "s", 1))
	}),
	limitCase("Q6WaitIsExact", nil, func(e *limitEnv) {
		for _, r := range e.h.kept(
			bucket("b1", 1, time.Second, 0), bucket("b2", 3, 10*time.Second, 5), bucket("b3", 7, time.Second, 1),
			bucket("b4", 300_000, time.Second, 3), bucket("b5", 1_000_003, time.Second, 10), bucket("b6", 1, 31*24*time.Hour, 3),
			bucket("b7", 3, time.Microsecond, 2), bucket("b8", 1_000_000_007, time.Minute, 50),
			windowLog("l1", 1, time.Second), windowLog("l2", 7, 10*time.Second), windowLog("l3", 100, time.Microsecond),
		) {
			capacity := r.Capacity()
			for _, cost := range []int64{1, (capacity + 1) / 2, capacity} {
				e.allowed(charge(r, "s", capacity))
				for range 3 {
					c := charge(r, "s", cost)
					if d := e.take(c); !d.Allowed {
						e.exact(d, c)
					}
				}
				e.clock.Advance(62 * 24 * time.Hour * 2)
			}
		}
	}),
	limitCase("Q6NeverSaysNoWait", nil, func(e *limitEnv) {
		for _, r := range e.h.kept(bucket("b", 10, time.Second, 5), windowLog("l", 5, time.Second)) {
			for _, cost := range []int64{6, 1 << 40, 1<<63 - 1} {
				d := e.refused(charge(r, "s", cost))
				if l := d.Levels[0]; !l.Never || l.RetryAfter != 0 {
					e.Fatalf("a cost of %d of 5 is %+v: want it never to pass, and no wait", cost, l)
				}
				if _, possible := d.RetryAfter(); possible {
					e.Fatalf("a cost of %d of 5 is said to be possible", cost)
				}
			}
			e.left(r, "s", 5)
		}
	}),
	limitCase("Q6WaitIsOfTheSlowestLevel", nil, func(e *limitEnv) {
		fast, slow := bucket("fast", 1, time.Second, 0), e.h.other("slow", 1, time.Minute)
		all := []ratelimit.Charge{charge(fast, "s", 1), charge(slow, "s", 1)}
		e.allowed(all...)
		d := e.refused(all...)
		if wait, _ := d.RetryAfter(); wait != time.Minute {
			e.Fatalf("the wait is %v, want a minute", wait)
		}
		e.exact(d, all...)
	}),
	limitCase("Q7HigherRuleKeepsTheDebt", nil, func(e *limitEnv) {
		e.allowed(charge(bucket("r", 10, 10*time.Second, 0), "s", 10))
		e.left(bucket("r", 100, 10*time.Second, 0), "s", 90)
		e.left(bucket("r", 10, 10*time.Second, 0), "s", 0)
	}),
	limitCase("Q7LowerRuleKeepsTheDebt", nil, func(e *limitEnv) {
		e.allowed(charge(bucket("r", 10, 10*time.Second, 0), "s", 10))
		low := bucket("r", 5, 10*time.Second, 0)
		d := e.refused(charge(low, "s", 1))
		if wait, _ := d.RetryAfter(); wait != 12*time.Second { // 10 owed, 4 may stay, 6 flow at 1 per 2 s
			e.Fatalf("with 10 owed of 5, at 5 per 10 s, the wait for one is %v, want 12 s", wait)
		}
		e.exact(d, charge(low, "s", 1))
	}),
	limitCase("Q7PastIsSettledAtTheOldRate", nil, func(e *limitEnv) {
		e.allowed(charge(bucket("r", 10, 10*time.Second, 0), "s", 10))
		e.clock.Advance(5 * time.Second)
		e.left(bucket("r", 100, time.Second, 0), "s", 95)
		e.left(bucket("r", 10, time.Hour, 0), "s", 5)
	}),
	limitCase("Q7SwitchingMintsNothing", nil, func(e *limitEnv) {
		a, b := bucket("r", 100, 10*time.Second, 100), bucket("r", 7, time.Second, 50)
		start := e.clock.Now()
		var admitted int64
		for i := range 100 {
			r := a
			if i%2 == 1 {
				r = b
			}
			for e.take(charge(r, "s", 1)).Allowed {
				admitted++
			}
			e.clock.Advance(100 * time.Millisecond)
		}
		elapsed := e.clock.Now().Sub(start)
		if most := 100 + 10*int64(elapsed/time.Second) + 1; admitted > most { // the faster rate, all the time
			e.Fatalf("with 100 changes of the rule in %v, %d were admitted, want at most %d", elapsed, admitted, most)
		}
	}),
	limitCase("Q7LogTakesANewQuota", needsLogs, func(e *limitEnv) {
		e.allowed(charge(windowLog("r", 5, time.Minute), "s", 5))
		e.left(windowLog("r", 8, time.Minute), "s", 3)
		low := windowLog("r", 3, time.Minute)
		e.exact(e.refused(charge(low, "s", 1)), charge(low, "s", 1))
	}),
	limitCase("ReturnGivesBackOnce", nil, func(e *limitEnv) {
		for _, r := range e.h.kept(bucket("b", 10, time.Minute, 0), windowLog("l", 10, time.Minute)) {
			other := bucket(r.Name+"2", 10, time.Minute, 0)
			e.allowed(charge(r, "s", 3))
			d := e.allowed(charge(r, "s", 4), charge(other, "s", 4))
			e.left(r, "s", 3)
			e.giveBack(d.Taken)
			e.left(r, "s", 7)
			e.left(other, "s", 10)
			e.giveBack(d.Taken)
			e.left(r, "s", 7)
			e.giveBack(nil)
		}
	}),
	limitCase("ReturnNeverGivesMoreThanIsOwed", nil, func(e *limitEnv) {
		for _, r := range e.h.kept(bucket("b", 10, 10*time.Second, 0), windowLog("l", 10, 10*time.Second)) {
			first := e.allowed(charge(r, "s", 10))
			e.clock.Advance(10 * time.Second)
			e.allowed(charge(r, "s", 10))
			e.giveBack(first.Taken) // all of it has flowed back by itself
			e.left(r, "s", 0)
			e.clock.Advance(time.Hour)
		}
	}),
	limitCase("ReturnByManyGivesOnce", nil, func(e *limitEnv) {
		r := bucket("b", 100, time.Hour, 0)
		e.allowed(charge(r, "s", 50))
		d := e.allowed(charge(r, "s", 10))
		for _, err := range together(20, func(int) error { return e.s.Return(e.ctx, d.Taken) }) {
			if err != nil {
				e.Fatalf("Return: %v", err)
			}
		}
		e.left(r, "s", 50)
	}),
	limitCase("ReturnOfALookGivesNothing", nil, func(e *limitEnv) {
		r := bucket("b", 10, time.Hour, 0)
		e.allowed(charge(r, "s", 5))
		d := e.allowed(charge(r, "s", 0))
		e.giveBack(d.Taken)
		e.left(r, "s", 5)
	}),
	limitCase("ResetForgetsOneSubject", nil, func(e *limitEnv) {
		b, l := bucket("b", 5, time.Hour, 0), e.h.other("l", 5, time.Hour)
		for _, s := range []string{"x", "y"} {
			e.allowed(charge(b, s, 5), charge(l, s, 5))
		}
		e.reset("b", "x")
		e.left(b, "x", 5)
		e.left(b, "y", 0)
		e.left(l, "x", 0)
		e.reset("l", "x")
		e.left(l, "x", 5)
		e.reset("b", "nobody")
		e.reset("no-rule", "x")
		e.allowed(charge(b, "x", 5), charge(l, "x", 5))
	}),
	limitCase("ResetVoidsEarlierReceipts", nil, func(e *limitEnv) {
		r := bucket("b", 10, time.Hour, 0)
		d := e.allowed(charge(r, "s", 5))
		e.reset("b", "s")
		e.clock.Advance(time.Second)
		e.allowed(charge(r, "s", 10))
		e.giveBack(d.Taken)
		e.left(r, "s", 0)
	}),
	limitCase("CancelledTakeErrsOrDecides", nil, func(e *limitEnv) {
		r := bucket("b", 10, time.Hour, 0)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		d, err := e.s.Take(ctx, []ratelimit.Charge{charge(r, "s", 4)})
		l := e.look(r, "s")
		switch {
		case err == nil && (!d.Allowed || l.Remaining != 6):
			e.Fatalf("a Take with an ended context is %+v and leaves %d of 10", d, l.Remaining)
		case err != nil && l.Remaining != 10 && l.Remaining != 6:
			e.Fatalf("a Take with an ended context leaves %d of 10", l.Remaining)
		}
	}),
	limitCase("ReopenKeepsWhatWasTaken", func(h Harness) bool { return h.Caps.ReopenLimits != nil }, func(e *limitEnv) {
		b, l := bucket("b", 5, time.Hour, 0), e.h.other("l", 5, time.Hour)
		e.allowed(charge(b, "s", 3), charge(l, "s", 3))
		e.s = e.h.Caps.ReopenLimits(e, e.s, e.clock)
		e.left(b, "s", 2)
		e.left(l, "s", 2)
	}),
}
