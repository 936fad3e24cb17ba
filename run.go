package escapement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	safe   time.Time // until then the lease is surely ours, by our clock (F8)
	until  time.Time // the end of the lease to which safe belongs, by the store's clock
	lost   bool      // the store said that the key is not ours
	fenced bool      // FenceIn or EndIn was called
	inTx   bool      // EndIn was called
	steps  *steps    // nil until there are any
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
	case a.lost:
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
	lease := a.req.Policy.Terms.Lease
	before := time.Now()
	b := within(ctx, a.g.o.RecordsDeadline)
	end, err := a.g.store(a.req).Extend(b, a.res, lease)
	b.end()
	if a.g.o.Observer != nil {
		a.g.observe(a.ctx, a.req, Event{Kind: LeaseRenewed, Took: time.Since(before), Err: err, Background: background})
	}
	fenced := errors.Is(err, idempotency.ErrFenced)
	if err == nil || fenced || ctx.Err() == nil { // else the caller was in a hurry, not the store away
		a.g.records.saw(a.ctx, a.g, a.req, err)
	}
	switch {
	case err == nil:
		a.renewed(before, end)
	case fenced:
		a.lose()
	}
	return err
}

// renewed takes note of the end that an Extend has returned which was called at
// before. The store may have returned an end that this call did not make: an
// earlier call did, whose reply was lost, or nobody did, since a transaction of
// the operation's own holds the record. So our view of the lease grows by what
// the store's has grown, and never beyond what this call can have given. A store
// whose clock was set back lengthens nothing for a while, and our view does not
// grow either; one whose clock was set forward gives no more than this call can.
func (a *Run) renewed(before, end time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	grown := end.Sub(a.until)
	if grown <= 0 {
		return
	}
	a.until = end
	if t := earlier(before.Add(a.req.Policy.Terms.Lease), a.safe.Add(grown)); t.After(a.safe) {
		a.safe = t
	}
}

// lose takes note that the store has another owner, or none, for the key. After
// EndIn it may just be that the transaction has committed.
func (a *Run) lose() {
	a.mu.Lock()
	first := !a.lost && !a.inTx && a.stage == running
	if first {
		a.lost = true
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
