package memstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// DefaultMaxSubjects is how many subjects a [Limits] holds unless told
// otherwise.
const DefaultMaxSubjects = 1_000_000

// mostSubjects is the greatest MaxSubjects. With this many, shards stay well
// within the slots that an index entry can name.
const mostSubjects = 1 << 25

// ErrFull is returned by Take for a subject that is not held yet while
// MaxSubjects others are and none of them can be forgotten. Nothing was
// charged. The search for one that can be forgotten is bounded: with more than
// 4096 subjects, the error may come although a few could be; the next calls
// search on from there.
var ErrFull = errors.New("memstore: all subjects are in use")

// LimitsOptions are the options of [NewLimits]. The zero value is ready to use.
type LimitsOptions struct {
	// Now says what time it is. It is called with a lock held and must not
	// call the store. Nil means the wall clock at the time of NewLimits and
	// from then on the monotonic clock, which never steps.
	Now func() time.Time
	// MaxSubjects bounds the number of buckets and logs that are held, one for
	// each rule and subject. 0 means DefaultMaxSubjects; the greatest is
	// 33,554,432. A token bucket takes 70 to 80 bytes, its subject of up to
	// 36 bytes included; a longer one takes its length and 16 bytes more. A
	// million is 80 MB. A sliding window log takes 110 bytes more, and 8 to 16
	// for each unit of its quota.
	MaxSubjects int
}

// shards is how many locks share the work: one per value of a hash's upper
// bits. More of them would no longer fit into a core's cache.
const (
	shardBits = 6
	shards    = 1 << shardBits
)

// shardOf is the number of a hash's shard.
func shardOf(hash uint64) uint8 { return uint8(hash >> (64 - shardBits)) }

// Limits is a [ratelimit.Store] in memory. Its methods may be called
// concurrently.
//
// It holds a subject from its first charge until its bucket is full again (its
// log is empty), and somewhat longer: each new subject makes room for itself by
// looking at a few old ones. Take and Return take the same short time however
// many there are.
type Limits struct {
	now   func() time.Time
	start time.Time // of the monotonic clock; unused if now is set
	base  int64     // start in µs since 1970
	seed  maphash.Seed
	max   int64
	live  atomic.Int64  // subjects held
	next  atomic.Uint32 // shard at which the next search for room starts

	shards [shards]limitShard
}

var _ ratelimit.Store = (*Limits)(nil)

// NewLimits returns an empty store. The error names each option that is out of
// its range.
func NewLimits(o LimitsOptions) (*Limits, error) {
	if o.MaxSubjects < 0 || o.MaxSubjects > mostSubjects {
		return nil, fmt.Errorf("memstore: MaxSubjects %d: want 0 (%d) or 1 to %d", o.MaxSubjects, DefaultMaxSubjects, mostSubjects)
	}
	if o.MaxSubjects == 0 {
		o.MaxSubjects = DefaultMaxSubjects
	}
	m := &Limits{now: o.Now, seed: maphash.MakeSeed(), max: int64(o.MaxSubjects)}
	for i := range m.shards {
		m.shards[i].seed = m.seed
	}
	m.start = time.Now()
	m.base = ratelimit.Micros(m.start)
	return m, nil
}

// Subjects is the number of buckets and logs that are held now: those that are
// alive, and full ones that are not forgotten yet.
func (m *Limits) Subjects() int { return int(m.live.Load()) }

// micros is the time. INVARIANT: it is called with the lock of every shard that
// the answer is used for. Read before, it could be older than what another
// caller wrote meanwhile, and look like a clock that steps back.
func (m *Limits) micros() int64 {
	if m.now != nil {
		return ratelimit.Micros(m.now())
	}
	return m.base + int64(time.Since(m.start)/time.Microsecond)
}

// hash is the place of a rule's name and a subject.
func (m *Limits) hash(rule, subject string) uint64 {
	return maphash.String(m.seed, subject) ^ mix(rule)
}

func (m *Limits) shard(hash uint64) *limitShard { return &m.shards[shardOf(hash)] }

// Take implements [ratelimit.Store]. It allocates the memory of the Decision in
// one piece; [Limits.TakeInto] allocates none.
//
// The error is that of ctx, that of [ratelimit.Charge.Validate], [ErrFull], or
// says that one rule's name came with different numbers; with any of them
// nothing was charged.
func (m *Limits) Take(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	var d ratelimit.Decision
	var t *ratelimit.Taken
	d.Levels, t = decisionMemory(len(charges))
	if err := m.TakeInto(ctx, charges, &d, t); err != nil {
		return ratelimit.Decision{}, err
	}
	return d, nil
}

// decisionMemory is room for n levels, charges and receipts.
func decisionMemory(n int) ([]ratelimit.Level, *ratelimit.Taken) {
	switch {
	case n == 1:
		p := new(struct {
			levels   [1]ratelimit.Level
			charges  [1]ratelimit.Charge
			receipts [1]ratelimit.Receipt
			taken    ratelimit.Taken
		})
		p.taken.Charges, p.taken.Receipts = p.charges[:0], p.receipts[:0]
		return p.levels[:0], &p.taken
	case n <= 4:
		p := new(struct {
			levels   [4]ratelimit.Level
			charges  [4]ratelimit.Charge
			receipts [4]ratelimit.Receipt
			taken    ratelimit.Taken
		})
		p.taken.Charges, p.taken.Receipts = p.charges[:0], p.receipts[:0]
		return p.levels[:0], &p.taken
	}
	return make([]ratelimit.Level, 0, n), &ratelimit.Taken{
		Charges: make([]ratelimit.Charge, 0, n), Receipts: make([]ratelimit.Receipt, 0, n),
	}
}

// TakeInto is Take with the caller's memory: d is overwritten, its Levels'
// array is used again, and d.Taken is t if the decision is Allowed. A t that
// may still be returned must not be given again; where it is nil, nothing is
// noted for a Return. After an error d is not Allowed and has no levels.
func (m *Limits) TakeInto(ctx context.Context, charges []ratelimit.Charge, d *ratelimit.Decision, t *ratelimit.Taken) error {
	for tries := 0; ; tries++ {
		d.Allowed, d.Levels, d.Taken = false, d.Levels[:0], nil
		if t != nil {
			t.Renew()
		}
		err := ctx.Err()
		switch {
		case err != nil:
			return err
		case len(charges) == 1:
			err = m.takeOne(&charges[0], d, t)
		default:
			err = m.takeAll(charges, d, t)
		}
		if err == nil {
			if d.Allowed {
				d.Taken = t
			}
			return nil
		}
		// Another caller may take the room that was made; it is made again a
		// few times.
		if err != ErrFull || tries == 3 || !m.makeRoom(len(charges)) {
			d.Allowed, d.Levels = false, d.Levels[:0]
			return err
		}
	}
}

// takeOne is takeAll for one charge.
func (m *Limits) takeOne(c *ratelimit.Charge, d *ratelimit.Decision, t *ratelimit.Taken) error {
	if cap(d.Levels) == 0 {
		d.Levels = make([]ratelimit.Level, 1)
	}
	d.Levels = d.Levels[:1]
	l := &d.Levels[0]
	l.Rule, l.Subject = c.Rule, c.Subject // TakeAt sets the rest
	h := m.hash(c.Rule.Name, c.Subject)
	sh := m.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	// The clock first: reading it waits for all memory that was asked for, and
	// the search has only begun to ask.
	now := m.micros()
	v := view{slot: sh.find(h, c.Rule.Name, c.Subject)}
	if !sh.knows(v.slot, c) {
		if err := c.Validate(); err != nil {
			return err
		}
	}
	sh.load(&v)
	changed := c.Rule.TakeAt(&v.state, c.Cost, now, l)
	if changed {
		if err := m.store(sh, &v, h, c, now); err != nil {
			return err
		}
	}
	d.Allowed = l.Allowed
	if l.Allowed && t != nil {
		note(t, c, &v.state, now)
	}
	return nil
}

// note adds a charge that left s to t. A cost of 0 leaves nothing to return.
func note(t *ratelimit.Taken, c *ratelimit.Charge, s *ratelimit.State, now int64) {
	var rc ratelimit.Receipt
	if c.Cost > 0 {
		rc = s.Receipt(now)
	}
	t.Charges = append(t.Charges, *c)
	t.Receipts = append(t.Receipts, rc)
}

// Return implements [ratelimit.Store]. It does nothing if the bucket was
// forgotten meanwhile: it was full. The error is that of ctx; t can then be
// returned again.
func (m *Limits) Return(ctx context.Context, t *ratelimit.Taken) error {
	if t == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if !t.Once() {
		return nil
	}
	for i := range min(len(t.Charges), len(t.Receipts)) {
		m.giveBack(&t.Charges[i], t.Receipts[i])
	}
	return nil
}

func (m *Limits) giveBack(c *ratelimit.Charge, rc ratelimit.Receipt) {
	if c.Cost == 0 {
		return
	}
	h := m.hash(c.Rule.Name, c.Subject)
	sh := m.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	v := view{slot: sh.find(h, c.Rule.Name, c.Subject)}
	if v.slot == none {
		return
	}
	sh.load(&v)
	if c.Rule.ReturnAt(&v.state, c.Cost, rc, m.micros()) {
		sh.save(&v)
	}
}

// Reset implements [ratelimit.Store]. Its only error is that of ctx.
func (m *Limits) Reset(ctx context.Context, rule, subject string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h := m.hash(rule, subject)
	sh := m.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if slot := sh.find(h, rule, subject); slot != none {
		sh.remove(slot)
		m.live.Add(-1)
	}
	return nil
}
