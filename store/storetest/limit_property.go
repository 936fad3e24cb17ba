package storetest

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// limitPropertyCases test what can be said of limits without an oracle.
var limitPropertyCases = []Case{
	limitCase("PropertyConcurrentTakesKeepTheBound", nil, func(e *limitEnv) {
		for round := range e.h.times(3) {
			for _, r := range e.h.kept(bucket("b", 37, time.Minute, 0), windowLog("l", 37, time.Minute)) {
				subject := fmt.Sprint(round)
				if got := e.admitted(50, 2, func(int) []ratelimit.Charge { return []ratelimit.Charge{charge(r, subject, 1)} }); got != 37 {
					e.Fatalf("of 100 concurrent charges to %s %d passed, want 37", showRule(r), got)
				}
				e.left(r, subject, 0)
			}
		}
	}),
	limitCase("PropertyConcurrentTakesAreAllOrNone", nil, func(e *limitEnv) {
		// Each caller has a rule of its own and shares one with all.
		shared, log := bucket("shared", 40, time.Hour, 0), e.h.other("log", 30, time.Hour)
		own := bucket("own", 100, time.Hour, 0)
		got := e.admitted(20, 5, func(i int) []ratelimit.Charge {
			c := []ratelimit.Charge{charge(own, fmt.Sprint(i), 1), charge(shared, "all", 1), charge(log, "all", 1)}
			if i%2 == 0 { // nobody waits for somebody who waits for him
				c[0], c[2] = c[2], c[0]
			}
			return c
		})
		if got != 30 && !e.h.Caps.SplitTake || got > 30 {
			e.Fatalf("%d passed, want 30", got)
		}
		e.left(shared, "all", 40-got)
		e.left(log, "all", 30-got)
		var spent int64
		for i := range 20 {
			spent += 100 - e.look(own, fmt.Sprint(i)).Remaining
		}
		if spent != got {
			e.Fatalf("%d passed, and the callers' own rules were charged %d", got, spent)
		}
	}),
	limitCase("PropertyReturnsAndTakesKeepTheBound", nil, func(e *limitEnv) {
		for _, r := range e.h.kept(bucket("b", 10, 1000*time.Hour, 0), windowLog("l", 10, 1000*time.Hour)) {
			var held, most atomic.Int64
			for _, err := range together(16, func(int) error {
				for range e.h.times(20) {
					d, err := e.s.Take(e.ctx, []ratelimit.Charge{charge(r, "s", 1)})
					if err != nil {
						return err
					}
					if !d.Allowed {
						continue
					}
					now := held.Add(1)
					for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
					}
					held.Add(-1)
					if err := e.s.Return(e.ctx, d.Taken); err != nil {
						return err
					}
				}
				return nil
			}) {
				if err != nil {
					e.Fatalf("Take or Return: %v", err)
				}
			}
			if most.Load() > 10 {
				e.Fatalf("%d charges to %s were held at once, and 10 is the capacity", most.Load(), showRule(r))
			}
			if r.Algorithm == ratelimit.SlidingWindowLog { // a bucket may give less, in doubt
				e.left(r, "s", 10)
			}
		}
	}),
	{Name: "PropertyEveryIntervalKeepsTheBound", Run: func(t testing.TB, h Harness) {
		t.Helper()
		for range h.times(10) {
			seed := h.seed()
			run := &scopedTB{TB: t}
			e := newLimitEnv(run, h)
			e.intervals(rand.New(rand.NewPCG(seed, 0)), seed)
			run.close()
		}
	}},
}

// admitted sends from n callers at once, each so many times, and returns how
// many charges passed.
func (e *limitEnv) admitted(n, each int, charges func(i int) []ratelimit.Charge) int64 {
	e.Helper()
	var passed atomic.Int64
	for _, err := range together(n, func(i int) error {
		for range each {
			d, err := e.s.Take(e.ctx, charges(i))
			if err != nil {
				return err
			}
			if d.Allowed {
				passed.Add(1)
			}
		}
		return nil
	}) {
		if err != nil {
			e.Fatalf("a concurrent Take: %v", err)
		}
	}
	return passed.Load()
}

// intervals checks Q5 over every interval between two admissions.
func (e *limitEnv) intervals(rnd *rand.Rand, seed uint64) {
	e.Helper()
	r := bucket("r", 1+rnd.Int64N(20), time.Duration(1+rnd.IntN(3000))*time.Millisecond, 1+rnd.Int64N(30))
	if rnd.IntN(2) == 0 && !e.h.Caps.BucketsOnly {
		r = windowLog("r", 1+rnd.Int64N(20), time.Duration(1+rnd.IntN(3000))*time.Millisecond)
	}
	type admission struct {
		at   int64 // µs
		cost int64
	}
	var all []admission
	for range 200 {
		cost := 1 + rnd.Int64N(min(3, r.Capacity()))
		if e.take(charge(r, "s", cost)).Allowed {
			all = append(all, admission{e.clock.Now().UnixMicro(), cost})
		}
		e.clock.Advance(time.Duration(rnd.Int64N(int64(r.Window/10)+1)) / 1000 * 1000)
	}
	for i := range all {
		var sum int64
		for j := i; j < len(all); j++ {
			sum += all[j].cost
			span := all[j].at - all[i].at
			window := r.Window.Microseconds()
			over := sum > r.Quota && span < window
			if r.Algorithm == ratelimit.TokenBucket { // sum <= burst + quota/window * span
				over = (sum-r.Burst)*window > r.Quota*span
			}
			if over {
				e.Fatalf("%s admitted %d within %d µs (seed %d)", showRule(r), sum, span, seed)
			}
		}
	}
	if len(all) == 0 {
		e.Fatalf("%s admitted nothing (seed %d)", showRule(r), seed)
	}
}
