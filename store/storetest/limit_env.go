package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// limitEnv is one test's store of limits and its clock.
type limitEnv struct {
	testing.TB
	h     Harness
	clock *Clock
	s     ratelimit.Store
	ctx   context.Context
}

func newLimitEnv(t testing.TB, h Harness) *limitEnv {
	t.Helper()
	clock := NewClock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	return &limitEnv{TB: t, h: h, clock: clock, s: h.NewLimits(t, clock), ctx: ctx}
}

// limitCase is a case with a fresh store of limits.
func limitCase(name string, needs func(Harness) bool, run func(e *limitEnv)) Case {
	return Case{Name: name, needs: needs, Run: func(t testing.TB, h Harness) {
		t.Helper()
		run(newLimitEnv(t, h))
	}}
}

// bucket is a token bucket of quota per window, with a burst.
func bucket(name string, quota int64, window time.Duration, burst int64) ratelimit.Rule {
	return ratelimit.Rule{Name: name, Quota: quota, Window: window, Burst: burst}
}

// windowLog is a sliding window log.
func windowLog(name string, quota int64, window time.Duration) ratelimit.Rule {
	return ratelimit.Rule{Name: name, Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: window}
}

// needsLogs is of cases about logs.
func needsLogs(h Harness) bool { return !h.Caps.BucketsOnly }

// kept are the rules of which the store keeps the algorithm.
func (h Harness) kept(rules ...ratelimit.Rule) []ratelimit.Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r ratelimit.Rule) bool {
		return h.Caps.BucketsOnly && r.Algorithm != ratelimit.TokenBucket
	})
}

// other is a log where the store keeps logs, else a bucket with its numbers.
func (h Harness) other(name string, quota int64, window time.Duration) ratelimit.Rule {
	if h.Caps.BucketsOnly {
		return bucket(name, quota, window, 0)
	}
	return windowLog(name, quota, window)
}

func charge(r ratelimit.Rule, subject string, cost int64) ratelimit.Charge {
	return ratelimit.Charge{Rule: r, Subject: subject, Cost: cost}
}

// take asks for all of the charges, and checks what holds of every decision.
func (e *limitEnv) take(charges ...ratelimit.Charge) ratelimit.Decision {
	e.Helper()
	d, err := e.s.Take(e.ctx, charges)
	if err != nil {
		e.Fatalf("Take: %v", err)
	}
	if fault := faultOf(d, charges); fault != "" {
		e.Fatalf("Take of %s: %s", showCharges(charges), fault)
	}
	return d
}

// faultOf names what no decision about the charges may be like, or returns "".
func faultOf(d ratelimit.Decision, charges []ratelimit.Charge) string {
	if len(d.Levels) != len(charges) {
		return fmt.Sprintf("%d levels for %d charges", len(d.Levels), len(charges))
	}
	all := true
	for i, l := range d.Levels {
		all = all && l.Allowed
		switch {
		case l.Rule != charges[i].Rule || l.Subject != charges[i].Subject:
			return fmt.Sprintf("level %d is of the rule %q and subject %q", i, l.Rule.Name, l.Subject)
		case l.Remaining < 0 || l.Remaining > l.Rule.Capacity():
			return fmt.Sprintf("level %d has %d units left of %d", i, l.Remaining, l.Rule.Capacity())
		case l.RetryAfter < 0 || l.ResetAfter < 0:
			return fmt.Sprintf("level %d has a negative time: %+v", i, l)
		case (l.Allowed || l.Never) != (l.RetryAfter == 0):
			return fmt.Sprintf("level %d says allowed %v, never %v, and to retry after %v", i, l.Allowed, l.Never, l.RetryAfter)
		case l.Allowed && l.Never:
			return fmt.Sprintf("level %d is allowed and never is", i)
		case l.RetryAfter%time.Microsecond != 0 || l.ResetAfter%time.Microsecond != 0:
			return fmt.Sprintf("level %d has times that are not whole microseconds: %+v", i, l)
		}
	}
	if d.Allowed != all {
		return fmt.Sprintf("the decision says allowed %v, its levels %v", d.Allowed, all)
	}
	if d.Allowed != (d.Taken != nil) && len(charges) > 0 {
		return fmt.Sprintf("allowed is %v, and what was taken %v", d.Allowed, d.Taken)
	}
	return ""
}

// allowed demands that the charges pass.
func (e *limitEnv) allowed(charges ...ratelimit.Charge) ratelimit.Decision {
	e.Helper()
	d := e.take(charges...)
	if !d.Allowed {
		e.Fatalf("Take of %s is refused: %s", showCharges(charges), showLevels(d.Levels))
	}
	return d
}

// refused demands that they do not.
func (e *limitEnv) refused(charges ...ratelimit.Charge) ratelimit.Decision {
	e.Helper()
	d := e.take(charges...)
	if d.Allowed {
		e.Fatalf("Take of %s is allowed: %s", showCharges(charges), showLevels(d.Levels))
	}
	return d
}

// look is the level of a subject.
func (e *limitEnv) look(r ratelimit.Rule, subject string) ratelimit.Level {
	e.Helper()
	return e.allowed(charge(r, subject, 0)).Levels[0]
}

// left demands what a subject has left.
func (e *limitEnv) left(r ratelimit.Rule, subject string, want int64) {
	e.Helper()
	if l := e.look(r, subject); l.Remaining != want {
		e.Fatalf("the subject %q of %q has %d left, want %d", subject, r.Name, l.Remaining, want)
	}
}

func (e *limitEnv) giveBack(t *ratelimit.Taken) {
	e.Helper()
	if err := e.s.Return(e.ctx, t); err != nil {
		e.Fatalf("Return: %v", err)
	}
}

func (e *limitEnv) reset(rule, subject string) {
	e.Helper()
	if err := e.s.Reset(e.ctx, rule, subject); err != nil {
		e.Fatalf("Reset: %v", err)
	}
}

// exact demands that waiting for what the decision says is enough, and that
// one microsecond less is not (Q6). The clock is then at that time, and the
// charge is taken.
func (e *limitEnv) exact(d ratelimit.Decision, charges ...ratelimit.Charge) {
	e.Helper()
	wait, possible := d.RetryAfter()
	if !possible || wait < tick {
		e.Fatalf("the refusal says to wait %v, possible %v", wait, possible)
	}
	e.clock.Advance(wait - tick)
	short := e.refused(charges...)
	if again, _ := short.RetryAfter(); again != tick {
		e.Fatalf("1µs before its time, of a wait of %v, the refusal says to wait %v more", wait, again)
	}
	e.clock.Advance(tick)
	e.allowed(charges...)
}

func showCharges(charges []ratelimit.Charge) string {
	var out []string
	for _, c := range charges {
		out = append(out, fmt.Sprintf("%d of %s for %q", c.Cost, showRule(c.Rule), c.Subject))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func showRule(r ratelimit.Rule) string {
	return fmt.Sprintf("%s(%v %d per %v, burst %d)", r.Name, r.Algorithm, r.Quota, r.Window, r.Burst)
}

func showLevels(levels []ratelimit.Level) string {
	var out []string
	for _, l := range levels {
		out = append(out, fmt.Sprintf("%s %q: allowed %v, never %v, remaining %d, retry after %v, reset after %v",
			l.Rule.Name, l.Subject, l.Allowed, l.Never, l.Remaining, l.RetryAfter, l.ResetAfter))
	}
	return strings.Join(out, "; ")
}
