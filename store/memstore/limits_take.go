package memstore

import (
	"fmt"
	"math"
	"slices"

	"github.com/escapement-dev/escapement/ratelimit"
)

const (
	sweepPerInsert = 8    // entries looked at for each new subject
	sweepForRoom   = 4096 // entries looked at when the store is full
)

// store writes v to its shard, where that is locked; a new subject needs room.
func (m *Limits) store(sh *limitShard, v *view, hash uint64, c *ratelimit.Charge, now int64) error {
	if v.slot != none {
		sh.save(v)
		return nil
	}
	m.live.Add(int64(-sh.sweep(now, sweepPerInsert)))
	if sh.used > mostSlot || !m.reserve(1) {
		return ErrFull
	}
	sh.insert(v, hash, c.Rule.Name, c.Subject)
	return nil
}

// reserve counts n new subjects, if there is room for all of them.
func (m *Limits) reserve(n int) bool {
	for {
		held := m.live.Load()
		if held+int64(n) > m.max {
			return false
		}
		if m.live.CompareAndSwap(held, held+int64(n)) {
			return true
		}
	}
}

// makeRoom forgets n or more subjects of which nothing is to be known, if it
// finds any. No lock may be held.
func (m *Limits) makeRoom(n int) bool {
	freed := 0
	left := sweepForRoom
	start := m.next.Load()
	for i := range uint32(shards) {
		sh := &m.shards[(start+i)%shards]
		sh.mu.Lock()
		look := min(left, sh.slots)
		if look > 0 {
			freed += sh.sweep(m.micros(), look)
			left -= look
		}
		sh.mu.Unlock()
		m.next.Store(start + i)
		if freed >= n || left == 0 {
			break
		}
	}
	m.live.Add(int64(-freed))
	return freed > 0
}

// part is one charge of several.
type part struct {
	view
	hash  uint64
	first int   // the first part that names the same rule and subject
	cost  int64 // of the parts up to this one that name it
}

// takeAll charges several, or none at all.
func (m *Limits) takeAll(charges []ratelimit.Charge, d *ratelimit.Decision, t *ratelimit.Taken) error {
	var partRoom [4]part
	var lockRoom [4]uint8
	parts, locks := partRoom[:0], lockRoom[:0]
	if len(charges) > len(partRoom) {
		parts, locks = make([]part, 0, len(charges)), make([]uint8, 0, len(charges))
	}
	same := false
	for i := range charges {
		c := &charges[i]
		p := part{hash: m.hash(c.Rule.Name, c.Subject), first: i, cost: c.Cost}
		for j := range parts {
			if parts[j].hash != p.hash || charges[j].Rule.Name != c.Rule.Name || charges[j].Subject != c.Subject {
				continue
			}
			if charges[j].Rule != c.Rule {
				return fmt.Errorf("memstore: %w: %d and %d: rule %q with different numbers in one call", ratelimit.ErrCharge, j, i, c.Rule.Name)
			}
			p.first = parts[j].first
			same = true
		}
		parts = append(parts, p)
		if at := shardOf(p.hash); !slices.Contains(locks, at) {
			locks = append(locks, at)
		}
	}
	// INVARIANT: locks are taken in ascending order, so no two calls wait for
	// each other.
	slices.Sort(locks)
	for _, at := range locks {
		m.shards[at].mu.Lock()
	}
	defer func() {
		for _, at := range locks {
			m.shards[at].mu.Unlock()
		}
	}()

	for i := range parts {
		p, c := &parts[i], &charges[i]
		sh := m.shard(p.hash)
		p.slot = sh.find(p.hash, c.Rule.Name, c.Subject)
		if !sh.knows(p.slot, c) {
			if err := c.Validate(); err != nil {
				return fmt.Errorf("memstore: charge %d: %w", i, err)
			}
		}
		if p.first == i {
			sh.load(&p.view)
		}
	}
	now := m.micros()

	d.Allowed = true
	for i := range parts {
		p, c := &parts[i], &charges[i]
		d.Levels = append(d.Levels, ratelimit.Level{Rule: c.Rule, Subject: c.Subject})
		if same && c.Cost > 0 {
			for j := p.first; j < i; j++ {
				if parts[j].first == p.first {
					p.cost = sum(p.cost, charges[j].Cost)
				}
			}
		}
		c.Rule.LookAt(&parts[p.first].state, p.cost, now, &d.Levels[i])
		d.Allowed = d.Allowed && d.Levels[i].Allowed
	}
	if !d.Allowed {
		m.refuse(parts, charges, d, now)
		return nil
	}
	return m.commit(parts, charges, d, t, now, same)
}

// sum is a + b, both not negative, or the greatest int64.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// refuse completes the levels of a refusal, and writes what a new rule or a
// clock that stepped back has to have written (see Rule.Take), and nothing else.
func (m *Limits) refuse(parts []part, charges []ratelimit.Charge, d *ratelimit.Decision, now int64) {
	for i := range parts {
		p, c, l := &parts[i], &charges[i], &d.Levels[i]
		first := &parts[p.first]
		if l.Allowed {
			c.Rule.LookAt(&first.state, 0, now, l)
		} else if first.slot != none && c.Rule.TakeAt(&first.state, p.cost, now, l) {
			m.shard(p.hash).save(&first.view)
		}
	}
}

// commit charges all parts. Nothing has changed if it fails.
func (m *Limits) commit(parts []part, charges []ratelimit.Charge, d *ratelimit.Decision, t *ratelimit.Taken, now int64, same bool) error {
	fresh := 0
	for i := range parts {
		p := &parts[i]
		if charges[i].Cost > 0 && parts[p.first].slot == none && p.cost == charges[i].Cost { // the first that costs
			if m.shard(p.hash).used+len(parts) > mostSlot {
				return ErrFull
			}
			fresh++
		}
	}
	if !m.reserve(fresh) {
		return ErrFull
	}
	for i := range parts {
		p, c := &parts[i], &charges[i]
		first := &parts[p.first]
		if c.Rule.TakeAt(&first.state, c.Cost, now, &d.Levels[i]) {
			sh := m.shard(p.hash)
			if first.slot == none {
				sh.insert(&first.view, p.hash, c.Rule.Name, c.Subject)
			} else {
				sh.save(&first.view)
			}
		}
		if t != nil {
			note(t, c, &first.state, now)
		}
	}
	if fresh > 0 {
		// INVARIANT: only now, since until now the parts name slots.
		for i := range parts {
			m.live.Add(int64(-m.shard(parts[i].hash).sweep(now, sweepPerInsert)))
		}
	}
	if same { // every level says what is left after all of them
		for i := range parts {
			charges[i].Rule.LookAt(&parts[parts[i].first].state, 0, now, &d.Levels[i])
		}
	}
	return nil
}
