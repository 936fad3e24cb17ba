package escapement

import (
	"errors"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// Outcome says what became of a request.
type Outcome uint8

const (
	// Limited: a limit refused it; Decision says which, and when to try again.
	// Nothing was executed. It is the zero value.
	Limited Outcome = iota
	// Admitted: it was run; see Ending.
	Admitted
	// Replayed: it was done before; Record has its result.
	Replayed
	// InProgress: another attempt is under way.
	InProgress
	// Mismatched: its key was used for another request.
	Mismatched
	// Unknown: an earlier attempt ended and nobody knows how.
	Unknown
	// Archived: it was done, longer ago than its retention.
	Archived
)

// String returns the outcome in lower case, as logs and metrics write it.
func (o Outcome) String() string {
	names := [...]string{"limited", "admitted", "replayed", "in_progress", "mismatched", "unknown", "archived"}
	if int(o) < len(names) {
		return names[o]
	}
	return "invalid"
}

// Verdict is the Gate's answer to a request.
type Verdict struct {
	Outcome Outcome
	// Decision is what the limits said, of all the charges that were asked.
	Decision ratelimit.Decision
	// Record is the key's record where the Outcome comes from it: Replayed,
	// InProgress, Mismatched, Unknown, Archived.
	Record idempotency.Record
	// NotComparable is true if the record's fingerprints could not be compared
	// with the request's; the request then counted as equal.
	NotComparable bool

	// The rest belongs to a request that was run: Outcome is Admitted, or,
	// where Fenced, whatever the record says.

	// Ran is true if the operation's function was called.
	Ran bool
	// Ending is what the function returned, or what the Gate made of its
	// panic or time-out, or of its transaction (see Run.EndIn).
	Ending idempotency.Ending
	// Recorded is true if the store has the Ending. If it is false, and the
	// attempt is not Fenced, the Gate goes on trying (see Gate.Run); the client
	// must not be told that the operation failed. It is always false for a
	// request without a key.
	Recorded bool
	// Fenced is true if the attempt had lost its key when it ended, or, where
	// Ran is false, before it began. Its own answer must not be given; the
	// record's state is the answer: Outcome is Replayed, Archived, InProgress
	// or Unknown, and Record the record. If the key is gone (forgotten by an
	// operator, or expired), Outcome is Unknown; if the store does not say,
	// InProgress. Both leave only Record.Key. InProgress is also the answer if
	// the successor has lost the key too, and the next try takes it over.
	Fenced bool
	// TimedOut is true if the function had not returned when Policy.Timeout
	// was over, or when Shutdown stopped waiting for it. It may still be
	// running, with its context cancelled. If it said how it ended while the
	// Gate was recording that nobody knows, Ending is what it said.
	TimedOut bool
	// Panicked is what the function panicked with, or an error where it called
	// runtime.Goexit, or nil. The caller decides whether to panic again.
	Panicked any
}

// Errors of Gate.Do. With each of them nothing was executed. Test with
// errors.Is; the error also wraps the store's own.
var (
	// ErrRecords: the records' store could not be reached or did not answer in
	// time.
	ErrRecords = errors.New("escapement: the record store is unavailable")
	// ErrLimits: the limits' store could not be reached or did not answer in
	// time.
	ErrLimits = errors.New("escapement: the limiter is unavailable")
	// ErrBusy: as many keyed operations are running as MaxRunning permits. No
	// key was taken.
	ErrBusy = errors.New("escapement: too many operations are running")
	// ErrClosed: the Gate is shutting down. No key was taken.
	ErrClosed = errors.New("escapement: the gate is shutting down")
)
