package pgstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// LimitsOptions are the options of [Store.Limits]. The zero value is right for
// most.
type LimitsOptions struct {
	// Durable makes every decision wait until the server's disk has it. Else a
	// crash of the server forgets what was charged in the last moments before
	// it (three times wal_writer_delay, 0.6 s by default, at most): each bucket
	// may then admit what it admitted in them once more.
	Durable bool
}

// Limits keeps token buckets in the store's database. It implements
// ratelimit.Store. A rule of another algorithm is a ratelimit.ErrCharge. Its
// methods may be called concurrently.
//
// Calls are gathered into batches: while one is under way, the next gathers. A
// batch reads its buckets without a lock, decides by package ratelimit, and
// writes what has changed by one statement, if no bucket was written meanwhile;
// if one was, it locks what it needs in the order of the keys, and decides
// again. So a refusal is only a read. The time is the server's.
type Limits struct {
	s     *Store
	o     LimitsOptions
	q     *limitQueries
	group group[*limitOp]
	size  size
	busy  contention
}

var _ ratelimit.Store = (*Limits)(nil)

// Limits returns the token buckets of the store's database. They use the
// store's connections, one at a time, its clock, Timeout and MaxBatch, and end
// with it.
func (s *Store) Limits(o LimitsOptions) *Limits {
	l := &Limits{s: s, o: o, q: newLimitQueries(s.o.Schema, o.Durable)}
	l.group = group[*limitOp]{limit: s.o.MaxBatch, width: 1, size: (*limitOp).bytes, run: l.run}
	s.limits.add(l)
	return l
}

// limitsOf are the Limits of a store.
type limitsOf struct {
	mu  sync.Mutex
	all []*Limits
}

func (o *limitsOf) add(l *Limits) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, l)
}

func (o *limitsOf) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.all {
		l.group.close()
	}
}

// Take implements ratelimit.Store. It is never repeated when its outcome is not
// known: unless the error is an ErrCharge, ErrClosed or ErrLocked, the charges
// may have been taken.
func (l *Limits) Take(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	if err := l.s.usable(ctx); err != nil {
		return ratelimit.Decision{}, err
	}
	if len(charges) == 0 {
		return ratelimit.Decision{Allowed: true, Taken: new(ratelimit.Taken)}, nil
	}
	// Its caller may go away and use the array again while a batch has it.
	o := &limitOp{charges: append([]ratelimit.Charge(nil), charges...), ids: make([]string, len(charges))}
	for i := range o.charges {
		c := &o.charges[i]
		if err := c.Validate(); err != nil {
			return ratelimit.Decision{}, fmt.Errorf("pgstore: charge %d: %w", i, err)
		}
		if a := c.Rule.Algorithm; a != ratelimit.TokenBucket {
			return ratelimit.Decision{}, fmt.Errorf("pgstore: %w: %d: rule %q is a %v, and limits in PostgreSQL are token buckets: use token_bucket, or keep limits in Redis", ratelimit.ErrCharge, i, c.Rule.Name, a)
		}
		o.ids[i] = limitID(c.Rule.Name, c.Subject)
		for j := range i {
			if o.ids[j] == o.ids[i] && o.charges[j].Rule != c.Rule {
				return ratelimit.Decision{}, fmt.Errorf("pgstore: %w: %d and %d: rule %q with different numbers in one call", ratelimit.ErrCharge, j, i, c.Rule.Name)
			}
		}
	}
	if err := l.group.submit(ctx, o); err != nil {
		return ratelimit.Decision{}, l.s.explain(err)
	}
	return o.d, nil
}

// Return implements ratelimit.Store: all at once. After an error it may have
// been done, and t cannot be returned again.
func (l *Limits) Return(ctx context.Context, t *ratelimit.Taken) error {
	if t == nil {
		return nil
	}
	if err := l.s.usable(ctx); err != nil {
		return err
	}
	if !t.Once() {
		return nil
	}
	o := &limitOp{back: true}
	for i := range min(len(t.Charges), len(t.Receipts)) {
		if c := t.Charges[i]; c.Cost > 0 {
			o.charges, o.receipts = append(o.charges, c), append(o.receipts, t.Receipts[i])
			o.ids = append(o.ids, limitID(c.Rule.Name, c.Subject))
		}
	}
	if len(o.charges) == 0 {
		return nil
	}
	return l.s.explain(l.group.submit(ctx, o))
}

// Reset implements ratelimit.Store.
func (l *Limits) Reset(ctx context.Context, rule, subject string) error {
	if err := l.s.usable(ctx); err != nil {
		return err
	}
	w, err := l.s.wire(ctx)
	if err != nil {
		return l.s.explain(err)
	}
	defer w.release()
	if _, err := w.conn.Exec(context.Background(), l.q.reset, []byte(limitID(rule, subject))); err != nil {
		return l.s.explain(w.fault(err))
	}
	return nil
}

// sweepLimits is how many buckets one transaction of a sweep removes at most.
const sweepLimits = 1000

// Sweep removes buckets that have been full for some minutes, at most limit,
// and returns how many. What is owed is never forgotten. It works in
// transactions of at most 1000 and passes over what others have locked: nobody
// waits for it, and several nodes may sweep at once. With an error, the count is
// of what was removed before it.
func (l *Limits) Sweep(ctx context.Context, limit int) (removed int, err error) {
	for removed < limit {
		if err := l.s.usable(ctx); err != nil {
			return removed, err
		}
		want := min(limit-removed, sweepLimits)
		n, err := l.sweep(ctx, want)
		removed += n
		if err != nil {
			return removed, l.s.explain(err)
		}
		if n < want {
			break
		}
	}
	return removed, nil
}

func (l *Limits) sweep(ctx context.Context, want int) (int, error) {
	w, err := l.s.wire(ctx)
	if err != nil {
		return 0, err
	}
	defer w.release()
	tag, err := w.conn.Exec(context.Background(), l.q.sweep, l.s.now(), want)
	if err != nil {
		return 0, w.fault(err)
	}
	return int(tag.RowsAffected()), nil
}

// limitID is the key of a bucket: no rule's name has a zero byte.
func limitID(rule, subject string) string { return rule + "\x00" + subject }

// keepSlack is how long a row is kept, about, after its bucket is full. As long
// as keep_until does not change, an update touches no index.
const keepSlack = int64(5 * time.Minute / time.Microsecond)

// rowUntil is the time until which a bucket that is full at arrival is kept,
// where old is that until which it was.
func rowUntil(old, arrival int64) int64 {
	if old <= arrival || old > arrival+2*keepSlack {
		return arrival + keepSlack
	}
	return old
}
