package memstore

import (
	"strings"
	"sync"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// limitShard is a part of the subjects: a hash table with open addressing over
// a dense array of entries. The table's items are 4 bytes, so that a search
// seldom leaves a cache line before it finds its entry.
type limitShard struct {
	mu sync.Mutex
	// index has a power of two of items: 0, or the upper 12 bits of a hash and
	// below them a slot plus 1.
	index   []uint32
	entries []limitEntry
	used    int    // entries that are not free
	free    int    // slot of the first free entry, or none
	cursor  int    // slot at which the next sweep goes on
	since   int64  // the least Since that a new state may have
	last    uint32 // the policy that was interned last
	// policies are what states were written with; item 0 stands for a free
	// entry. Entries share them: rules are few.
	policies []limitPolicy
	byTerms  map[limitTerms]uint32
	// logs are the states of sliding window logs; an entry's rem names one.
	logs     []ratelimit.State
	freeLogs []int
	// returned has the State.Returned of the buckets where it is not 0.
	returned map[int]int64

	_ [40]byte // a shard's lock has its cache lines for itself
}

// limitEntry is one subject of one rule: 48 bytes.
type limitEntry struct {
	subject string
	arrival int64
	rem     int64 // of a log: its place in logs; of a free entry: the next one
	since   int64
	policy  uint32 // 0 if the entry is free
	hash    uint32 // the lower half
}

// limitTerms is what a rule's name was written with last.
type limitTerms struct {
	name                 string
	window, quota, burst int64 // as in State
	log                  bool
}

type limitPolicy struct {
	limitTerms
	refs int // entries that use it
}

const (
	none     = -1
	slotBits = 20
	slotMask = 1<<slotBits - 1
	mostSlot = slotMask - 1
)

func tag(hash uint64) uint32 { return uint32(hash>>44) &^ slotMask }

// view is an entry's state while it is worked on.
type view struct {
	slot  int // none if nothing is held
	state ratelimit.State
}

// find returns the slot of a subject, or none.
func (sh *limitShard) find(hash uint64, rule, subject string) int {
	if sh.used == 0 {
		return none
	}
	mask := uint32(len(sh.index) - 1)
	want := tag(hash)
	for i := uint32(hash) & mask; ; i = (i + 1) & mask {
		item := sh.index[i]
		if item == 0 {
			return none
		}
		if item&^slotMask == want {
			slot := int(item&slotMask) - 1
			e := &sh.entries[slot]
			if e.subject == subject && sh.policies[e.policy].name == rule {
				return slot
			}
		}
	}
}

// knows reports whether the charge's rule and subject are those that wrote the
// entry, so that they were validated then.
func (sh *limitShard) knows(slot int, c *ratelimit.Charge) bool {
	if slot == none || c.Cost < 0 || c.Kind > ratelimit.Executions {
		return false
	}
	p := &sh.policies[sh.entries[slot].policy]
	if c.Rule.Quota != p.quota || c.Rule.Window != time.Duration(p.window)*time.Microsecond {
		return false
	}
	if p.log {
		return c.Rule.Algorithm == ratelimit.SlidingWindowLog && c.Rule.Burst == 0
	}
	return c.Rule.Algorithm == ratelimit.TokenBucket && c.Rule.Capacity() == p.burst
}

// load fills v.state, which must be zero, from the entry v.slot.
func (sh *limitShard) load(v *view) {
	if v.slot == none {
		v.state.Since = sh.since
		return
	}
	e := &sh.entries[v.slot]
	p := &sh.policies[e.policy]
	if p.log {
		v.state = sh.logs[e.rem]
		return
	}
	v.state.Arrival, v.state.Rem, v.state.Since = e.arrival, e.rem, e.since
	v.state.Window, v.state.Quota, v.state.Burst = p.window, p.quota, p.burst
	if len(sh.returned) > 0 {
		v.state.Returned = sh.returned[v.slot]
	}
}

// save writes v.state to the entry v.slot.
func (sh *limitShard) save(v *view) {
	s := &v.state
	e := &sh.entries[v.slot]
	p := &sh.policies[e.policy]
	e.since = s.Since
	if s.Window <= 0 { // a log that has no entries left: only a Return does that
		sh.logs[e.rem] = *s
		return
	}
	isLog := len(s.Log) > s.Head
	if p.window != s.Window || p.quota != s.Quota || p.burst != s.Burst || p.log != isLog {
		old, was := e.policy, p.log
		e.policy = sh.intern(limitTerms{p.name, s.Window, s.Quota, s.Burst, isLog})
		sh.release(old)
		switch {
		case was && !isLog:
			sh.dropLog(int(e.rem))
		case isLog && !was:
			e.rem = sh.newLog()
		}
	}
	e.arrival = s.Arrival
	if isLog {
		sh.logs[e.rem] = *s
		return
	}
	e.rem = s.Rem
	if s.Returned != 0 {
		if sh.returned == nil {
			sh.returned = make(map[int]int64)
		}
		sh.returned[v.slot] = s.Returned
	} else if len(sh.returned) > 0 {
		delete(sh.returned, v.slot)
	}
}

// insert makes an entry for v.state, which must not be absent, and sets v.slot.
// The shard must have room for it.
func (sh *limitShard) insert(v *view, hash uint64, rule, subject string) {
	if 4*(sh.used+1) > 3*len(sh.index) {
		sh.grow()
	}
	if sh.used == 0 {
		sh.free = none
		sh.entries, sh.cursor = sh.entries[:0], 0
	}
	slot := sh.free
	if slot != none {
		sh.free = int(sh.entries[slot].rem)
	} else {
		if n := len(sh.entries); n == cap(sh.entries) {
			more := make([]limitEntry, n, n+n/8+8)
			copy(more, sh.entries)
			sh.entries = more
		}
		slot = len(sh.entries)
		sh.entries = append(sh.entries, limitEntry{})
	}
	s := &v.state
	isLog := len(s.Log) > s.Head
	// The caller's strings may be parts of something large.
	e := limitEntry{subject: strings.Clone(subject), hash: uint32(hash)}
	e.policy = sh.intern(limitTerms{rule, s.Window, s.Quota, s.Burst, isLog})
	if isLog {
		e.rem = sh.newLog()
	}
	sh.entries[slot] = e
	sh.used++
	sh.put(uint32(hash), tag(hash)|uint32(slot+1))
	v.slot = slot
	sh.save(v)
}

// put adds an item to the index.
func (sh *limitShard) put(hash, item uint32) {
	mask := uint32(len(sh.index) - 1)
	i := hash & mask
	for sh.index[i] != 0 {
		i = (i + 1) & mask
	}
	sh.index[i] = item
}

func (sh *limitShard) grow() {
	old := sh.index
	sh.index = make([]uint32, max(8, 2*len(old)))
	for _, item := range old {
		if item != 0 {
			sh.put(sh.entries[item&slotMask-1].hash, item)
		}
	}
}

// remove forgets the entry.
func (sh *limitShard) remove(slot int) {
	e := &sh.entries[slot]
	mask := uint32(len(sh.index) - 1)
	i := e.hash & mask
	for int(sh.index[i]&slotMask) != slot+1 {
		i = (i + 1) & mask
	}
	// Knuth, Algorithm 6.4R: later items move up, but not before their place.
	for j := i; ; {
		sh.index[i] = 0
		for {
			j = (j + 1) & mask
			item := sh.index[j]
			if item == 0 {
				sh.unlink(slot, e)
				return
			}
			home := sh.entries[item&slotMask-1].hash & mask
			if (j-home)&mask >= (j-i)&mask {
				sh.index[i] = item
				i = j
				break
			}
		}
	}
}

// unlink frees an entry that the index no longer names.
func (sh *limitShard) unlink(slot int, e *limitEntry) {
	if sh.policies[e.policy].log {
		sh.dropLog(int(e.rem))
	}
	sh.release(e.policy)
	if len(sh.returned) > 0 {
		delete(sh.returned, slot)
	}
	// INVARIANT: a receipt of the forgotten state never fits a later one.
	sh.since = max(sh.since, e.since+1)
	*e = limitEntry{rem: int64(sh.free)}
	sh.free = slot
	sh.used--
}

// sweep looks at n entries, from where the last sweep ended, forgets those that
// say nothing, and returns how many.
func (sh *limitShard) sweep(now int64, n int) (removed int) {
	for range min(n, len(sh.entries)) {
		if sh.cursor >= len(sh.entries) {
			sh.cursor = 0
		}
		slot := sh.cursor
		sh.cursor++
		e := &sh.entries[slot]
		if e.policy == 0 {
			continue
		}
		idle := e.arrival < now // as State.Idle says it of a bucket
		if p := &sh.policies[e.policy]; p.log {
			idle = sh.logs[e.rem].Idle(now)
		}
		if idle {
			sh.remove(slot)
			removed++
		}
	}
	return removed
}

// intern returns the place of a policy with these terms, and counts its use.
func (sh *limitShard) intern(t limitTerms) uint32 {
	if len(sh.policies) > 0 && sh.policies[sh.last].limitTerms == t && sh.last != 0 {
		sh.policies[sh.last].refs++
		return sh.last
	}
	i, ok := sh.byTerms[t]
	if !ok {
		t.name = strings.Clone(t.name)
		if sh.byTerms == nil {
			sh.byTerms = make(map[limitTerms]uint32)
			sh.policies = make([]limitPolicy, 1)
		}
		for i = 1; int(i) < len(sh.policies) && sh.policies[i].refs > 0; i++ {
			continue
		}
		if int(i) == len(sh.policies) {
			sh.policies = append(sh.policies, limitPolicy{})
		}
		sh.policies[i] = limitPolicy{limitTerms: t}
		sh.byTerms[t] = i
	}
	sh.policies[i].refs++
	sh.last = i
	return i
}

func (sh *limitShard) release(policy uint32) {
	p := &sh.policies[policy]
	if p.refs--; p.refs == 0 {
		delete(sh.byTerms, p.limitTerms)
		*p = limitPolicy{}
	}
}

func (sh *limitShard) newLog() int64 {
	if n := len(sh.freeLogs); n > 0 {
		i := sh.freeLogs[n-1]
		sh.freeLogs = sh.freeLogs[:n-1]
		return int64(i)
	}
	sh.logs = append(sh.logs, ratelimit.State{})
	return int64(len(sh.logs) - 1)
}

func (sh *limitShard) dropLog(i int) {
	sh.logs[i] = ratelimit.State{}
	sh.freeLogs = append(sh.freeLogs, i)
}
