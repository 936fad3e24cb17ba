package pgstore

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/escapement-dev/escapement/idempotency"
)

// ErrClosed is the error of every operation after Close; nothing changed.
var ErrClosed = errors.New("pgstore: the store is closed")

// ErrLocked says that somebody else's transaction has held the record for longer than
// Options.LockWait; nothing changed. Try again when it has ended.
var ErrLocked = errors.New("pgstore: a transaction holds the record")

// Error is a failure of the database or of the way to it. Its text says what
// happened and what to do next.
type Error struct {
	What string // what happened
	Next string // what to do next
	Err  error  // what the driver said
}

func (e *Error) Error() string {
	return fmt.Sprintf("pgstore: %s: %s: %v", e.What, e.Next, e.Err)
}

// Unwrap returns what the driver said, and idempotency.ErrFull where the
// server's disk is full.
func (e *Error) Unwrap() []error {
	if code(e.Err) == "53100" {
		return []error{e.Err, idempotency.ErrFull}
	}
	return []error{e.Err}
}

// code returns the SQLSTATE in err, or "".
func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// transient reports whether a transaction failed because of others, changed
// nothing, and may succeed when it is run again.
func transient(err error) bool {
	switch code(err) {
	case "40001", "40P01", "55P03": // serialization, deadlock, lock_timeout
		return true
	}
	return false
}

// isFault reports whether err is one of the database or of the way to it, in
// contrast to a decision.
func isFault(err error) bool {
	var f fault
	return errors.As(err, &f)
}

// fault marks an error of the database.
type fault struct{ error }

func (f fault) Unwrap() error { return f.error }

func faulty(err error) error {
	if err == nil {
		return nil
	}
	return fault{err}
}

// explain makes an *Error of an error of the database, and leaves decisions,
// contexts' errors and the store's own errors as they are.
func explain(err error) error {
	var f fault
	if errors.As(err, &f) {
		err = f.error
	}
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	what, next := "", ""
	switch c := code(err); {
	case c == "":
		if errors.Is(err, os.ErrDeadlineExceeded) {
			what, next = "the server did not answer within Options.Timeout", "look at its load, its log and the network; whether the write took place is not known until the key is looked up"
			break
		}
		var connect *pgconn.ConnectError
		if !errors.As(err, &connect) {
			return err
		}
		what, next = "the server cannot be reached", "look at its address, its log and the network; this goes on by itself when it answers"
	case c == "42P01" || c == "3F000" || c == "42703":
		what, next = "the tables are not there, or of another version", "run escapement migrate, or call Migrate; if they are in a schema of their own, name it"
	case c == "42501" || c[:2] == "28":
		what, next = "the role may not do this", "grant it SELECT, INSERT, UPDATE and DELETE on the tables escapement_*, and look at the password and at pg_hba.conf"
	case c == "26000" || c == "42P05" || c == "08P01":
		what, next = "a pooler between here and the server does not know prepared statements", "put default_query_exec_mode=exec or =cache_describe into the URL"
	case c == "25006":
		what, next = "the server is read-only: it is a standby", "put target_session_attrs=read-write into the URL, with all servers' names"
	case c == "53100":
		what, next = "the server's disk is full, and nothing changed", "make room; this goes on by itself then"
	case c == "53300":
		what, next = "the server has no connection left", "raise max_connections, or put a pooler before it"
	case c[:2] == "57":
		what, next = "the server is stopping, or ended the connection", "this goes on by itself when it is back; whether the write took place is not known until the key is looked up"
	case transient(err):
		what, next = "other transactions were in the way, and nothing changed", "run it again"
	case c == "25P03":
		what, next = "the program stood still in a transaction, for longer than Options.Timeout, and nothing changed", "look at the machine's load; this goes on by itself"
	case c == "25P02":
		what, next = "the transaction had failed before", "roll it back"
	default:
		what, next = "the server refused a statement", "if the tables were changed by hand, restore them"
	}
	return &Error{What: what, Next: next, Err: err}
}

// ended reports whether err is of a context.
func ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Again reports whether a transaction of the handler's failed only because of
// others (SQLSTATE 40001 or 40P01, also of Commit): it changed nothing. Roll it
// back and run it again, a few times at most, from the fence on.
func Again(err error) bool {
	c := code(err)
	return c == "40001" || c == "40P01"
}
