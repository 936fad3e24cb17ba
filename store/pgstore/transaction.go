package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/escapement-dev/escapement/idempotency"
)

// In returns a store whose operations run inside tx, a transaction on the
// database of this store: what the handler writes and the end of its record
// are committed together, or neither. It also implements
// idempotency.StepStore.
//
// The order is: Extend (the fence: it fails with ErrFenced if another attempt
// has taken over; make it the transaction's first statement), the handler's own
// statements, End, tx.Commit, and only then the answer. After a rollback the
// key is held as before. After a Commit with an error, Lookup says which of
// both it was.
//
// It works at all three isolation levels. At REPEATABLE READ and SERIALIZABLE
// a fence that meets a renewal of the same lease at that moment fails with
// SQLSTATE 40001, as the handler's own statements may: roll back and run the
// transaction again.
//
// While tx is open the record is locked. Nobody waits for it: repeats of the
// request are InProgress, and Extend outside leaves the lease as it is.
//
// Reserve and Void do not belong to the transaction: they are committed at
// once, by the store itself. A claim that nobody else can see would make
// everybody wait who claims the same key. Where tx holds the record, they see
// it locked by somebody else.
//
// An error of the database may have made tx fail: roll it back and start
// again. The store is as safe for concurrent use as tx is.
func (s *Store) In(tx pgx.Tx) idempotency.Store { return inside{s, pooled{tx}} }

// InSQL is [Store.In] for a transaction of database/sql. Its driver must be
// pgx's (github.com/jackc/pgx/v5/stdlib).
func (s *Store) InSQL(tx *sql.Tx) idempotency.Store {
	return inside{s, standard{tx, pgtype.NewMap()}}
}

type inside struct {
	s  *Store
	ss session
}

var (
	_ idempotency.Store     = inside{}
	_ idempotency.StepStore = inside{}
)

func (t inside) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	return t.s.Reserve(ctx, c)
}

func (t inside) Void(ctx context.Context, k idempotency.Key, o idempotency.Owner) error {
	return t.s.Void(ctx, k, o)
}

func (t inside) Lookup(ctx context.Context, k idempotency.Key) (idempotency.Record, error) {
	rec, err := lookup(ctx, t.ss, t.s.q, k.ID, t.s.now())
	return rec, explain(err)
}

func (t inside) Extend(ctx context.Context, r idempotency.Reservation, lease time.Duration) (time.Time, error) {
	lease = lease.Truncate(time.Microsecond)
	var end time.Time
	err := t.change(ctx, r.Key, func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
		next, err := idempotency.Renew(prev, r, lease, now)
		end = next.LeaseEnd
		return next, err
	})
	if err != nil {
		return time.Time{}, err
	}
	return end, nil
}

func (t inside) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	if err := e.Validate(); err != nil {
		return err
	}
	e.Result = wholeResult(e.Result)
	err := t.change(ctx, r.Key, func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
		return idempotency.Finish(prev, r, e, now)
	})
	if errors.Is(err, errAbsent) { // it only leaves a mark (R12)
		return t.s.End(ctx, r, e)
	}
	return err
}

func (t inside) SaveStep(ctx context.Context, r idempotency.Reservation, s idempotency.Step) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return t.change(ctx, r.Key, func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
		return idempotency.PutStep(prev, r, s, now)
	})
}

// errAbsent: there is no record, and the rule wants to insert one.
var errAbsent = errors.New("pgstore: there is no record")

// change locks the record, applies the rule, and writes. It waits for nobody:
// while another transaction holds the record, it tries again until LockWait is
// over.
func (t inside) change(ctx context.Context, k idempotency.Key, rule func(idempotency.Record, time.Time) (idempotency.Record, error)) error {
	started := time.Now()
	for tries := 1; ; tries++ {
		locked, err := t.try(ctx, k.ID, rule)
		switch {
		case errors.Is(err, errAbsent):
			return err
		case err != nil || !locked:
			return explain(err)
		case time.Since(started) > t.s.o.LockWait:
			return ErrLocked
		}
		if err := pause(ctx, tries); err != nil {
			return err
		}
	}
}

func (t inside) try(ctx context.Context, id idempotency.ID, rule func(idempotency.Record, time.Time) (idempotency.Record, error)) (locked bool, err error) {
	q := t.s.q
	now, prev, found, err := readOne(ctx, t.ss, q.lockOne, id, t.s.now())
	if err != nil {
		return false, err
	}
	e := &entry{id: id, found: found, prev: prev}
	if !found { // missing, or locked by others
		if now, e.prev, e.locked, err = readOne(ctx, t.ss, q.readOne, id, t.s.now()); err != nil {
			return false, err
		}
	} else if len(prev.Steps) > 0 {
		err := t.ss.query(ctx, q.stepsOf, func(scan func(...any) error) error {
			var record []byte
			var text string
			if err := scan(&record, &text); err != nil {
				return err
			}
			e.prev.Steps, err = readSteps(text)
			return err
		}, [][]byte{id[:]})
		if err != nil {
			return false, err
		}
	}
	if e.next, err = rule(e.prev, timeOf(now)); err != nil {
		return false, err
	}
	w := newWrites()
	switch {
	case e.locked:
		return e.next.Revision != e.prev.Revision, nil
	case w.inserts(e):
		return false, errAbsent
	}
	w.add(e)
	for _, st := range w.statements(q) {
		if _, err := t.ss.exec(ctx, st.text, st.args...); err != nil {
			return false, err
		}
	}
	return false, nil
}
