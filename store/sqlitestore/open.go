package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"modernc.org/sqlite"
)

// writerCheckpoint is after how many pages in the WAL the writer moves them
// into the file. More than SQLite's 1000, since a page that many batches wrote
// is moved only once.
const writerCheckpoint = 4000

// Open opens the store in the file at path, and makes the file (not its
// directory) if it does not exist, for this user alone (mode 0600). The caller
// closes the store.
//
// It refuses, with an error that says what to do: faulty options; a missing
// directory; a directory; a file that is no database, is damaged, may not be
// written, has a newer schema, or belongs to another program (for your own
// database, use [New]). Nothing is left half done.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	file, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: %w", err)
	}
	if err := checkPath(path, file); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", dsn(file, o))
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: %s: %w", file, err)
	}
	conns := 1 + max(4, 2*runtime.GOMAXPROCS(0))
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	s, err := attach(ctx, db, file, o, prepareOwn)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.owned = db
	return s, nil
}

// dsn names file for the driver. The file is not opened by any other means: on
// POSIX systems, closing a second descriptor would drop SQLite's locks.
func dsn(file string, o Options) string {
	q := url.Values{}
	q.Set("_txlock", "immediate")
	q.Add("_pragma", fmt.Sprintf("busy_timeout(%d)", o.BusyTimeout.Milliseconds()))
	q.Add("_pragma", "synchronous(full)")
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(file), RawQuery: q.Encode()}
	return u.String()
}

func checkPath(path, file string) error {
	if path == "" {
		return errors.New("sqlitestore: the path is empty: give the file's path")
	}
	dir := filepath.Dir(file)
	switch info, err := os.Stat(dir); {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("sqlitestore: %s: the directory %s does not exist: create it (mkdir -p %s)", file, dir, dir)
	case err != nil:
		return fmt.Errorf("sqlitestore: %s: %w", file, err)
	case !info.IsDir():
		return fmt.Errorf("sqlitestore: %s: %s is not a directory: give another path", file, dir)
	}
	switch info, err := os.Stat(file); {
	case errors.Is(err, os.ErrNotExist):
		return create(file)
	case err != nil:
		return fmt.Errorf("sqlitestore: %s: %w", file, err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("sqlitestore: %s: it is not a regular file: give the path of a file", file)
	}
	return nil
}

// create makes an empty file, which only this user may read: it will hold
// answers to clients. SQLite gives the files beside it the same mode.
func create(file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	switch {
	case errors.Is(err, os.ErrExist): // another process was faster
		return nil
	case err != nil:
		return fmt.Errorf("sqlitestore: %s: the file cannot be made: give this user the right to write its directory, or give another path: %w", file, err)
	}
	return f.Close()
}

// New makes a store in a database of the caller's, in tables whose names begin
// with escapement_, so that handlers can use [Store.In]. The store takes one
// connection of db for itself until it is closed; db stays the caller's. With
// two connections, whatever else needs one waits while a transaction of the
// caller's is open; permit some more. A busy_timeout belongs into the DSN, or
// the caller's own transactions fail whenever the store is writing:
//
//	file:shop.db?_txlock=immediate&_pragma=journal_mode(wal)&_pragma=synchronous(full)&_pragma=busy_timeout(5000)
//
// It checks, and refuses with an error that says what to write: db is of the
// driver modernc.org/sqlite; transactions begin as immediate ones
// (_txlock=immediate); at least two connections are permitted; the journal is
// in WAL mode.
func New(ctx context.Context, db *sql.DB, o Options) (*Store, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.MaxPages != 0 {
		return nil, errors.New("sqlitestore: MaxPages is for Open: for a database of your own, put _pragma=max_page_count(N) into its DSN")
	}
	if db == nil {
		return nil, errors.New("sqlitestore: the database is nil")
	}
	if _, ok := db.Driver().(*sqlite.Driver); !ok {
		return nil, fmt.Errorf(`sqlitestore: the database is of the driver %T: open it with sql.Open("sqlite", …) of modernc.org/sqlite; two SQLite libraries on one file break its locks`, db.Driver())
	}
	if n := db.Stats().MaxOpenConnections; n == 1 {
		return nil, errors.New("sqlitestore: the database permits one connection, and the store needs one for itself: write db.SetMaxOpenConns(2) or more")
	}
	return attach(ctx, db, "", o.withDefaults(), checkForeign)
}

// attach takes a connection, prepares the database with it, and starts the
// writer.
func attach(ctx context.Context, db *sql.DB, file string, o Options, prepare func(context.Context, *sql.DB, *sql.Conn, Options) error) (_ *Store, err error) {
	defer func() { err = explain(file, err) }()
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, faulty(err)
	}
	defer func() {
		if err != nil {
			release(c)
		}
	}()
	if file == "" {
		if file, err = mainFile(ctx, c); err != nil {
			return nil, err
		}
	}
	err = patiently(ctx, o, func() error {
		if err := prepare(ctx, db, c, o); err != nil {
			return err
		}
		return migrate(ctx, c, micros(now(o)))
	})
	if err != nil {
		return nil, err
	}
	for _, p := range []string{
		"PRAGMA synchronous = FULL",
		"PRAGMA busy_timeout = 0", // see writer.begin
		fmt.Sprintf("PRAGMA wal_autocheckpoint = %d", writerCheckpoint),
	} {
		if err := pragma(ctx, c, p); err != nil {
			return nil, err
		}
	}
	reads, err := preparePooled(ctx, db)
	if err != nil {
		return nil, faulty(err)
	}
	ss := new(direct)
	err = c.Raw(func(dc any) error {
		conn, ok := dc.(driverConn)
		if !ok {
			return fmt.Errorf("sqlitestore: the driver's connection is a %T, which lacks what is needed", dc)
		}
		ss.conn = conn
		return nil
	})
	if err != nil {
		reads.close()
		return nil, err
	}
	return &Store{o: o, file: file, conn: c, w: startWriter(c, ss, o), reads: reads}, nil
}

// patiently repeats f while others hold the file's lock, for BusyTimeout. The
// busy_timeout does not do that everywhere: not while the journal's mode is
// being changed.
func patiently(ctx context.Context, o Options, f func() error) error {
	until := time.Now().Add(o.BusyTimeout)
	for {
		err := f()
		if !isBusy(err) || time.Now().After(until) {
			return err
		}
		t := time.NewTimer(maxPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// pragma runs p and drops the row that some give.
func pragma(ctx context.Context, c *sql.Conn, p string) error {
	_, err := c.ExecContext(ctx, p)
	return faulty(err)
}

func mainFile(ctx context.Context, c *sql.Conn) (string, error) {
	var file string
	err := c.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&file)
	if file == "" {
		file = "(no file)"
	}
	return file, faulty(err)
}

// prepareOwn makes an empty file, or one of ours, ready.
func prepareOwn(ctx context.Context, _ *sql.DB, c *sql.Conn, o Options) error {
	have, err := schemaVersion(ctx, c)
	if err != nil {
		return err
	}
	if have == 0 {
		var table sql.NullString
		err := c.QueryRowContext(ctx, "SELECT max(name) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'escapement~_%' ESCAPE '~'").Scan(&table)
		if err != nil {
			return faulty(err)
		}
		if table.Valid {
			return fmt.Errorf("sqlitestore: the file is the database of another program (it has a table %q): give another path, or use New to keep records in a database of your own", table.String)
		}
	}
	var mode string
	if err := c.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode); err != nil {
		return faulty(err)
	}
	if mode != "wal" {
		return fmt.Errorf("sqlitestore: the file's journal stays in the mode %q: put the file on a local disk, where the WAL mode works", mode)
	}
	if o.MaxPages > 0 {
		return pragma(ctx, c, fmt.Sprintf("PRAGMA max_page_count = %d", o.MaxPages))
	}
	return nil
}

// checkForeign reports why db, of the caller's, will not do.
func checkForeign(ctx context.Context, db *sql.DB, c *sql.Conn, o Options) error {
	var mode string
	if err := c.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return faulty(err)
	}
	if mode != "wal" {
		return fmt.Errorf("sqlitestore: the database's journal is in the mode %q: put _pragma=journal_mode(wal) into its DSN (WAL needs a file on a local disk)", mode)
	}
	if err := pragma(ctx, c, "PRAGMA busy_timeout = 0"); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, o.BusyTimeout)
	defer cancel()
	tx, err := db.BeginTx(within, nil)
	if err != nil {
		return faulty(err)
	}
	defer tx.Rollback()
	_, err = c.ExecContext(ctx, "BEGIN IMMEDIATE")
	switch {
	case isBusy(err): // tx holds the lock
		return pragma(ctx, c, fmt.Sprintf("PRAGMA busy_timeout = %d", o.BusyTimeout.Milliseconds()))
	case err != nil:
		return faulty(err)
	}
	_, err = c.ExecContext(ctx, "ROLLBACK")
	return errors.Join(
		errors.New("sqlitestore: the database's transactions begin as deferred ones, and a write of the store in between would make them fail: put _txlock=immediate into its DSN"),
		faulty(err),
	)
}
