package escapement

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

var errUnkeyed = errors.New("escapement: the request has no key, so it has no record that a transaction could end")

// FenceIn locks the record inside the caller's transaction, of which tx is the
// store: it is the transaction's first statement, so that no other attempt can
// take the key over before it ends. It wraps idempotency.ErrFenced if the
// attempt owns its key no longer; then roll back.
func (a *Run) FenceIn(ctx context.Context, tx idempotency.Store) error {
	if a.g == nil {
		return errUnkeyed
	}
	a.mu.Lock()
	a.fenced = true
	a.astray(time.Now()) // its lease counts once the transaction commits
	a.mu.Unlock()
	_, err := tx.Extend(ctx, a.res, a.req.Policy.Terms.Lease)
	return err
}

// EndIn records the result inside the caller's transaction, of which tx is the
// store: what the operation writes and its record commit together. The order is
//
//	begin → FenceIn → the operation's writes → render → EndIn → commit → send
//
// From its first call on, even a failed one, the fate of the transaction is the
// operation's ending, and what the function returns (or panics with) no longer
// counts. When the function is over, the Gate looks the record up:
//
//   - Done, by this owner and token: it committed. The verdict's Ending is the
//     record's, and it is Recorded.
//   - Held, by this owner and token: it was rolled back, so the ending is NotRun.
//     It may also be about to commit still (the connection broke in COMMIT).
//     Then the store puts the two in order: FenceIn and EndIn lock the record
//     until the transaction is over, so NotRun comes after it, and is refused as
//     fenced if it committed; and the Gate looks again. An operation whose time
//     is over while its transaction is open is unknown until it returns.
//   - Anything else: fenced.
//   - No answer: the verdict's Ending is unknown and not Recorded, and Gate.Run
//     looks again until it is answered.
//
// So all effects of such an operation belong into its transaction, or into steps,
// which make a NotRun unknown (R9). If the transaction was rolled back, EndIn may
// be called again in another one.
//
// The error wraps idempotency.ErrFenced if the attempt owns its key no longer;
// then roll back. An invalid result is an error that changes nothing, and so are
// a request without a key, and a retryable result while nobody knows what became
// of a step (ErrStepUnknown).
func (a *Run) EndIn(ctx context.Context, tx idempotency.Store, res idempotency.Result) error {
	if a.g == nil {
		return errUnkeyed
	}
	if err := res.Validate(); err != nil {
		return err
	}
	if res.Class == idempotency.FailedRetryable && a.stepOpen() {
		return fmt.Errorf("escapement: a retryable result cannot be recorded: %w: its call may still be under way", ErrStepUnknown)
	}
	a.mu.Lock()
	a.fenced, a.inTx = true, true
	a.mu.Unlock()
	return tx.End(ctx, a.res, idempotency.Done(res))
}

// transaction reports whether EndIn was called.
func (a *Run) transaction() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.inTx
}

// inTransaction is the ending of a function that is over: its own, unless it
// called EndIn. Then the transaction is over too, and if it did not commit,
// nothing was done.
func (a *Run) inTransaction(e idempotency.Ending) idempotency.Ending {
	if a.transaction() {
		return idempotency.NotRun()
	}
	return e
}
