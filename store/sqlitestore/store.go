package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// Store keeps records in a SQLite file. It implements idempotency.Store,
// StepStore, Keeper and Settings. Its methods may be called concurrently.
//
// It has one goroutine, which writes; Close ends it.
type Store struct {
	o     Options
	file  string
	files identity
	owned *sql.DB // only where Open made it
	conn  *sql.Conn
	w     *writer
	reads *pooled

	close sync.Once
	shut  error
}

var (
	_ idempotency.Store     = (*Store)(nil)
	_ idempotency.StepStore = (*Store)(nil)
	_ idempotency.Keeper    = (*Store)(nil)
	_ idempotency.Settings  = (*Store)(nil)
)

// Close lets the batch that is being written end; every operation that still
// waits, and every later one, fails with ErrClosed. It returns when the
// store's goroutine has ended. A database that was given to New stays open.
func (s *Store) Close() error {
	s.close.Do(func() {
		s.w.close()
		s.reads.close()
		s.w.ss.close()
		release(s.conn)
		if s.owned != nil {
			s.shut = explain(s.file, faulty(s.owned.Close()))
		}
	})
	return s.shut
}

// release closes a connection for good: the settings that were made on it must
// not reach the pool's next user.
func release(c *sql.Conn) {
	_ = c.Raw(func(any) error { return driver.ErrBadConn })
	c.Close()
}

// write runs do in the writer.
func (s *Store) write(ctx context.Context, first bool, do func(ss session, now time.Time) error) error {
	return s.submit(ctx, &op{do: do, first: first})
}

func (s *Store) submit(ctx context.Context, o *op) error {
	err := s.w.submit(ctx, o)
	if err != nil && o.state.Load() == left && s.w.locked.Load() { // the context's end says nothing of the lock
		return lockedError(s.file, err)
	}
	return explain(s.file, err)
}

// read runs do on a connection of its own, without the writer. The time is
// taken before the file is read: a state is then judged by no time at which
// it may have been another one already.
func (s *Store) read(ctx context.Context, do func(ss session, now time.Time) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.w.closed.Load() {
		return ErrClosed
	}
	err := do(s.reads, now(s.o))
	if err != nil && s.w.closed.Load() && !errors.Is(err, idempotency.ErrNotFound) {
		return ErrClosed
	}
	return explain(s.file, err)
}

// Reserve implements idempotency.Store. A claim whose answer changes nothing
// (a replay, a refusal) is answered by a read and does not wait for the
// writer. With ErrFull, ErrClosed, or an error of a file that is locked,
// nothing changed.
func (s *Store) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	if err := c.Validate(); err != nil {
		return idempotency.Answer{}, err
	}
	var a idempotency.Answer
	var answered bool
	err := s.read(ctx, func(ss session, now time.Time) error {
		prev, err := find(ctx, ss, c.Key.ID)
		if err != nil {
			return err
		}
		var next idempotency.Record
		next, a = idempotency.Decide(prev.Record, c, now)
		answered = next.Revision == prev.Revision
		return nil
	})
	if err != nil {
		return idempotency.Answer{}, err
	}
	if answered {
		return a, nil
	}
	err = s.write(ctx, false, func(ss session, now time.Time) (err error) {
		a, err = reserve(context.Background(), ss, c, now)
		return err
	})
	if err != nil {
		return idempotency.Answer{}, err // a may still be written to
	}
	return a, nil
}

// Extend implements idempotency.Store.
func (s *Store) Extend(ctx context.Context, r idempotency.Reservation, lease time.Duration) (time.Time, error) {
	var end time.Time
	err := s.write(ctx, true, func(ss session, now time.Time) (err error) {
		end, err = extend(context.Background(), ss, r, lease, now)
		return err
	})
	if err != nil {
		return time.Time{}, err
	}
	return end, nil
}

// End implements idempotency.Store. When it returns nil the ending is on the
// disk. With ErrFull or an error of a file that is locked, the record is as it
// was, and the same End may be tried again.
func (s *Store) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	if err := e.Validate(); err != nil {
		return err
	}
	return s.submit(ctx, &op{first: true, size: len(e.Result.Payload), do: func(ss session, now time.Time) error {
		return change(context.Background(), ss, r.Key.ID, func(prev idempotency.Record) (idempotency.Record, error) {
			return idempotency.Finish(prev, r, e, now)
		})
	}})
}

// Void implements idempotency.Store.
func (s *Store) Void(ctx context.Context, k idempotency.Key, o idempotency.Owner) error {
	return s.write(ctx, false, func(ss session, now time.Time) error {
		return change(context.Background(), ss, k.ID, func(prev idempotency.Record) (idempotency.Record, error) {
			return idempotency.Withdraw(prev, k, o, now), nil
		})
	})
}

// Lookup implements idempotency.Store. It reads without the writer.
func (s *Store) Lookup(ctx context.Context, k idempotency.Key) (idempotency.Record, error) {
	var rec idempotency.Record
	err := s.read(ctx, func(ss session, now time.Time) (err error) {
		rec, err = lookup(ctx, ss, k.ID, now)
		return err
	})
	return rec, err
}

// SaveStep implements idempotency.StepStore. When it returns nil the step is
// on the disk.
func (s *Store) SaveStep(ctx context.Context, r idempotency.Reservation, st idempotency.Step) error {
	if err := st.Validate(); err != nil {
		return err
	}
	return s.submit(ctx, &op{first: true, size: len(st.Answer), do: func(ss session, now time.Time) error {
		return change(context.Background(), ss, r.Key.ID, func(prev idempotency.Record) (idempotency.Record, error) {
			return idempotency.PutStep(prev, r, st, now)
		})
	}})
}
