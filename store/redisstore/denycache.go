package redisstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
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
// levels only for the charges that it knows to be refused.
//
// Only the same cost of the same rule is answered. Charges of both kinds are answered: ask for executions only once the claim has Started, so
// that no replay is refused. Its methods may be called concurrently.
type DenyCache struct {
	ratelimit.Store
	now    func() time.Time
	seed   maphash.Seed
	max    int // per shard
	shards [64]denyShard
}

type denyShard struct {
	mu      sync.RWMutex
	denials map[denyKey]denial
	_       [64]byte // keeps the locks on cache lines of their own
}

// denyKey has the whole rule: other numbers are another rule.
type denyKey struct {
	rule    ratelimit.Rule
	subject string
}

// denial is a level that refused, and the times until it passes for sure, until
// it is full for sure, and until it is believed: not longer than until it could
// pass. All are on our clock, and the store decided somewhen during the call:
// the first two are counted from the call's end, the third from its beginning.
type denial struct {
	cost               int64
	level              ratelimit.Level
	pass, full, expire time.Time
}

// NewDenyCache returns a cache in front of a store.
func NewDenyCache(s ratelimit.Store, o DenyCacheOptions) (*DenyCache, error) {
	if o.Max == 0 {
		o.Max = DefaultMaxDenials
	}
	d := &DenyCache{Store: s, now: o.Now, seed: maphash.MakeSeed()}
	if o.Max < len(d.shards) {
		return nil, fmt.Errorf("redisstore: a deny cache of %d: want at least %d, or 0 for %d", o.Max, len(d.shards), DefaultMaxDenials)
	}
	d.max = o.Max / len(d.shards)
	if d.now == nil {
		d.now = time.Now
	}
	for i := range d.shards {
		d.shards[i].denials = map[denyKey]denial{}
	}
	return d, nil
}

func (d *DenyCache) shard(subject string) *denyShard {
	return &d.shards[maphash.String(d.seed, subject)%uint64(len(d.shards))]
}

// Denied returns the refusal of the charges that the cache knows, and false if
// it knows none of them to be refused.
func (d *DenyCache) Denied(charges []ratelimit.Charge) (dec ratelimit.Decision, denied bool) {
	var now time.Time
	for i := range charges {
		c := &charges[i]
		if c.Cost == 0 {
			continue
		}
		sh := d.shard(c.Subject)
		sh.mu.RLock()
		x, ok := sh.denials[denyKey{c.Rule, c.Subject}]
		sh.mu.RUnlock()
		if !ok || c.Cost != x.cost {
			continue
		}
		if now.IsZero() {
			now = d.now()
		}
		if !now.Before(x.expire) {
			continue
		}
		l := x.level
		// Rounded up: waiting this long must be enough.
		l.RetryAfter = ceilMicro(x.pass.Sub(now))
		l.ResetAfter = ceilMicro(x.full.Sub(now))
		dec.Levels = append(dec.Levels, l)
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
	begin := d.now()
	dec, err := d.Store.Take(ctx, charges)
	if err == nil && !dec.Allowed {
		d.Note(charges, dec, begin)
	}
	return dec, err
}

// Note remembers a refusal of the charges, by a call that began at the given
// time of the cache's clock.
func (d *DenyCache) Note(charges []ratelimit.Charge, dec ratelimit.Decision, begin time.Time) {
	if len(charges) != len(dec.Levels) {
		return
	}
	end := d.now()
	for i, l := range dec.Levels {
		// The wait is that of all charges of one bucket together: only a
		// charge that is alone says what it is for its own cost.
		if l.Allowed || l.Never || l.RetryAfter <= 0 || !alone(charges, i) {
			continue
		}
		x := denial{cost: charges[i].Cost, level: l, pass: end.Add(l.RetryAfter), full: end.Add(l.ResetAfter)}
		x.expire = begin.Add(min(l.RetryAfter, maxBelief))
		d.put(denyKey{l.Rule, l.Subject}, x, begin)
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

func (d *DenyCache) put(k denyKey, x denial, now time.Time) {
	sh := d.shard(k.subject)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if _, there := sh.denials[k]; !there && len(sh.denials) >= d.max {
		// Some that are over go, and one in any case: a map is walked in no
		// particular order.
		n := 0
		for old, y := range sh.denials {
			if n == 0 || !now.Before(y.expire) {
				delete(sh.denials, old)
			}
			if n++; n == 8 {
				break
			}
		}
	}
	sh.denials[k] = x
}

// Return implements ratelimit.Store, and forgets what was refused to the
// subjects.
func (d *DenyCache) Return(ctx context.Context, t *ratelimit.Taken) error {
	var forget []denyKey
	if t != nil {
		for _, c := range t.Charges {
			forget = append(forget, denyKey{c.Rule, c.Subject})
		}
	}
	err := d.Store.Return(ctx, t)
	for _, k := range forget {
		sh := d.shard(k.subject)
		sh.mu.Lock()
		delete(sh.denials, k)
		sh.mu.Unlock()
	}
	return err
}

// Reset implements ratelimit.Store, and forgets what was refused to the
// subject.
func (d *DenyCache) Reset(ctx context.Context, rule, subject string) error {
	err := d.Store.Reset(ctx, rule, subject)
	sh := d.shard(subject)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for k := range sh.denials {
		if k.rule.Name == rule && k.subject == subject {
			delete(sh.denials, k)
		}
	}
	return err
}

var _ ratelimit.Store = (*DenyCache)(nil)
