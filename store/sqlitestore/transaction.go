package sqlitestore

import (
	"context"
	"database/sql"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// In returns a store whose operations run inside tx, a transaction on the
// database that was given to [New]: what the handler writes and the end of its
// record are committed together, or neither. It also implements
// idempotency.StepStore.
//
// The order is: Extend (the fence: it fails with ErrFenced if another attempt
// has taken over), the handler's own statements, End, tx.Commit, and only then
// the answer. After a rollback the key is held as before. After a Commit with
// an error, Lookup says which of both it was.
//
// SQLite has one writer: while tx is open, every keyed request of every
// process on this file waits. Keep it short, and call nobody from inside. Use
// nothing but tx and this store until it has ended: an operation of the outer
// store waits for tx.
//
// How durable the commit is, is up to the synchronous setting of the caller's
// connections; the record and the handler's rows are lost together, or kept
// together.
//
// An error of SQLite may have rolled tx back (a full disk does); roll it back
// and start again. The store is as safe for concurrent use as tx is.
func (s *Store) In(tx *sql.Tx) idempotency.Store {
	return inside{s: s, ss: within{tx}}
}

type inside struct {
	s  *Store
	ss within
}

var (
	_ idempotency.Store     = inside{}
	_ idempotency.StepStore = inside{}
)

func (t inside) explain(err error) error { return explain(t.s.file, err) }

func (t inside) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	if err := c.Validate(); err != nil {
		return idempotency.Answer{}, err
	}
	a, err := reserve(ctx, t.ss, c, now(t.s.o))
	return a, t.explain(err)
}

func (t inside) Extend(ctx context.Context, r idempotency.Reservation, lease time.Duration) (time.Time, error) {
	end, err := extend(ctx, t.ss, r, lease, now(t.s.o))
	return end, t.explain(err)
}

func (t inside) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	if err := e.Validate(); err != nil {
		return err
	}
	return t.change(ctx, r.Key, func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
		return idempotency.Finish(prev, r, e, now)
	})
}

func (t inside) Void(ctx context.Context, k idempotency.Key, o idempotency.Owner) error {
	return t.change(ctx, k, func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
		return idempotency.Withdraw(prev, k, o, now), nil
	})
}

func (t inside) Lookup(ctx context.Context, k idempotency.Key) (idempotency.Record, error) {
	rec, err := lookup(ctx, t.ss, k.ID, now(t.s.o))
	return rec, t.explain(err)
}

func (t inside) SaveStep(ctx context.Context, r idempotency.Reservation, s idempotency.Step) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return t.change(ctx, r.Key, func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
		return idempotency.PutStep(prev, r, s, now)
	})
}

func (t inside) change(ctx context.Context, k idempotency.Key, rule func(idempotency.Record, time.Time) (idempotency.Record, error)) error {
	n := now(t.s.o)
	return t.explain(change(ctx, t.ss, k.ID, func(prev idempotency.Record) (idempotency.Record, error) { return rule(prev, n) }))
}
