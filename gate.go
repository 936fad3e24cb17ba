package escapement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// Options are what a Gate is made of. The zero value judges nothing: it is
// enough for requests without a key and without charges.
type Options struct {
	// Records keeps the records. Required if any request has a key. If it is a
	// Keeper too, Run sweeps it.
	Records idempotency.Store
	// Limits keeps the limits. Required if any request has charges. If it is
	// the same value as Records, and an Admitter, limits and claim of a request
	// are one call.
	Limits ratelimit.Store
	// Observer may be nil.
	Observer Observer
	// Logger gets a line for what a person should know: panics, time-outs,
	// lost leases, stores out of reach. Nil: slog.Default().
	Logger *slog.Logger
	// MaxRunning bounds the keyed operations whose fate is open at one time:
	// those that run, also after their time-out, and those whose ending the
	// store does not have yet. So a store that is away leads to ErrBusy and
	// not to a queue without bound. 0: 1000.
	MaxRunning int
	// RecordsDeadline bounds each call of Records. 0: 5 s.
	RecordsDeadline time.Duration
	// LimitsDeadline bounds each call of Limits. 0: 1 s.
	LimitsDeadline time.Duration
	// SweepEvery is the pause between two sweeps of Run. 0: 10 s.
	SweepEvery time.Duration
	// AbandonedAfter is how long an outcome must have been unknown until Run
	// counts its record as abandoned, tells the Observer and logs it. 0: 5 min.
	AbandonedAfter time.Duration
}

// Gate admits or answers requests. It is safe for concurrent use.
type Gate struct {
	o      Options
	keeper idempotency.Keeper // nil if Records is none
	// abandoned is the sweeper's.
	abandoned abandoned
	// admitter is Records and Limits in one, or nil.
	admitter Admitter
	slots    slots
	queue    queue

	working atomic.Bool // Run is under way
	records health
	limits  health
}

// New returns a Gate. It starts nothing; see Gate.Run. The error reports every
// fault of o at once.
func New(o Options) (*Gate, error) {
	var errs []error
	if o.MaxRunning < 0 {
		errs = append(errs, fmt.Errorf("escapement: options: MaxRunning is %d: want 0 or more", o.MaxRunning))
	}
	for _, d := range []struct {
		name string
		v    *time.Duration
		def  time.Duration
	}{
		{"RecordsDeadline", &o.RecordsDeadline, 5 * time.Second},
		{"LimitsDeadline", &o.LimitsDeadline, time.Second},
		{"SweepEvery", &o.SweepEvery, 10 * time.Second},
		{"AbandonedAfter", &o.AbandonedAfter, 5 * time.Minute},
	} {
		switch {
		case *d.v < 0:
			errs = append(errs, fmt.Errorf("escapement: options: %s is %v: want 0 or more", d.name, *d.v))
		case *d.v == 0:
			*d.v = d.def
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if o.MaxRunning == 0 {
		o.MaxRunning = 1000
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	g := &Gate{o: o}
	g.keeper, _ = o.Records.(idempotency.Keeper)
	g.admitter = o.admitter()
	g.slots.init(o.MaxRunning)
	g.queue.init()
	g.records.what, g.limits.what = "record store", "limiter"
	return g, nil
}

// Do judges r and, if it is admitted, calls fn once.
//
// Without a key, fn is called on the caller's goroutine with ctx as it is:
// nothing bounds it, a panic passes through, and its Ending is only reported.
//
// With a key, the request no longer depends on ctx, of which only the values
// are used: a client that goes away changes nothing. Do waits for the end all
// the same. fn runs in a goroutine of its own, with a context that ends with
// Policy.Timeout, and, where the terms let another attempt take over, when the
// lease is lost; see RunFrom for what it carries. The ending is in the store
// before Do returns, so the caller sends the last byte of the answer after it.
// If fn panics or calls runtime.Goexit, or if its Ending is not valid, the
// ending is unknown. If the time is over, unknown is recorded at once; what fn
// says later is recorded then, as the truth, unless somebody else owns the key.
//
// The verdict's Outcome counts only if the error is nil; the Decision always
// does. Errors: ErrClosed, ErrLimits, ErrRecords and ErrBusy say that nothing
// was executed. Any other is a fault of r, found before anything was done.
func (g *Gate) Do(ctx context.Context, r Request, fn func(context.Context, *Run) idempotency.Ending) (v Verdict, err error) {
	if g.o.Observer != nil {
		start := time.Now()
		defer func() {
			g.observe(ctx, &r, Event{Kind: Decided, Took: time.Since(start), Verdict: v.Outcome, Err: err})
		}()
	}
	if r.keyed() {
		return g.claim(ctx, r, fn)
	}
	if err := g.checkCharges(r.Charges); err != nil {
		return v, err
	}
	if g.slots.closed() {
		return v, ErrClosed
	}
	v.Decision, err = g.take(ctx, &r, r.Charges)
	if err != nil || !v.Decision.Allowed {
		return v, err
	}
	v.Outcome, v.Ran = Admitted, true
	run := &unkeyed
	if len(r.Charges) > 0 {
		run = &Run{decision: v.Decision}
	}
	v.Ending = fn(ctx, run)
	return v, nil
}
