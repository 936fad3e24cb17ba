package sqlitestore

import (
	"context"
	"errors"
	"fmt"

	"github.com/escapement-dev/escapement/idempotency"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// code returns SQLite's extended result code in err, or 0.
func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

func isBusy(err error) bool {
	c := code(err) & 0xff
	return c == sqlite3.SQLITE_BUSY || c == sqlite3.SQLITE_LOCKED
}

// Error is a failure of the file or of the machine. Its text says what
// happened, to which file, and what to do next.
type Error struct {
	File string // the file's path
	What string // what happened
	Next string // what to do next
	Err  error  // what SQLite said
}

func (e *Error) Error() string {
	return fmt.Sprintf("sqlitestore: %s: %s: %s: %v", e.File, e.What, e.Next, e.Err)
}

// Unwrap returns what SQLite said, and idempotency.ErrFull where the file is
// full.
func (e *Error) Unwrap() []error {
	if code(e.Err)&0xff == sqlite3.SQLITE_FULL {
		return []error{e.Err, idempotency.ErrFull}
	}
	return []error{e.Err}
}

// lockedError says that somebody else's lock is in the way.
func lockedError(file string, err error) *Error {
	return &Error{
		File: file, What: "another connection holds the file's lock",
		Next: "end its transaction, or find the process (fuser, lsof) that has the file open; this goes on by itself when the lock is gone",
		Err:  err,
	}
}

// explain makes an *Error of an error of the database, and leaves decisions,
// contexts' errors and the store's own errors as they are.
func explain(file string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var f fault
	if errors.As(err, &f) {
		err = f.error
	}
	what, next := "", ""
	switch c := code(err); c & 0xff {
	case 0:
		return err
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		if c != sqlite3.SQLITE_BUSY_SNAPSHOT {
			return lockedError(file, err)
		}
		what, next = "the transaction was begun as a deferred one and another write came between", "put _txlock=immediate into the DSN, and begin the transaction without ReadOnly"
	case sqlite3.SQLITE_FULL:
		what, next = "there is no room for the write, and nothing changed", "free space on the disk or raise the file's bound (MaxPages); this goes on by itself then"
	case sqlite3.SQLITE_IOERR:
		what, next = "the disk failed", "look at the system's log and at the free space; whether the write took place is not known until the key is looked up"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH:
		what, next = "the file cannot be written", "give this user the right to write the file and its directory: the files -wal and -shm stand beside it"
	case sqlite3.SQLITE_CANTOPEN:
		what, next = "the file cannot be opened", "create its directory, and give this user the right to write there, and to read and write the file if it is there already"
	case sqlite3.SQLITE_NOTADB:
		what, next = "the file is not a SQLite database", "give another path, or move the file away"
	case sqlite3.SQLITE_CORRUPT:
		what, next = "the file is damaged", "stop, keep a copy of it with its -wal file, and restore a backup; sqlite3's .recover reads what can be read"
	case sqlite3.SQLITE_TOOBIG:
		what, next = "the value is too large for SQLite", "store less"
	default:
		what, next = "SQLite refused a statement", "if the file was changed by hand or belongs to another program, restore it; if a transaction was given to In, it must be of the store's own database"
	}
	return &Error{File: file, What: what, Next: next, Err: err}
}
