package ratelimit_test

import (
	"math"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

func TestTakeAll(t *testing.T) {
	a := ratelimit.Rule{Name: "a", Quota: 10, Window: 10 * time.Second}
	b := ratelimit.Rule{Name: "b", Algorithm: ratelimit.SlidingWindowLog, Quota: 5, Window: 10 * time.Second}
	charge := func(r ratelimit.Rule, cost int64) ratelimit.Charge {
		return ratelimit.Charge{Rule: r, Subject: "s", Cost: cost}
	}
	for _, c := range []struct {
		name    string
		charges []ratelimit.Charge
		same    bool // all charges are of one state
		allowed bool
		left    []int64 // at each level
	}{
		{"both pass", []ratelimit.Charge{charge(a, 3), charge(b, 2)}, false, true, []int64{7, 3}},
		{"a look passes", []ratelimit.Charge{charge(a, 0), charge(b, 5)}, false, true, []int64{10, 0}},
		{"one refuses, none is charged", []ratelimit.Charge{charge(a, 3), charge(b, 6)}, false, false, []int64{10, 5}},
		{"in whatever order", []ratelimit.Charge{charge(b, 6), charge(a, 3)}, false, false, []int64{5, 10}},
		{"of one bucket they add up", []ratelimit.Charge{charge(a, 4), charge(a, 6)}, true, true, []int64{0, 0}},
		{"and a look among them", []ratelimit.Charge{charge(a, 4), charge(a, 0), charge(a, 4)}, true, true, []int64{2, 2, 2}},
		{"and do not fit", []ratelimit.Charge{charge(a, 4), charge(a, 7)}, true, false, []int64{10, 10}},
		{"and not beyond all numbers", []ratelimit.Charge{charge(a, math.MaxInt64), charge(a, math.MaxInt64)}, true, false, []int64{10, 10}},
		{"of one log too", []ratelimit.Charge{charge(b, 3), charge(b, 2)}, true, true, []int64{0, 0}},
	} {
		states := make([]*ratelimit.State, len(c.charges))
		for i := range states {
			if states[i] = new(ratelimit.State); c.same {
				states[i] = states[0]
			}
		}
		d := ratelimit.TakeAll(c.charges, states, epoch)
		if d.Allowed != c.allowed || (d.Taken != nil) != c.allowed {
			t.Errorf("%s: %+v", c.name, d)
			continue
		}
		for i, l := range d.Levels {
			if l.Remaining != c.left[i] || l.Rule != c.charges[i].Rule || l.Subject != "s" {
				t.Errorf("%s: level %d is %+v, want %d left", c.name, i, l, c.left[i])
			}
		}
		for i, st := range states {
			r := c.charges[i].Rule
			if !c.allowed && st.Window != 0 {
				t.Errorf("%s: a refusal changed the state %d to %+v", c.name, i, *st)
			}
			if c.allowed && c.charges[i].Cost > 0 && !r.ReturnAt(st, c.charges[i].Cost, d.Taken.Receipts[i], epoch) {
				t.Errorf("%s: the receipt %d gives nothing back", c.name, i)
			}
		}
		for i, st := range states { // all was given back
			var l ratelimit.Level
			if c.charges[i].Rule.LookAt(st, 0, epoch, &l); l.Remaining != c.charges[i].Rule.Capacity() {
				t.Errorf("%s: after the return %d are left", c.name, l.Remaining)
			}
		}
	}
}

// What a refusal repairs, it repairs in place: here the debt at a new rate.
func TestTakeAllRepairs(t *testing.T) {
	old := ratelimit.Rule{Name: "r", Quota: 10, Window: 10 * time.Second}
	next := old
	next.Quota = 5
	charges := []ratelimit.Charge{{Rule: old, Cost: 10}}
	var st ratelimit.State
	if d := ratelimit.TakeAll(charges, []*ratelimit.State{&st}, epoch); !d.Allowed {
		t.Fatalf("%+v", d)
	}
	charges[0] = ratelimit.Charge{Rule: next, Cost: 1}
	d := ratelimit.TakeAll(charges, []*ratelimit.State{&st}, epoch)
	if d.Allowed || st.Quota != 5 || d.Levels[0].RetryAfter != 12*time.Second { // 10 owed, 4 may stay, at 1 per 2 s
		t.Fatalf("%+v, and the state %+v", d, st)
	}
}
