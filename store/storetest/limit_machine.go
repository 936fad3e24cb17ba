package storetest

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/escapement-dev/escapement/ratelimit"
)

// limitMachineCases compare a store of limits with the rules, step by step.
var limitMachineCases = []Case{
	{Name: "MachineFollowsTheRules", Run: func(t testing.TB, h Harness) {
		t.Helper()
		kinds := []string{
			"allowed", "refused", "never", "look", "several allowed", "several refused", "one bucket twice", "no charges",
			"rule changed", "return", "return again", "return gave nothing", "reset", "clock forward", "clock back",
		}
		explore(t, h, kinds, func(s *scope, rt *rapid.T, count func(string)) {
			m := &limitMachine{limitEnv: newLimitEnv(s, h), rt: rt, count: count, oracle: limitOracle{}}
			m.floor = m.clock.Now().Add(-time.Minute)
			rt.Repeat(map[string]func(*rapid.T){
				"": func(*rapid.T) {}, "Take": m.takeStep, "TakeMore": m.takeStep, "TakeStillMore": m.takeStep,
				"Return": m.returnStep, "Reset": m.resetStep, "Forward": m.forward, "ForwardMore": m.forward, "Back": m.back,
			})
		})
	}},
}

// bucketName names a bucket or a log.
type bucketName struct{ rule, subject string }

// limitOracle is a store of limits that cannot be wrong: the rules' pure
// functions over a map.
type limitOracle map[bucketName]ratelimit.State

func nameOf(c ratelimit.Charge) bucketName { return bucketName{c.Rule.Name, c.Subject} }

// take decides, and returns the decision's levels and one receipt per charge.
func (o limitOracle) take(charges []ratelimit.Charge, now time.Time) (allowed bool, levels []ratelimit.Level, receipts []ratelimit.Receipt) {
	allowed = true
	sums := map[bucketName]int64{}
	for _, c := range charges {
		n := nameOf(c)
		cost := c.Cost
		if cost > 0 {
			cost += min(sums[n], 1<<62)
			if cost < 0 {
				cost = 1<<63 - 1
			}
			sums[n] = cost
		}
		_, l := c.Rule.Take(o[n], cost, now)
		l.Subject = c.Subject
		levels = append(levels, l)
		allowed = allowed && l.Allowed
	}
	if !allowed {
		clear(sums)
		for i, c := range charges {
			n := nameOf(c)
			sums[n] += c.Cost
			if !levels[i].Allowed { // what Rule.Take repairs is written
				s, _ := c.Rule.Take(o[n], sums[n], now)
				o.set(n, s)
			}
		}
		for i, c := range charges {
			if levels[i].Allowed {
				_, l := c.Rule.Take(o[nameOf(c)], 0, now)
				levels[i].Remaining, levels[i].ResetAfter = l.Remaining, l.ResetAfter
			}
		}
		return false, levels, nil
	}
	for _, c := range charges {
		n := nameOf(c)
		var rc ratelimit.Receipt
		if c.Cost > 0 {
			s, _ := c.Rule.Take(o[n], c.Cost, now)
			o.set(n, s)
			rc = s.Receipt(now.UnixMicro())
		}
		receipts = append(receipts, rc)
	}
	for i, c := range charges {
		_, l := c.Rule.Take(o[nameOf(c)], 0, now)
		levels[i].Remaining, levels[i].ResetAfter = l.Remaining, l.ResetAfter
	}
	return true, levels, receipts
}

func (o limitOracle) set(n bucketName, s ratelimit.State) {
	if _, there := o[n]; there || s.Window != 0 {
		o[n] = s
	}
}

// giveBack returns what the charges took, and reports whether that changed
// anything.
func (o limitOracle) giveBack(charges []ratelimit.Charge, receipts []ratelimit.Receipt, now time.Time) (gave bool) {
	for i, c := range charges {
		n := nameOf(c)
		s, there := o[n]
		if !there {
			continue
		}
		_, before := c.Rule.Take(s, 0, now)
		s = c.Rule.Return(s, c.Cost, receipts[i], now)
		_, after := c.Rule.Take(s, 0, now)
		gave = gave || after.ResetAfter != before.ResetAfter
		o[n] = s
	}
	return gave
}

// limitMachine is a store of limits beside the oracle.
type limitMachine struct {
	*limitEnv
	rt       *rapid.T
	count    func(kind string)
	oracle   limitOracle
	taken    []takenPair
	lastRule map[bucketName]ratelimit.Rule
	// floor is the earliest time to which the clock may step back: a store may
	// have forgotten by then what was full.
	floor time.Time
}

// takenPair is one Take: the store's receipt and the oracle's.
type takenPair struct {
	store    *ratelimit.Taken
	charges  []ratelimit.Charge
	receipts []ratelimit.Receipt
	returned bool
}

// machineRules are the rules of which the store keeps the algorithm.
func machineRules(h Harness) (list [][]ratelimit.Rule) {
	for _, versions := range allMachineRules {
		if kept := h.kept(versions...); len(kept) > 0 {
			list = append(list, kept)
		}
	}
	return list
}

// allMachineRules are two buckets with changing numbers and a log. The log's
// window stays: a longer one may find entries that a store was free to forget.
var allMachineRules = [][]ratelimit.Rule{
	{bucket("one", 3, time.Second, 5), bucket("one", 7, 10*time.Second, 4), bucket("one", 1_000_003, time.Second, 8)},
	{bucket("two", 2, time.Microsecond*3, 6)},
	{bucket("three", 1, time.Minute, 3)},
	{windowLog("log", 4, 10*time.Second), windowLog("log", 2, 10*time.Second)},
}

func (m *limitMachine) takeStep(*rapid.T) {
	n := rapid.SampledFrom([]int{1, 1, 1, 2, 3, 0}).Draw(m.rt, "charges")
	var charges []ratelimit.Charge
	rules := map[string]ratelimit.Rule{} // one rule has one set of numbers within a call
	twice := false
	for range n {
		versions := rapid.SampledFrom(machineRules(m.h)).Draw(m.rt, "rule")
		r := rapid.SampledFrom(versions).Draw(m.rt, "numbers")
		if old, there := rules[r.Name]; there {
			r = old
		}
		rules[r.Name] = r
		c := charge(r, rapid.SampledFrom([]string{"x", "x", "y"}).Draw(m.rt, "subject"),
			rapid.SampledFrom([]int64{1, 1, 1, 2, 3, 0, 100}).Draw(m.rt, "cost"))
		for _, o := range charges {
			twice = twice || nameOf(o) == nameOf(c)
		}
		charges = append(charges, c)
	}
	if m.lastRule == nil {
		m.lastRule = map[bucketName]ratelimit.Rule{}
	}
	for _, c := range charges {
		if old, there := m.lastRule[nameOf(c)]; there && old != c.Rule {
			m.count("rule changed")
		}
		m.lastRule[nameOf(c)] = c.Rule
	}
	now := m.clock.Now()
	allowed, levels, receipts := m.oracle.take(charges, now)
	d := m.take(charges...)
	if d.Allowed != allowed || showLevels(d.Levels) != showLevels(levels) {
		m.Fatalf("Take of %s is\n%s\nthe rules say\n%s", showCharges(charges), showLevels(d.Levels), showLevels(levels))
	}
	if allowed && d.Taken != nil {
		m.taken = append(m.taken, takenPair{store: d.Taken, charges: charges, receipts: receipts})
	}
	kind := "allowed"
	if !allowed {
		kind = "refused"
	}
	switch {
	case n == 0:
		m.count("no charges")
	case n > 1:
		m.count("several " + kind)
	default:
		m.count(kind)
	}
	for i, l := range levels {
		if l.Never {
			m.count("never")
		}
		if charges[i].Cost == 0 {
			m.count("look")
		}
	}
	if twice && allowed {
		m.count("one bucket twice")
	}
	m.compare("Take")
}

func (m *limitMachine) returnStep(*rapid.T) {
	if len(m.taken) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.taken)-1).Draw(m.rt, "taken")
	t := &m.taken[i]
	m.giveBack(t.store)
	switch {
	case t.returned:
		m.count("return again")
	case m.oracle.giveBack(t.charges, t.receipts, m.clock.Now()):
		m.count("return")
	default:
		m.count("return gave nothing")
	}
	t.returned = true
	m.compare("Return")
}

func (m *limitMachine) resetStep(*rapid.T) {
	n := bucketName{
		rapid.SampledFrom([]string{"one", "three", "log"}).Draw(m.rt, "rule"),
		rapid.SampledFrom([]string{"x", "y"}).Draw(m.rt, "subject"),
	}
	m.reset(n.rule, n.subject)
	if _, there := m.oracle[n]; there {
		m.count("reset")
	}
	delete(m.oracle, n)
	// A receipt of this very microsecond could fit what comes next.
	m.clock.Advance(tick)
	m.floor = latest(m.floor, m.clock.Now())
	m.compare("Reset")
}

func (m *limitMachine) forward(*rapid.T) {
	by := rapid.SampledFrom([]time.Duration{
		tick, 2 * tick, 142858 * time.Microsecond, 333333 * time.Microsecond, 333334 * time.Microsecond,
		time.Second, 10*time.Second - tick, 10 * time.Second, time.Minute,
	}).Draw(m.rt, "by")
	m.clock.Advance(by)
	m.count("clock forward")
	m.compare("the clock went on")
}

func (m *limitMachine) back(*rapid.T) {
	now := m.clock.Now()
	to := now.Add(-rapid.SampledFrom([]time.Duration{tick, time.Second, 20 * time.Second}).Draw(m.rt, "by"))
	if to.Before(m.floor) {
		to = m.floor
	}
	if !to.Before(now) {
		return
	}
	m.clock.Set(to)
	m.count("clock back")
	m.compare("the clock stepped back")
}

// compare looks at every bucket and log.
func (m *limitMachine) compare(what string) {
	m.Helper()
	now := m.clock.Now()
	for _, versions := range machineRules(m.h) {
		for _, subject := range []string{"x", "y"} {
			n := bucketName{versions[0].Name, subject}
			r, there := m.lastRule[n]
			if !there {
				r = versions[0]
			}
			s := m.oracle[n]
			_, want := r.Take(s, 0, now)
			want.Subject = subject
			if got := m.look(r, subject); got != want {
				m.Fatalf("after %s the level is\n%s\nthe rules say\n%s", what, showLevels([]ratelimit.Level{got}), showLevels([]ratelimit.Level{want}))
			}
			if s.Window != 0 && s.Idle(now.UnixMicro()) {
				m.floor = latest(m.floor, now)
			}
		}
	}
}
