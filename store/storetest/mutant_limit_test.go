package storetest_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
	"github.com/escapement-dev/escapement/store/storetest"
)

// limitMutant is memstore's limits with one fault.
type limitMutant struct {
	*memstore.Limits
	clock *storetest.Clock
	last  time.Time

	take     func(m *limitMutant, c ctx, charges []ratelimit.Charge) (ratelimit.Decision, error)
	giveBack func(m *limitMutant, c ctx, t *ratelimit.Taken) error
	reset    func(m *limitMutant, c ctx, rule, subject string) error
}

func (m *limitMutant) Take(c ctx, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	if m.take != nil {
		return m.take(m, c, charges)
	}
	return m.Limits.Take(c, charges)
}

func (m *limitMutant) Return(c ctx, t *ratelimit.Taken) error {
	if m.giveBack != nil {
		return m.giveBack(m, c, t)
	}
	return m.Limits.Return(c, t)
}

func (m *limitMutant) Reset(c ctx, rule, subject string) error {
	if m.reset != nil {
		return m.reset(m, c, rule, subject)
	}
	return m.Limits.Reset(c, rule, subject)
}

// decisions is a fault in what Take says.
func decisions(change func(d *ratelimit.Decision)) func(m *limitMutant) {
	return func(m *limitMutant) {
		m.take = func(m *limitMutant, c ctx, charges []ratelimit.Charge) (ratelimit.Decision, error) {
			d, err := m.Limits.Take(c, charges)
			change(&d)
			return d, err
		}
	}
}

// asked is a fault in what Take is asked; the answer names the right charges.
func asked(change func(c *ratelimit.Charge)) func(m *limitMutant) {
	return func(m *limitMutant) {
		m.take = func(m *limitMutant, c ctx, charges []ratelimit.Charge) (ratelimit.Decision, error) {
			own := append([]ratelimit.Charge(nil), charges...)
			for i := range own {
				change(&own[i])
			}
			d, err := m.Limits.Take(c, own)
			for i := range d.Levels {
				d.Levels[i].Rule, d.Levels[i].Subject = charges[i].Rule, charges[i].Subject
			}
			return d, err
		}
	}
}

var limitMutants = []struct {
	name   string
	caught string
	spoil  func(m *limitMutant)
}{
	{"a refusal charges the levels that allow", "Q1AllOrNone Q1Charges PropertyConcurrentTakesAreAll HistoryOfTakes MachineFollowsTheRules", func(m *limitMutant) {
		m.take = func(m *limitMutant, c ctx, charges []ratelimit.Charge) (ratelimit.Decision, error) {
			d, err := m.Limits.Take(c, charges)
			if err == nil && !d.Allowed {
				for i, x := range charges {
					if d.Levels[i].Allowed {
						_, _ = m.Limits.Take(c, []ratelimit.Charge{x})
					}
				}
			}
			return d, err
		}
	}},
	{"levels are taken one by one, and given back", "HistoryOfTakes", func(m *limitMutant) {
		m.take = func(m *limitMutant, c ctx, charges []ratelimit.Charge) (ratelimit.Decision, error) {
			var taken []*ratelimit.Taken
			for _, x := range charges {
				d, err := m.Limits.Take(c, []ratelimit.Charge{x})
				if err != nil || !d.Allowed {
					break
				}
				taken = append(taken, d.Taken)
				runtime.Gosched()
			}
			for i := len(taken) - 1; i >= 0; i-- {
				_ = m.Limits.Return(c, taken[i])
			}
			return m.Limits.Take(c, charges)
		}
	}},
	{"looks, then takes", "PropertyConcurrentTakesKeep HistoryOfTakes", func(m *limitMutant) {
		m.take = func(m *limitMutant, c ctx, charges []ratelimit.Charge) (ratelimit.Decision, error) {
			look := append([]ratelimit.Charge(nil), charges...)
			for i := range look {
				look[i].Cost = 0
			}
			before, err := m.Limits.Take(c, look)
			if err != nil {
				return m.Limits.Take(c, charges)
			}
			runtime.Gosched()
			d, err := m.Limits.Take(c, charges)
			fits := err == nil
			for i, l := range before.Levels {
				fits = fits && l.Remaining >= charges[i].Cost
			}
			if fits && !d.Allowed { // it had been free
				for i := range d.Levels {
					d.Levels[i].Allowed, d.Levels[i].RetryAfter = true, 0
				}
				d.Allowed, d.Taken = true, new(ratelimit.Taken)
			}
			return d, err
		}
	}},
	{"a refusal takes what is left", "Q2Refusal MachineFollowsTheRules", func(m *limitMutant) {
		m.take = func(m *limitMutant, c ctx, charges []ratelimit.Charge) (ratelimit.Decision, error) {
			d, err := m.Limits.Take(c, charges)
			if err == nil && !d.Allowed {
				for i, l := range d.Levels {
					if l.Remaining > 0 {
						x := charges[i]
						x.Cost = l.Remaining
						_, _ = m.Limits.Take(c, []ratelimit.Charge{x})
					}
				}
			}
			return d, err
		}
	}},
	{"a look costs one", "Q3Cost Q3Look MachineFollowsTheRules", asked(func(c *ratelimit.Charge) { c.Cost = max(c.Cost, 1) })},
	{"a negative cost looks", "InvalidCharge", asked(func(c *ratelimit.Charge) { c.Cost = max(c.Cost, 0) })},
	{"the wait is 1µs short", "Q6WaitIsExact Q2Refusal MachineFollowsTheRules", decisions(func(d *ratelimit.Decision) {
		for i := range d.Levels {
			if d.Levels[i].RetryAfter > time.Microsecond {
				d.Levels[i].RetryAfter -= time.Microsecond
			}
		}
	})},
	{"the wait is in whole milliseconds", "Q6WaitIsExact MachineFollowsTheRules", decisions(func(d *ratelimit.Decision) {
		for i := range d.Levels {
			d.Levels[i].RetryAfter = (d.Levels[i].RetryAfter + time.Millisecond - 1).Truncate(time.Millisecond)
		}
	})},
	{"what can never pass may wait", "Q6Never MachineFollowsTheRules", decisions(func(d *ratelimit.Decision) {
		for i := range d.Levels {
			if d.Levels[i].Never {
				d.Levels[i].Never, d.Levels[i].RetryAfter = false, time.Second
			}
		}
	})},
	{"a cost above the capacity is cut to it", "Q6Never MachineFollowsTheRules", asked(func(c *ratelimit.Charge) { c.Cost = min(c.Cost, c.Rule.Capacity()) })},
	{"the burst is one more", "Q5Bucket Q6Never PropertyEvery MachineFollowsTheRules", asked(func(c *ratelimit.Charge) {
		if c.Rule.Algorithm == ratelimit.TokenBucket && c.Rule.Quota > 0 {
			c.Rule.Burst = c.Rule.Capacity() + 1
		}
	})},
	{"the log's window is 1µs short", "Q5LogHolds MachineFollowsTheRules", asked(func(c *ratelimit.Charge) {
		if c.Rule.Algorithm == ratelimit.SlidingWindowLog && c.Rule.Window > time.Microsecond {
			c.Rule.Window -= time.Microsecond
		}
	})},
	{"new numbers are a new bucket", "Q7Higher Q7Lower Q7Past Q7Switching Q7Log MachineFollowsTheRules", asked(func(c *ratelimit.Charge) {
		if c.Rule.Validate() == nil {
			c.Subject += c.Rule.Window.String() + strings.Repeat("q", int(c.Rule.Quota%97))
		}
	})},
	{"rule and subject run together", "Q1Rules", func(m *limitMutant) {
		asked(func(c *ratelimit.Charge) {
			if c.Rule.Algorithm == ratelimit.TokenBucket && c.Rule.Validate() == nil && len(c.Subject)+len(c.Rule.Name) < 200 {
				c.Subject, c.Rule.Name = c.Rule.Name+c.Subject, "all"
			}
		})(m)
	}},
	{"subjects are folded to lower case", "Q1Rules", asked(func(c *ratelimit.Charge) { c.Subject = strings.ToLower(c.Subject) })},
	{"a clock that steps back refills", "Q4Clock MachineFollowsTheRules", func(m *limitMutant) {
		m.take = func(m *limitMutant, c ctx, charges []ratelimit.Charge) (ratelimit.Decision, error) {
			if now := m.clock.Now(); now.Before(m.last) {
				for _, x := range charges {
					_ = m.Limits.Reset(c, x.Rule.Name, x.Subject)
				}
			} else {
				m.last = now
			}
			return m.Limits.Take(c, charges)
		}
	}},
	{"what was taken can be returned again", "ReturnGives ReturnBy MachineFollowsTheRules", func(m *limitMutant) {
		m.giveBack = func(m *limitMutant, c ctx, t *ratelimit.Taken) error {
			if t == nil {
				return nil
			}
			for i := range t.Charges { // as often as it is asked
				_, _ = m.Limits.Take(c, nil)
				look := t.Charges[i]
				look.Cost = 0
				d, err := m.Limits.Take(c, []ratelimit.Charge{look})
				if err == nil && t.Charges[i].Cost > 0 {
					have := d.Levels[0].Remaining + t.Charges[i].Cost
					_ = m.Limits.Reset(c, look.Rule.Name, look.Subject)
					look.Cost = max(0, look.Rule.Capacity()-have)
					_, _ = m.Limits.Take(c, []ratelimit.Charge{look})
				}
			}
			return nil
		}
	}},
	{"Return does nothing", "ReturnGives MachineFollowsTheRules", func(m *limitMutant) {
		m.giveBack = func(*limitMutant, ctx, *ratelimit.Taken) error { return nil }
	}},
	{"Reset does nothing", "ResetForgets MachineFollowsTheRules", func(m *limitMutant) {
		m.reset = func(*limitMutant, ctx, string, string) error { return nil }
	}},
	{"what is left is before the charge", "Q1Levels MachineFollowsTheRules", func(m *limitMutant) {
		m.take = func(m *limitMutant, c ctx, charges []ratelimit.Charge) (ratelimit.Decision, error) {
			d, err := m.Limits.Take(c, charges)
			for i := range d.Levels {
				if d.Allowed {
					d.Levels[i].Remaining = min(d.Levels[i].Remaining+charges[i].Cost, charges[i].Rule.Capacity())
				}
			}
			return d, err
		}
	}},
}

func TestSuiteRefusesLimitMutants(t *testing.T) {
	for _, x := range limitMutants {
		t.Run(strings.ReplaceAll(x.name, " ", "_"), func(t *testing.T) {
			h := memory()
			h.New = nil
			h.NewLimits = func(t testing.TB, clock *storetest.Clock) ratelimit.Store {
				m := &limitMutant{Limits: newLimits(t, clock), clock: clock}
				x.spoil(m)
				return m
			}
			mustRefuse(t, h, x.caught)
		})
	}
}
