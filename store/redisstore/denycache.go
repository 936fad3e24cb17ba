package redisstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// maxBelief is how long a refusal is believed at most.
const maxBelief = time.Second

// DefaultMaxDenials is how many refusals a [DenyCache] holds unless told
// otherwise.
const DefaultMaxDenials = 65_536

// DenyCacheOptions are the options of [NewDenyCache]. The zero value is ready.
type DenyCacheOptions struct {
	// Max is how many refusals are held: at least 64. 0: DefaultMaxDenials.
	// When it is full, new ones take the place of others.
	Max int
	// Now, for tests: this process's clock. Nil: the monotonic clock.
	Now func() time.Time
}

// DenyCache is a ratelimit.Store in front of another, which remembers what was
// refused until it could pass, for a second at most, and refuses it again
// without asking (A3). It never refuses what the store would let pass, unless
// the subject was given back to or reset within that second: it counts the wait
// from before the call that was refused. A refusal that it gives alone has
// levels only for the charges that it knows to be refused; they are shared with
// other callers and must not be changed.
//
// Only the same cost of the same rule is answered. Charges of both kinds are answered: ask for executions only once the claim has Started, so
// that no replay is refused. Its methods may be called concurrently.
type DenyCache struct {
	ratelimit.Store
	base   time.Time
	now    func() time.Time // nil: time goes on from base, monotonically
	seed   maphash.Seed
	max    int // per shard
	shards [64]denyShard
}

type denyShard struct {
	mu      sync.RWMutex
	denials map[uint64]*denial // by hash
	_       [64]byte           // keeps the locks on cache lines of their own
}

// denial is a level that refused a cost, and the times until it passes for
// sure, until it is full for sure, and until it is believed: not longer than
// until it could pass. The store decided somewhen during the call: the first
// two are counted from the call's end, the third from its beginning. Times are
// on our clock, from the cache's base. A denial is never changed, but for what it
// said last.
type denial struct {
	cost               int64
	level              ratelimit.Level // of the whole rule: other numbers are another rule
	pass, full, expire time.Duration
	said               atomic.Pointer[said]
}

// said is what a denial says at a time. It is never changed.
type said struct {
	at     time.Duration
	levels [1]ratelimit.Level
}

// same is how long a denial says the same: waits are whole microseconds.
const same = time.Microsecond

// say is what the denial says now.
func (x *denial) say(now time.Duration) *said {
	if s := x.said.Load(); s != nil && now >= s.at && now-s.at < same {
		return s
	}
	s := &said{at: now, levels: [1]ratelimit.Level{x.level}}
	// Rounded up: waiting this long must be enough.
	s.levels[0].RetryAfter = ceilMicro(x.pass - now)
	s.levels[0].ResetAfter = ceilMicro(x.full - now)
	x.said.Store(s)
	return s
}

// NewDenyCache returns a cache in front of a store.
func NewDenyCache(s ratelimit.Store, o DenyCacheOptions) (*DenyCache, error) {
	if o.Max == 0 {
		o.Max = DefaultMaxDenials
	}
	d := &DenyCache{Store: s, base: time.Now(), now: o.Now, seed: maphash.MakeSeed()}
	if o.Max < len(d.shards) {
		return nil, fmt.Errorf("redisstore: a deny cache of %d: want at least %d, or 0 for %d", o.Max, len(d.shards), DefaultMaxDenials)
	}
	d.max = o.Max / len(d.shards)
	for i := range d.shards {
		d.shards[i].denials = map[uint64]*denial{}
	}
	return d, nil
}

// at is the time on our clock.
func (d *DenyCache) at() time.Duration {
	if d.now != nil {
		return d.now().Sub(d.base)
	}
	return time.Since(d.base)
}

// hash is the place of a rule's name and a subject. Where two have the same,
// one of them is not remembered.
func (d *DenyCache) hash(rule, subject string) uint64 {
	return maphash.String(d.seed, subject) ^ maphash.String(d.seed, rule)*0x9e3779b97f4a7c15
}

func (d *DenyCache) shard(hash uint64) *denyShard {
	return &d.shards[hash%uint64(len(d.shards))]
}

// Denied returns the refusal of the charges that the cache knows, and false if
// it knows none of them to be refused.
func (d *DenyCache) Denied(charges []ratelimit.Charge) (dec ratelimit.Decision, denied bool) {
	now := time.Duration(-1)
	for i := range charges {
		c := &charges[i]
		h := d.hash(c.Rule.Name, c.Subject)
		sh := d.shard(h)
		sh.mu.RLock()
		x := sh.denials[h]
		sh.mu.RUnlock()
		if x == nil || c.Cost != x.cost || x.level.Subject != c.Subject || x.level.Rule != c.Rule {
			continue
		}
		if now < 0 {
			now = d.at()
		}
		if now >= x.expire {
			continue
		}
		s := x.say(now)
		if len(dec.Levels) == 0 {
			dec.Levels = s.levels[:] // full: what is appended goes elsewhere
			continue
		}
		dec.Levels = append(dec.Levels, s.levels[0])
	}
	return dec, len(dec.Levels) > 0
}

func ceilMicro(d time.Duration) time.Duration {
	return (max(d, 0) + time.Microsecond - 1).Truncate(time.Microsecond)
}

// Take implements ratelimit.Store.
func (d *DenyCache) Take(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	if dec, denied := d.Denied(charges); denied {
		return dec, nil
	}
	begin := d.at()
	dec, err := d.Store.Take(ctx, charges)
	if err == nil && !dec.Allowed {
		d.note(charges, dec, begin)
	}
	return dec, err
}

// Note remembers a refusal of the charges, by a call that took so long and has
// just ended. It is for calls that go past the cache, such as [Store.Admit].
func (d *DenyCache) Note(charges []ratelimit.Charge, dec ratelimit.Decision, took time.Duration) {
	d.note(charges, dec, d.at()-took)
}

func (d *DenyCache) note(charges []ratelimit.Charge, dec ratelimit.Decision, begin time.Duration) {
	if len(charges) != len(dec.Levels) {
		return
	}
	end := d.at()
	for i, l := range dec.Levels {
		// The wait is that of all charges of one bucket together: only a
		// charge that is alone says what it is for its own cost.
		if l.Allowed || l.Never || l.RetryAfter <= 0 || !alone(charges, i) {
			continue
		}
		d.put(&denial{
			cost: charges[i].Cost, level: l, pass: end + l.RetryAfter, full: end + l.ResetAfter,
			expire: begin + min(l.RetryAfter, maxBelief),
		}, end)
	}
}

func alone(charges []ratelimit.Charge, i int) bool {
	for j := range charges {
		if j != i && charges[j].Rule.Name == charges[i].Rule.Name && charges[j].Subject == charges[i].Subject {
			return false
		}
	}
	return true
}

func (d *DenyCache) put(x *denial, now time.Duration) {
	h := d.hash(x.level.Rule.Name, x.level.Subject)
	sh := d.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if _, there := sh.denials[h]; !there && len(sh.denials) >= d.max {
		// Some that are over go, and one in any case: a map is walked in no
		// particular order.
		n := 0
		for old, y := range sh.denials {
			if n == 0 || now >= y.expire {
				delete(sh.denials, old)
			}
			if n++; n == 8 {
				break
			}
		}
	}
	sh.denials[h] = x
}

// Return implements ratelimit.Store, and forgets what was refused to the
// subjects.
func (d *DenyCache) Return(ctx context.Context, t *ratelimit.Taken) error {
	err := d.Store.Return(ctx, t)
	if t != nil {
		for i := range t.Charges {
			d.forget(t.Charges[i].Rule.Name, t.Charges[i].Subject)
		}
	}
	return err
}

// Reset implements ratelimit.Store, and forgets what was refused to the
// subject.
func (d *DenyCache) Reset(ctx context.Context, rule, subject string) error {
	err := d.Store.Reset(ctx, rule, subject)
	d.forget(rule, subject)
	return err
}

func (d *DenyCache) forget(rule, subject string) {
	h := d.hash(rule, subject)
	sh := d.shard(h)
	sh.mu.Lock()
	delete(sh.denials, h)
	sh.mu.Unlock()
}

var _ ratelimit.Store = (*DenyCache)(nil)
