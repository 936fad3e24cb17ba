package ratelimit

import "math"

// TakeAll charges all of the charges or none (Q1), for stores: states has each
// charge's state, which it changes in place; charges of one rule and subject
// have the same pointer, and the same rule. Now is in microseconds since 1970.
// The decision's Taken has copies of the charges.
//
// A refusal changes a state only as [Rule.Take] says: by a repair. It
// allocates little, and is meant for few charges. They must be valid.
func TakeAll(charges []Charge, states []*State, now int64) Decision {
	d := Decision{Allowed: true, Levels: make([]Level, len(charges))}
	same := false
	cost := func(i int) int64 { // with the charges before it, of one state
		sum := charges[i].Cost
		for j := range i {
			if states[j] == states[i] {
				same = true
				if sum > 0 {
					sum = min(sum, math.MaxInt64/2) + min(charges[j].Cost, math.MaxInt64/2)
				}
			}
		}
		return sum
	}
	for i := range charges {
		c, l := &charges[i], &d.Levels[i]
		l.Rule, l.Subject = c.Rule, c.Subject
		c.Rule.LookAt(states[i], cost(i), now, l)
		d.Allowed = d.Allowed && l.Allowed
	}
	if !d.Allowed {
		for i := range charges {
			c, l := &charges[i], &d.Levels[i]
			if l.Allowed { // what is left without the charge
				c.Rule.LookAt(states[i], 0, now, l)
			} else {
				c.Rule.TakeAt(states[i], cost(i), now, l) // writes a repair
			}
		}
		return d
	}
	d.Taken = &Taken{Charges: append([]Charge(nil), charges...), Receipts: make([]Receipt, len(charges))}
	for i := range charges {
		c := &charges[i]
		c.Rule.TakeAt(states[i], c.Cost, now, &d.Levels[i])
		if c.Cost > 0 {
			d.Taken.Receipts[i] = states[i].Receipt(now)
		}
	}
	if same { // every level says what is left after all of them
		for i := range charges {
			charges[i].Rule.LookAt(states[i], 0, now, &d.Levels[i])
		}
	}
	return d
}
