package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
)

// A statement of the store, by number.
type statement int

const (
	selectRecord statement = iota
	insertRecord
	updateRecord
	deleteRecord
	putStep
	deleteSteps
	selectDue
	listAll
	listHeld
	listTenant
	selectSetting
	insertSetting
	updateSetting
	insertAudit
	selectAudit
	dataVersion
	statements
)

var texted = func() (t [statements]string) {
	t[selectRecord] = "SELECT " + columns(true) + " FROM escapement_records WHERE id = ?"
	t[insertRecord] = "INSERT INTO escapement_records (" + strings.Join(written, ",") + ") VALUES (?" + strings.Repeat(",?", len(written)-1) + ")"
	t[updateRecord] = "UPDATE escapement_records SET " + strings.Join(written[1:], "=?,") + "=? WHERE seq = ?"
	t[deleteRecord] = "DELETE FROM escapement_records WHERE seq = ?"
	t[putStep] = "INSERT OR REPLACE INTO escapement_steps (record,n,name,done,provider_key,provider_id,started,ended,answer) VALUES (?,?,?,?,?,?,?,?,?)"
	t[deleteSteps] = "DELETE FROM escapement_steps WHERE record = ?"
	t[selectDue] = "SELECT " + columns(false) + ", ifnull(length(payload), 0) FROM escapement_records WHERE keep_until <= ? ORDER BY keep_until LIMIT ?"
	list := func(where string) string {
		return "SELECT " + columns(false) + " FROM escapement_records WHERE seq > ?" + where + " ORDER BY seq LIMIT ?"
	}
	t[listAll] = list("")
	t[listHeld] = list(" AND state = 1")
	t[listTenant] = list(" AND tenant = ?")
	t[selectSetting] = "SELECT value, version FROM escapement_settings WHERE name = ?"
	t[insertSetting] = "INSERT INTO escapement_settings (name, value, version, updated) VALUES (?,?,1,?)"
	t[updateSetting] = "UPDATE escapement_settings SET value = ?, version = version + 1, updated = ? WHERE name = ?"
	t[insertAudit] = `INSERT INTO escapement_audit (at, who, what, "on", "before", "after", why) VALUES (?,?,?,?,?,?,?)`
	t[selectAudit] = `SELECT seq, at, who, what, "on", "before", "after", why FROM escapement_audit WHERE seq > ? ORDER BY seq LIMIT ?`
	t[dataVersion] = "PRAGMA data_version"
	return t
}()

// session runs statements. Its errors are those of the database.
type session interface {
	// query calls each with every result row, until it returns an error or
	// false. The slice is used again; its values are not.
	query(ctx context.Context, st statement, each func(v []any) (bool, error), args ...any) error
	exec(ctx context.Context, st statement, args ...any) error
}

// fault marks an error of the database, in contrast to a decision.
type fault struct{ error }

func (f fault) Unwrap() error { return f.error }

func faulty(err error) error {
	if err == nil {
		return nil
	}
	return fault{err}
}

func isFault(err error) bool {
	var f fault
	return errors.As(err, &f)
}

// pooled runs each statement on a connection of a pool, in a transaction of
// its own.
type pooled struct{ stmts [statements]*sql.Stmt }

func preparePooled(ctx context.Context, db *sql.DB) (*pooled, error) {
	p := new(pooled)
	for _, st := range []statement{selectRecord, listAll, listHeld, listTenant, selectSetting, selectAudit} {
		s, err := db.PrepareContext(ctx, texted[st])
		if err != nil {
			p.close()
			return nil, err
		}
		p.stmts[st] = s
	}
	return p, nil
}

func (p *pooled) close() {
	for _, s := range p.stmts {
		if s != nil {
			s.Close()
		}
	}
}

func (p *pooled) query(ctx context.Context, st statement, each func([]any) (bool, error), args ...any) error {
	rows, err := p.stmts[st].QueryContext(ctx, args...)
	return scan(rows, err, each)
}

func (p *pooled) exec(ctx context.Context, st statement, args ...any) error {
	_, err := p.stmts[st].ExecContext(ctx, args...)
	return faulty(err)
}

// within runs statements in a transaction of the caller's.
type within struct{ tx *sql.Tx }

func (w within) query(ctx context.Context, st statement, each func([]any) (bool, error), args ...any) error {
	rows, err := w.tx.QueryContext(ctx, texted[st], args...)
	return scan(rows, err, each)
}

func (w within) exec(ctx context.Context, st statement, args ...any) error {
	_, err := w.tx.ExecContext(ctx, texted[st], args...)
	return faulty(err)
}

func scan(rows *sql.Rows, err error, each func([]any) (bool, error)) error {
	if err != nil {
		return faulty(err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return faulty(err)
	}
	v := make([]any, len(names))
	into := make([]any, len(names))
	for i := range v {
		into[i] = &v[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return faulty(err)
		}
		if on, err := each(v); err != nil || !on {
			return err
		}
	}
	return faulty(rows.Err())
}

// direct runs statements on one connection, below database/sql: that layer
// costs as much again as a small statement. It is not safe for concurrent use.
//
// The connection must stay reserved (a *sql.Conn) as long as this is used.
type direct struct {
	conn  driverConn
	stmts [statements]driver.Stmt
	plain map[string]driver.Stmt
	args  []driver.NamedValue
	dest  []driver.Value
}

// driverConn is what the driver's connections are, of what is used here.
type driverConn interface {
	driver.ConnPrepareContext
	driver.ExecerContext
}

func (d *direct) prepare(st statement) (driver.Stmt, error) {
	if s := d.stmts[st]; s != nil {
		return s, nil
	}
	s, err := d.conn.PrepareContext(context.Background(), texted[st])
	if err == nil {
		d.stmts[st] = s
	}
	return s, err
}

func (d *direct) close() {
	for i, s := range d.stmts {
		if s != nil {
			s.Close()
		}
		d.stmts[i] = nil
	}
	for _, s := range d.plain {
		s.Close()
	}
	d.plain = nil
}

// run executes BEGIN, COMMIT or ROLLBACK.
func (d *direct) run(text string) error {
	ctx := context.Background()
	s := d.plain[text]
	if s == nil {
		var err error
		if s, err = d.conn.PrepareContext(ctx, text); err != nil {
			return faulty(err)
		}
		if d.plain == nil {
			d.plain = make(map[string]driver.Stmt)
		}
		d.plain[text] = s
	}
	_, err := s.(driver.StmtExecContext).ExecContext(ctx, nil)
	return faulty(err)
}

func (d *direct) named(args []any) []driver.NamedValue {
	d.args = d.args[:0]
	for i, a := range args {
		d.args = append(d.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return d.args
}

func (d *direct) query(ctx context.Context, st statement, each func([]any) (bool, error), args ...any) (err error) {
	s, err := d.prepare(st)
	if err != nil {
		return faulty(err)
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(ctx, d.named(args))
	if err != nil {
		return faulty(err)
	}
	defer func() {
		if cerr := rows.Close(); err == nil {
			err = faulty(cerr)
		}
	}()
	n := len(rows.Columns())
	if cap(d.dest) < n {
		d.dest = make([]driver.Value, n)
	}
	dest := d.dest[:n]
	v := make([]any, n)
	for {
		switch err := rows.Next(dest); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return faulty(err)
		}
		for i, x := range dest {
			v[i] = x
		}
		if on, err := each(v); err != nil || !on {
			return err
		}
	}
}

func (d *direct) exec(ctx context.Context, st statement, args ...any) error {
	s, err := d.prepare(st)
	if err != nil {
		return faulty(err)
	}
	_, err = s.(driver.StmtExecContext).ExecContext(ctx, d.named(args))
	return faulty(err)
}
