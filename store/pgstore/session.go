package pgstore

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/escapement-dev/escapement/idempotency"
)

// session runs statements one after another. Its errors are faults.
type session interface {
	// query calls each for every result row. The function that each is given
	// reads the row's columns.
	query(ctx context.Context, text string, each func(scan func(into ...any) error) error, args ...any) error
	// exec returns how many rows were written.
	exec(ctx context.Context, text string, args ...any) (int64, error)
}

// pooled runs each statement on any connection of a pool, in a transaction of
// its own; within a pgx transaction, in that.
type pooled struct {
	db interface {
		Query(ctx context.Context, text string, args ...any) (pgx.Rows, error)
		Exec(ctx context.Context, text string, args ...any) (pgconn.CommandTag, error)
	}
}

func (p pooled) query(ctx context.Context, text string, each func(func(...any) error) error, args ...any) error {
	rows, err := p.db.Query(ctx, text, args...)
	if err != nil {
		return faulty(err)
	}
	return drain(rows, each)
}

// drain calls each for every row.
func drain(rows pgx.Rows, each func(func(...any) error) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return faulty(rows.Err())
}

func (p pooled) exec(ctx context.Context, text string, args ...any) (int64, error) {
	tag, err := p.db.Exec(ctx, text, args...)
	return tag.RowsAffected(), faulty(err)
}

// standard runs statements in a transaction of database/sql, on pgx's driver.
type standard struct {
	tx    *sql.Tx
	types *pgtype.Map
}

func (s standard) query(ctx context.Context, text string, each func(func(...any) error) error, args ...any) error {
	rows, err := s.tx.QueryContext(ctx, text, args...)
	if err != nil {
		return faulty(err)
	}
	defer rows.Close()
	scan := func(into ...any) error {
		for i, v := range into {
			if n, ok := v.(*[]int64); ok {
				into[i] = s.types.SQLScanner(n)
			}
		}
		return rows.Scan(into...)
	}
	for rows.Next() {
		if err := each(scan); err != nil {
			return err
		}
	}
	return faulty(rows.Err())
}

func (s standard) exec(ctx context.Context, text string, args ...any) (int64, error) {
	res, err := s.tx.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, faulty(err)
	}
	n, err := res.RowsAffected()
	return n, faulty(err)
}

// readOne returns the store's time, and the record of id as it is stored: the
// zero Record if there is none.
func readOne(ctx context.Context, ss session, text string, id idempotency.ID, clock *int64) (now int64, rec idempotency.Record, found bool, err error) {
	var v stored
	// Where there is no record, its columns are NULL.
	var tenant, prints, method, route, trace, marks, steps *string
	err = ss.query(ctx, text, func(scan func(...any) error) error {
		if err := scan(&now, &v.id, &v.n, &tenant, &prints, &method, &route, &trace, &marks, &v.owner, &v.released, &v.payload, &steps); err != nil {
			return err
		}
		if found = v.id != nil; !found {
			return nil
		}
		v.tenant, v.prints, v.method, v.route, v.trace, v.marks, v.steps = *tenant, *prints, *method, *route, *trace, *marks, *steps
		var err error
		rec, err = v.record()
		return err
	}, clock, id[:])
	return now, rec, found, err
}

func lookup(ctx context.Context, ss session, q *queries, id idempotency.ID, clock *int64) (idempotency.Record, error) {
	now, rec, _, err := readOne(ctx, ss, q.readOne, id, clock)
	if err != nil {
		return idempotency.Record{}, err
	}
	rec, ok := idempotency.View(rec, timeOf(now))
	if !ok {
		return idempotency.Record{}, idempotency.ErrNotFound
	}
	return rec, nil
}
