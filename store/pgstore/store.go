package pgstore

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/escapement-dev/escapement/idempotency"
)

// Store keeps records in PostgreSQL. It implements idempotency.Store,
// StepStore, Keeper and Settings. Its methods may be called concurrently.
type Store struct {
	o       Options
	pool    *pgxpool.Pool
	q       *queries
	short   group[*short]
	changes group[*change]
	known   known
	size    size
	limits  limitsOf
	closed  atomic.Bool
}

var (
	_ idempotency.Store     = (*Store)(nil)
	_ idempotency.StepStore = (*Store)(nil)
	_ idempotency.Keeper    = (*Store)(nil)
	_ idempotency.Settings  = (*Store)(nil)
)

// now is the first argument of statements that ask for the time: nil where it
// is the server's.
func (s *Store) now() *int64 {
	if s.o.Now == nil {
		return nil
	}
	n := s.o.Now().UnixMicro()
	return &n
}

// idle is for how long the server lets a transaction of the store's wait for its
// next statement, in milliseconds.
func (s *Store) idle() string { return strconv.FormatInt(s.o.Timeout.Milliseconds(), 10) }

func timeOf(micros int64) time.Time { return time.UnixMicro(micros).UTC() }

// saw looks at an error of the database. Where the way to the server is
// broken, the other idle connections are too, or may be; where it has become a
// standby (25006), another server takes the writes.
func (s *Store) saw(err error) error {
	if err == nil || ended(err) {
		return err
	}
	if c := code(err); c == "" || c[:2] == "57" || c == "25006" || pgconn.SafeToRetry(err) {
		s.pool.Reset()
	}
	return faulty(err)
}

// explain makes a caller's error of err.
func (s *Store) explain(err error) error {
	if err != nil && s.closed.Load() && isFault(err) {
		return ErrClosed
	}
	return explain(err)
}

// Reserve implements idempotency.Store. A claim whose answer changes nothing
// (a replay, a refusal) writes nothing. With ErrClosed and ErrLocked nothing
// changed.
func (s *Store) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	if err := c.Validate(); err != nil {
		return idempotency.Answer{}, err
	}
	o := &claim{c: wholeClaim(c)}
	if err := s.short.submit(ctx, &short{claim: o}); err != nil {
		return idempotency.Answer{}, s.explain(err)
	}
	if o.answered {
		return o.answer, nil
	}
	a, err := s.reserve(ctx, o.c)
	if err != nil {
		return idempotency.Answer{}, s.explain(err)
	}
	return a, nil
}

// reserve is a claim that must lock its record.
func (s *Store) reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	var a idempotency.Answer
	err := s.change(ctx, &change{
		id: c.Key.ID, rank: rankClaim, away: true,
		apply: func(prev idempotency.Record, now time.Time) (next idempotency.Record, err error) {
			next, a = idempotency.Decide(prev, c, now)
			return next, nil
		},
		// Whoever has locked a held record is its owner, or takes it over; what
		// is not held is being claimed or swept: either is in progress. Another
		// process's batch is over in a moment, and then the record says more.
		held: func(prev idempotency.Record, now time.Time, tries int, _ bool) bool {
			if prev.State == idempotency.Held && prev.Owner == c.Owner || tries < lockTries {
				return false
			}
			prev.AsOf = now
			a = idempotency.Answer{Outcome: idempotency.InProgress, Record: prev}
			return true
		},
	})
	return a, err
}

// lockTries is how often a claim or a heartbeat tries to lock a record, within
// some 30 ms, before it says what a locked one means. (A record with a live
// lease is in progress without any try.)
const lockTries = 5

// Extend implements idempotency.Store. Where a transaction of the attempt's
// own holds the record, the lease stays as it is, and its stored end is
// returned: nobody can take over before that transaction ends.
func (s *Store) Extend(ctx context.Context, r idempotency.Reservation, lease time.Duration) (time.Time, error) {
	lease = lease.Truncate(time.Microsecond)
	var end time.Time
	err := s.change(ctx, &change{
		id: r.Key.ID, rank: rankOwner, share: true,
		apply: func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
			next, err := idempotency.Renew(prev, r, lease, now)
			end = next.LeaseEnd
			return next, err
		},
		// Another process's batch is over in a moment; only a transaction of the
		// attempt's own stays.
		held: func(prev idempotency.Record, _ time.Time, tries int, shared bool) bool {
			end = prev.LeaseEnd
			return shared && tries >= lockTries
		},
	})
	if err != nil {
		return time.Time{}, s.explain(err)
	}
	return end, nil
}

// End implements idempotency.Store. When it returns nil the ending is
// committed. With ErrLocked the record is as it was, and the same End may be
// tried again.
func (s *Store) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	if err := e.Validate(); err != nil {
		return err
	}
	e.Result = wholeResult(e.Result)
	if o := s.finishing(r, e); o != nil {
		if err := s.short.submit(ctx, &short{finish: o}); err != nil || o.ok {
			return s.explain(err)
		}
	}
	return s.explain(s.change(ctx, &change{
		id: r.Key.ID, rank: rankOwner, size: len(e.Result.Payload),
		apply: func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
			return idempotency.Finish(prev, r, e, now)
		},
	}))
}

// Void implements idempotency.Store.
func (s *Store) Void(ctx context.Context, k idempotency.Key, o idempotency.Owner) error {
	return s.explain(s.change(ctx, &change{
		id: k.ID, rank: rankOther, away: true,
		apply: func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
			return idempotency.Withdraw(prev, k, o, now), nil
		},
	}))
}

// SaveStep implements idempotency.StepStore. When it returns nil the step is
// committed.
func (s *Store) SaveStep(ctx context.Context, r idempotency.Reservation, st idempotency.Step) error {
	if err := st.Validate(); err != nil {
		return err
	}
	return s.explain(s.change(ctx, &change{
		id: r.Key.ID, rank: rankOwner, size: len(st.Answer),
		apply: func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
			return idempotency.PutStep(prev, r, st, now)
		},
	}))
}

// Lookup implements idempotency.Store. It waits for no batch.
func (s *Store) Lookup(ctx context.Context, k idempotency.Key) (idempotency.Record, error) {
	if err := s.usable(ctx); err != nil {
		return idempotency.Record{}, err
	}
	rec, err := lookup(ctx, pooled{s.pool}, s.q, k.ID, s.now())
	return rec, s.explain(s.sawOf(err))
}

// usable reports a context that has ended, and a store that is closed.
func (s *Store) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed.Load() {
		return ErrClosed
	}
	return nil
}

// sawOf is saw for what a session returned: decisions pass.
func (s *Store) sawOf(err error) error {
	if isFault(err) {
		return s.saw(err)
	}
	return err
}

// Whole microseconds are what the columns hold; what the rule is given must be
// what it will find again.

func wholeClaim(c idempotency.Claim) idempotency.Claim {
	t := &c.Terms
	for _, d := range []*time.Duration{&t.Lease, &t.Retention, &t.Remember, &t.Quiet} {
		*d = d.Truncate(time.Microsecond)
	}
	// Its caller may go away and use the array again while a batch has it.
	c.Prints = append([]idempotency.Fingerprint(nil), c.Prints...)
	return c
}

func wholeResult(r idempotency.Result) idempotency.Result {
	r.Window = r.Window.Truncate(time.Microsecond)
	if len(r.Payload) == 0 {
		r.Payload = nil
	}
	return r
}
