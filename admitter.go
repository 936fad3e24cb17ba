package escapement

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// Admitter is implemented by stores of both records and limits that decide
// about both in one step. A Gate whose Options.Records and Options.Limits are
// one and the same such value asks it instead of making three calls, with the
// same verdicts.
type Admitter interface {
	// Admit takes requests, makes the claim if they pass, and takes executions
	// if the claim Started: all of it or, where a limit refuses, none but what
	// requests took.
	//
	// The decision's levels are those of the charges that were asked, requests
	// first; of requests that refuse there may be fewer levels than charges.
	// If it is not Allowed, no reservation is left (A2), and the answer is the
	// zero Answer. If it is Allowed and the claim did not start, executions
	// were not asked (A1). Taken has the charges of all levels, in their order.
	//
	// An error means that no decision was made: the charges may have been
	// taken, and the claim may be in the store, as after Reserve (R10). It
	// counts as ErrRecords, unless it wraps ErrLimits. With
	// idempotency.ErrFull and idempotency.ErrNotSent nothing changed.
	Admit(ctx context.Context, requests, executions []ratelimit.Charge, c idempotency.Claim) (ratelimit.Decision, idempotency.Answer, error)
}

// admitter is the one store of o's records and limits, or nil.
func (o *Options) admitter() Admitter {
	a, ok := o.Records.(Admitter)
	if !ok || o.Limits == nil || !reflect.TypeOf(o.Records).Comparable() || any(o.Records) != any(o.Limits) {
		return nil
	}
	return a
}

// admits reports whether limits and claim of r are one call.
func (g *Gate) admits(r *Request) bool {
	return g.admitter != nil && len(r.Charges) > 0 && r.Policy.Records == nil
}

// admit takes the charges and makes the claim in one call. The error wraps
// ErrLimits or ErrRecords. Second is the decision about executions, whose
// Taken can be given back.
func (g *Gate) admit(ctx context.Context, r *Request, requests, executions []ratelimit.Charge, c idempotency.Claim) (first, second ratelimit.Decision, ans idempotency.Answer, err error) {
	start := g.watch()
	b := within(ctx, g.o.RecordsDeadline)
	d, ans, err := g.admitter.Admit(b, requests, executions, c)
	b.end()
	limits := errors.Is(err, ErrLimits)
	if err == nil || limits {
		g.limits.saw(ctx, g, r, err)
	}
	if !limits {
		g.records.saw(ctx, g, r, err)
	}
	first, second = part(d, len(requests))
	if g.o.Observer != nil {
		g.observeAdmit(ctx, r, Event{Took: time.Since(start), Err: err, Together: true}, limits, first, second, ans)
	}
	if err != nil && !limits {
		err = fmt.Errorf("%w: %w", ErrRecords, err)
	}
	return first, second, ans, err
}

// observeAdmit tells of the parts of one call as if they had been several.
func (g *Gate) observeAdmit(ctx context.Context, r *Request, e Event, limits bool, first, second ratelimit.Decision, ans idempotency.Answer) {
	asked := func(d ratelimit.Decision) {
		e := e
		e.Kind, e.Levels, e.Allowed = LimitsAsked, d.Levels, d.Allowed
		g.observe(ctx, r, e)
	}
	if limits || len(first.Levels) > 0 {
		asked(first)
	}
	if len(second.Levels) > 0 {
		asked(second)
	}
	if limits || e.Err == nil && !(first.Allowed && second.Allowed) {
		return // no claim is left
	}
	e.Kind, e.Claim, e.Takeover, e.NotComparable = Claimed, ans.Outcome, ans.Reservation.Takeover, ans.NotComparable
	g.observe(ctx, r, e)
}

// part parts the decision of one Admit into that about the first n charges, the
// requests, and that about the others.
func part(d ratelimit.Decision, n int) (first, second ratelimit.Decision) {
	if len(d.Levels) <= n { // executions were not asked
		return d, ratelimit.Decision{Allowed: true}
	}
	first = ratelimit.Decision{Allowed: true, Levels: d.Levels[:n:n]}
	second = ratelimit.Decision{Allowed: d.Allowed, Levels: d.Levels[n:]}
	if t := d.Taken; t != nil && len(t.Charges) > n && len(t.Receipts) > n {
		second.Taken = &ratelimit.Taken{Charges: t.Charges[n:], Receipts: t.Receipts[n:]}
	}
	return first, second
}
