package escapement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// Run is one attempt, for the function that performs it. Its methods may be
// called concurrently.
type Run struct {
	g     *Gate
	ctx   context.Context // the request's values, without its end
	req   *Request
	res   idempotency.Reservation
	begin time.Time // before Reserve was called
	// decision is what the limits said. Set before the function is called.
	decision ratelimit.Decision

	// refs counts who still needs the attempt's slot: Do, the function's
	// goroutine, and an ending that the store does not have.
	refs atomic.Int32

	// op and cancel are the function's context; done is closed when out is set
	// and somebody waits for it. Set by perform.
	op     context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu     sync.Mutex
	safe   time.Time   // until then the lease is surely ours, by our clock (F8)
	until  time.Time   // the end of the lease to which safe belongs, by the store's clock
	flying []time.Time // when the Extends that are under way were sent
	lost   time.Time   // when the first was sent that failed; zero: none did
	gone   bool        // the store said that the key is not ours
	fenced bool        // FenceIn or EndIn was called
	inTx   bool        // EndIn was called
	steps  *steps      // nil until there are any
	stage  stage
	out    outcome // what the function came to, once stage is past running
	late   bool    // out came after Do had given up
	owed   owed
}

// unkeyed is the Run of every request with neither key nor charges.
var unkeyed = Run{decision: ratelimit.Decision{Allowed: true}}

type runKey struct{}

// RunFrom returns the attempt that ctx belongs to, or nil: the context of a
// request without a key belongs to none.
func RunFrom(ctx context.Context) *Run {
	r, _ := ctx.Value(runKey{}).(*Run)
	return r
}

// Reservation returns the attempt's reservation, and false if the request has no key.
func (a *Run) Reservation() (idempotency.Reservation, bool) { return a.res, a.g != nil }

// Decision returns what the limits said of the request, for a function that
// sends a part of its answer before Do returns. It is the same as the verdict's.
func (a *Run) Decision() ratelimit.Decision { return a.decision }

// Hold makes sure that the attempt still holds its key, right before something
// is sent: it extends a lease that is over by the holder's own clock (F8). The
// Gate does it before it calls the function; a function that works for long
// before it sends does it again. It costs nothing while the lease is alive.
//
// An error means: do not send. It wraps idempotency.ErrFenced if the attempt
// owns its key no longer or has been given up, and ErrRecords if the store does
// not answer within its deadline, or does not make the lease longer: it answers
// later than the lease is long; a transaction of the operation's own, longer
// than the lease, holds the record (then try again once it is over); or the
// store's clock was set back by more than the lease. For a request without a key
// it is nil.
func (a *Run) Hold(ctx context.Context) error {
	if a.g == nil {
		return nil
	}
	for range 3 {
		if alive, err := a.alive(); alive || err != nil {
			return err
		}
		err := a.extend(ctx, false)
		switch {
		case errors.Is(err, idempotency.ErrFenced):
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", ErrRecords, err)
		}
	}
	if alive, err := a.alive(); alive || err != nil {
		return err
	}
	return fmt.Errorf("%w: the lease of %v cannot be made longer: a transaction of the operation's own holds the record, or the store answers later than the lease is long, or its clock was set back", ErrRecords, a.req.Policy.Terms.Lease)
}

// alive reports whether something may be sent by what is known here, and an
// error if it may not whatever the store says.
func (a *Run) alive() (bool, error) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.gone:
		return false, idempotency.ErrFenced
	case a.stage != running:
		return false, fmt.Errorf("the attempt is over or was given up: %w", idempotency.ErrFenced)
	case !now.Before(a.deadline()):
		return false, fmt.Errorf("%w: the attempt's time of %v is over", ErrRecords, a.req.Policy.Timeout)
	}
	return now.Before(a.safe), nil
}

func (a *Run) deadline() time.Time { return a.begin.Add(a.req.Policy.Timeout) }

// extend renews the lease once.
func (a *Run) extend(ctx context.Context, background bool) error {
	before := time.Now()
	a.asking(before)
	b := within(ctx, a.g.o.RecordsDeadline)
	end, err := a.g.store(a.req).Extend(b, a.res, a.req.Policy.Terms.Lease)
	b.end()
	a.renewed(before, end, err)
	if a.g.o.Observer != nil {
		a.g.observe(a.ctx, a.req, Event{Kind: LeaseRenewed, Took: time.Since(before), Err: err, Background: background})
	}
	fenced := errors.Is(err, idempotency.ErrFenced)
	if err == nil || fenced || ctx.Err() == nil { // else the caller was in a hurry, not the store away
		a.g.records.saw(a.ctx, a.g, a.req, err)
	}
	if fenced {
		a.lose()
	}
	return err
}

// asking takes note of an Extend that is about to be sent.
func (a *Run) asking(before time.Time) {
	a.mu.Lock()
	a.flying = append(a.flying, before)
	a.mu.Unlock()
}

// renewed takes note of what came of the Extend that was sent at before: the
// end of the lease by the store's clock, or an error, after which it may still
// take effect.
//
// The end need not be this call's work: an earlier one may have made it whose
// reply was lost, and if a transaction of the operation's own holds the record,
// nobody does. Where it has not grown, our view does not. Where it has, one of
// the calls that were not yet answered did it, so the lease lasts from the first
// of these on; and it has grown by no more than the end has, if the store's
// clock was not set forward meanwhile, nor beyond what this call can have given.
// The later of the two is safe. (While a clock that was set back catches up, no
// call lengthens anything.)
func (a *Run) renewed(before, end time.Time, err error) {
	lease := a.req.Policy.Terms.Lease
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.Index(a.flying, before); i >= 0 {
		a.flying = slices.Delete(a.flying, i, i+1)
	}
	if err != nil {
		a.astray(before)
		return
	}
	grown := end.Sub(a.until)
	if grown <= 0 {
		return
	}
	a.until = end
	first := before
	for _, t := range a.flying {
		first = earlier(first, t)
	}
	if !a.lost.IsZero() {
		first = earlier(first, a.lost)
	}
	a.safe = later(a.safe, first.Add(lease), earlier(before.Add(lease), a.safe.Add(grown)))
}

// astray takes note of a call from before on which may lengthen the lease at any
// time. Callers hold a.mu.
func (a *Run) astray(before time.Time) {
	if a.lost.IsZero() || before.Before(a.lost) {
		a.lost = before
	}
}

// lose takes note that the store has another owner, or none, for the key. After
// EndIn it may just be that the transaction has committed.
func (a *Run) lose() {
	a.mu.Lock()
	first := !a.gone && !a.inTx && a.stage == running
	if first {
		a.gone = true
	}
	a.mu.Unlock()
	if !first {
		return
	}
	a.g.observe(a.ctx, a.req, Event{Kind: LeaseLost})
	a.g.log(a.ctx, slog.LevelWarn, a.req, "an attempt lost its lease")
	if u := a.req.Policy.Terms.OnUnknown; a.cancel != nil && (u == idempotency.Retry || u == idempotency.Probe) {
		a.cancel(idempotency.ErrFenced)
	}
}

func (a *Run) hold() { a.refs.Add(1) }

func (a *Run) release() {
	if a.refs.Add(-1) == 0 {
		a.g.slots.leave()
	}
}
