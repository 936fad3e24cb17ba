package escapement

import (
	"context"
	"errors"

	"github.com/escapement-dev/escapement/idempotency"
)

// Same-transaction mode: what the operation writes and its record commit
// together. The order is
//
//	begin → FenceIn → the operation's writes → render → EndIn → commit → send
//
// with one rule: once EndIn was called, the transaction's fate is the ending,
// and what the function returns (or a panic) no longer counts. After the
// function is over, the Gate looks the record up:
//
//   - done, by this owner and token: it committed. The verdict's Ending is the
//     record's, and it is Recorded.
//   - held, by this owner and token: it was rolled back. The ending is NotRun.
//     Should the transaction still be about to commit (its function was given
//     up, or the connection broke in COMMIT), the store puts the two in order:
//     FenceIn and EndIn lock the record until the transaction is over, so
//     NotRun comes after it, and is refused as fenced if it committed. Then the
//     Gate looks again.
//   - anything else: fenced.
//   - no answer: the verdict's Ending is unknown and not Recorded, and Gate.Run
//     looks again until it is answered.
//
// So all effects of such an operation must be in its transaction; what is
// outside belongs into steps, which make a NotRun unknown (R9).

var errUnkeyed = errors.New("escapement: the request has no key, so it has no record that a transaction could end")

// FenceIn locks the record inside the caller's transaction, of which tx is the
// store: it is the transaction's first statement, so that no other attempt can
// take the key over before it ends. It wraps idempotency.ErrFenced if the
// attempt owns its key no longer; then roll back.
func (a *Run) FenceIn(ctx context.Context, tx idempotency.Store) error {
	if a.g == nil {
		return errUnkeyed
	}
	_, err := tx.Extend(ctx, a.res, a.req.Policy.Terms.Lease)
	return err
}

// EndIn records the result inside the caller's transaction, of which tx is the
// store. It may be called again in another transaction if the first was rolled
// back. From its first call on, the fate of the transaction is the operation's
// ending, even if EndIn fails; see the rule in docs/GUARANTEES.md: committed,
// the result; rolled back, not run. The error wraps idempotency.ErrFenced if
// the attempt owns its key no longer; then roll back. An invalid result is an
// error that changes nothing.
func (a *Run) EndIn(ctx context.Context, tx idempotency.Store, res idempotency.Result) error {
	if a.g == nil {
		return errUnkeyed
	}
	if err := res.Validate(); err != nil {
		return err
	}
	a.mu.Lock()
	a.inTx = true
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
