package memstore

import (
	"encoding/binary"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// limitShard is a part of the subjects: a hash table with open addressing over
// dense chunks of entries. The table's items are 4 bytes, so that a search
// seldom leaves a cache line before it finds its entry, which is one other.
type limitShard struct {
	mu   sync.Mutex
	seed maphash.Seed
	// index has a power of two of items: 0, or the upper 12 bits of a hash and
	// below them a slot plus 1.
	index  []uint32
	chunks []*[chunk]limitEntry
	slots  int    // slots in use or free, from 0 on
	used   int    // entries that are not free
	free   int    // slot of the first free entry, or none
	cursor int    // slot at which the next sweep goes on
	since  int64  // the least Since that a new state may have
	last   uint32 // the policy that was interned last
	// policies are what states were written with; item 0 stands for a free
	// entry. Entries share them: rules are few.
	policies []limitPolicy
	byTerms  map[limitTerms]uint32
	// logs are the states of sliding window logs; an entry's rem names one.
	logs     []ratelimit.State
	freeLogs []int
	// long are the subjects that do not fit into an entry.
	long     []string
	freeLong []int
	// returned has the State.Returned of the buckets where it is not 0.
	returned map[int]int64

	_ [40]byte // a shard's lock has its cache lines for itself
}

// limitEntry is one subject of one rule: a cache line without pointers, so that
// the garbage collector has nothing to look at.
type limitEntry struct {
	arrival int64
	rem     int64 // of a log: its place in logs; of a free entry: the next one
	since   int64
	meta    uint32 // the policy, 0 if the entry is free, and above it the subject's size
	// text is the subject, or the place of a longer one in long.
	text [36]byte
}

// chunk is how many entries are allocated together.
const chunk = 128

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

// at is the entry of a slot.
func (sh *limitShard) at(slot int) *limitEntry { return &sh.chunks[uint(slot)/chunk][uint(slot)%chunk] }

func (e *limitEntry) policy() uint32     { return e.meta & (1<<24 - 1) }
func (e *limitEntry) size() int          { return int(e.meta >> 24) }
func (e *limitEntry) setPolicy(p uint32) { e.meta = e.meta&^(1<<24-1) | p }

// is reports whether the entry's subject is s.
func (sh *limitShard) is(e *limitEntry, s string) bool {
	n := e.size()
	if n != len(s) {
		return false
	}
	if n <= len(e.text) {
		return string(e.text[:n]) == s
	}
	return sh.long[e.place()] == s
}

// hash is that of the entry's rule and subject.
func (sh *limitShard) hash(e *limitEntry) uint64 {
	name := sh.policies[e.policy()].name
	if n := e.size(); n <= len(e.text) {
		return maphash.Bytes(sh.seed, e.text[:n]) ^ mix(name)
	}
	return maphash.String(sh.seed, sh.long[e.place()]) ^ mix(name)
}

// mix is a hash of a rule's name. Names are few and not in callers' hands, so a
// little of each is enough to tell most of them apart.
func mix(name string) uint64 {
	n := uint64(len(name))
	if n > 0 {
		n |= uint64(name[0])<<8 | uint64(name[len(name)/2])<<16 | uint64(name[len(name)-1])<<24
	}
	return n * 0x9e3779b97f4a7c15
}

// place is where in long the subject is.
func (e *limitEntry) place() int { return int(binary.NativeEndian.Uint32(e.text[:])) }

// name sets the entry's subject.
func (sh *limitShard) name(e *limitEntry, s string) {
	e.meta |= uint32(len(s)) << 24
	if len(s) <= len(e.text) {
		copy(e.text[:], s)
		return
	}
	i := len(sh.long)
	if n := len(sh.freeLong); n > 0 {
		i, sh.freeLong = sh.freeLong[n-1], sh.freeLong[:n-1]
	} else {
		sh.long = append(sh.long, "")
	}
	sh.long[i] = strings.Clone(s) // it may be a part of something large
	binary.NativeEndian.PutUint32(e.text[:], uint32(i))
}

const (
	none     = -1
	slotBits = 20
	slotMask = 1<<slotBits - 1
	mostSlot = slotMask - 1
)

// tag is 12 bits that neither the shard nor the place in the index are made of.
func tag(hash uint64) uint32 { return uint32(hash>>(58-12)) << slotBits }

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
			e := sh.at(slot)
			if sh.policies[e.policy()].name == rule && sh.is(e, subject) {
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
	p := &sh.policies[sh.at(slot).policy()]
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
	e := sh.at(v.slot)
	p := &sh.policies[e.policy()]
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
	e := sh.at(v.slot)
	p := &sh.policies[e.policy()]
	e.since = s.Since
	if s.Window <= 0 { // a log that has no entries left: only a Return does that
		sh.logs[e.rem] = *s
		return
	}
	isLog := len(s.Log) > s.Head
	if p.window != s.Window || p.quota != s.Quota || p.burst != s.Burst || p.log != isLog {
		old, was := e.policy(), p.log
		e.setPolicy(sh.intern(limitTerms{p.name, s.Window, s.Quota, s.Burst, isLog}))
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
		sh.free, sh.slots, sh.cursor = none, 0, 0
	}
	slot := sh.free
	if slot != none {
		sh.free = int(sh.at(slot).rem)
	} else {
		slot = sh.slots
		sh.slots++
		if slot/chunk == len(sh.chunks) {
			sh.chunks = append(sh.chunks, new([chunk]limitEntry))
		}
	}
	s := &v.state
	isLog := len(s.Log) > s.Head
	e := sh.at(slot)
	*e = limitEntry{meta: sh.intern(limitTerms{rule, s.Window, s.Quota, s.Burst, isLog})}
	if isLog {
		e.rem = sh.newLog()
	}
	sh.name(e, subject)
	sh.used++
	sh.put(hash, uint32(slot+1))
	v.slot = slot
	sh.save(v)
}

// put adds the item of a slot plus 1 to the index.
func (sh *limitShard) put(hash uint64, slot1 uint32) {
	mask := uint32(len(sh.index) - 1)
	i := uint32(hash) & mask
	for sh.index[i] != 0 {
		i = (i + 1) & mask
	}
	sh.index[i] = tag(hash) | slot1
}

func (sh *limitShard) grow() {
	old := sh.index
	sh.index = make([]uint32, max(8, 2*len(old)))
	for _, item := range old {
		if item != 0 {
			sh.put(sh.hash(sh.at(int(item&slotMask)-1)), item&slotMask)
		}
	}
}

// remove forgets the entry.
func (sh *limitShard) remove(slot int) {
	e := sh.at(slot)
	mask := uint32(len(sh.index) - 1)
	i := uint32(sh.hash(e)) & mask
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
			home := uint32(sh.hash(sh.at(int(item&slotMask)-1))) & mask
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
	if sh.policies[e.policy()].log {
		sh.dropLog(int(e.rem))
	}
	if e.size() > len(e.text) {
		sh.long[e.place()] = ""
		sh.freeLong = append(sh.freeLong, e.place())
	}
	sh.release(e.policy())
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
	for range min(n, sh.slots) {
		if sh.cursor >= sh.slots {
			sh.cursor = 0
		}
		slot := sh.cursor
		sh.cursor++
		e := sh.at(slot)
		if e.meta == 0 {
			continue
		}
		idle := e.arrival < now // as State.Idle says it of a bucket
		if p := &sh.policies[e.policy()]; p.log {
			idle = sh.logs[e.rem].Idle(now)
		}
		if idle {
			sh.remove(slot)
			removed++
		}
	}
	return removed
}

// intern returns the place of a policy with these terms, and counts its use. The
// name is kept as it came: it lives in the caller's rules anyway, and comparing
// a string with itself is quickest.
func (sh *limitShard) intern(t limitTerms) uint32 {
	if len(sh.policies) > 0 && sh.policies[sh.last].limitTerms == t && sh.last != 0 {
		sh.policies[sh.last].refs++
		return sh.last
	}
	i, ok := sh.byTerms[t]
	if !ok {
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
