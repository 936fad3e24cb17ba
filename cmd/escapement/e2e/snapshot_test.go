package e2e

import (
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite" // the driver of the program's store
)

// kept is what the store's file says about a key.
type kept struct {
	state    string // held, done, free
	attempt  int
	takeover bool
}

// snapshot reads the records of a store whose process is dead, by their trace
// ids. It reads a copy: the file itself stays as the process left it, for the
// next one to recover.
func snapshot(db, dir string) (_ map[string]kept, err error) {
	dir, err = os.MkdirTemp(dir, "snapshot-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	copied := filepath.Join(dir, "escapement.db")
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(db + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(copied+suffix, b, 0o600)
		}
		if err != nil {
			return nil, err
		}
	}
	c, err := sql.Open("sqlite", copied)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	rows, err := c.Query("SELECT trace, state, attempt, takeover FROM escapement_keys")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[string]kept{}
	for rows.Next() {
		var trace string
		var k kept
		if err := rows.Scan(&trace, &k.state, &k.attempt, &k.takeover); err != nil {
			return nil, err
		}
		out[trace] = k
	}
	return out, rows.Err()
}

// lock takes the store's file from its program, until the function that it
// returns is called.
func lock(t *testing.T, db string) (unlock func()) {
	t.Helper()
	c, err := sql.Open("sqlite", db)
	if err != nil {
		t.Fatal(err)
	}
	c.SetMaxOpenConns(1)
	if _, err := c.Exec("BEGIN EXCLUSIVE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := c.Exec("ROLLBACK"); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
