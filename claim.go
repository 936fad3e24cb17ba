package escapement

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// claim is Do for a request with a key.
func (g *Gate) claim(ctx context.Context, r Request, fn func(context.Context, *Run) idempotency.Ending) (v Verdict, err error) {
	ctx = context.WithoutCancel(ctx)
	claim := idempotency.Claim{
		Key: r.Key, Prints: r.Prints, Owner: idempotency.NewOwner(), Terms: r.Policy.Terms, Origin: r.Origin,
	}
	if err := g.checkKeyed(&r, claim); err != nil {
		return v, err
	}
	if g.slots.closed() {
		return v, ErrClosed
	}
	requests, executions := ratelimit.Split(r.Charges)
	together := g.admits(&r)
	if !together {
		v.Decision, err = g.take(ctx, &r, requests)
		if err != nil || !v.Decision.Allowed {
			return v, err
		}
	}
	g.help(ctx)
	if err := g.slots.enter(); err != nil {
		if errors.Is(err, ErrBusy) {
			return g.busy(ctx, &r, requests, claim, v, together)
		}
		return v, err
	}
	a := &Run{g: g, ctx: ctx, req: &r, begin: time.Now()}
	a.refs.Store(1)
	defer a.release()

	var second ratelimit.Decision
	var ans idempotency.Answer
	if together {
		v.Decision, second, ans, err = g.admit(ctx, &r, requests, executions, claim)
	} else {
		ans, err = g.reserve(ctx, &r, claim)
	}
	if err != nil {
		if !errors.Is(err, idempotency.ErrFull) && !errors.Is(err, idempotency.ErrNotSent) { // R10; these have changed nothing
			a.void(claim.Owner)
		}
		return Verdict{Decision: v.Decision}, err
	}
	first := v.Decision
	if together && !(first.Allowed && second.Allowed) { // A2
		v.Decision = join(r.Charges, first, second)
		return v, nil
	}
	if ans.Outcome != idempotency.Started {
		return v.answered(ans)
	}
	a.res = ans.Reservation
	a.safe, a.until = a.begin.Add(r.Policy.Terms.Lease), a.res.LeaseEnd
	if len(ans.Record.Steps) > 0 {
		a.steps = foundSteps(ans.Record, a.begin, r.Policy.Timeout)
	}
	v.NotComparable = ans.NotComparable

	if !together {
		second, err = g.take(ctx, &r, executions)
	}
	if err == nil {
		v.Decision = join(r.Charges, first, second)
	}
	if err != nil || !second.Allowed { // A2
		a.record(&v, idempotency.NotRun())
		return Verdict{Decision: v.Decision, NotComparable: v.NotComparable}, err
	}
	if err := a.Hold(ctx); err != nil { // F8
		g.giveBack(ctx, &r, second.Taken)
		v.Ending = idempotency.NotRun()
		if errors.Is(err, idempotency.ErrFenced) {
			v.settledBy(a.look())
			return v, nil
		}
		a.record(&v, idempotency.NotRun())
		return Verdict{Decision: v.Decision, NotComparable: v.NotComparable}, err
	}
	a.perform(&v, fn)
	return v, nil
}

// checkKeyed reports what is wrong with a request that has a key.
func (g *Gate) checkKeyed(r *Request, c idempotency.Claim) error {
	if g.store(r) == nil {
		return errors.New("escapement: a request has a key and the gate has no store of records: set Options.Records")
	}
	if err := r.Policy.Validate(); err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return err
	}
	return g.checkCharges(r.Charges)
}

// store keeps the request's record.
func (g *Gate) store(r *Request) idempotency.Store {
	if r.Policy.Records != nil {
		return r.Policy.Records
	}
	return g.o.Records
}

// reserve claims the key, once. The error wraps ErrRecords.
func (g *Gate) reserve(ctx context.Context, r *Request, c idempotency.Claim) (idempotency.Answer, error) {
	start := g.watch()
	b := within(ctx, g.o.RecordsDeadline)
	ans, err := g.store(r).Reserve(b, c)
	b.end()
	if g.o.Observer != nil {
		g.observe(ctx, r, Event{
			Kind: Claimed, Took: time.Since(start), Err: err,
			Claim: ans.Outcome, Takeover: ans.Reservation.Takeover, NotComparable: ans.NotComparable,
		})
	}
	g.records.saw(ctx, g, r, err)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrRecords, err)
	}
	return ans, err
}

// busy answers a request for which there is no slot, from the record alone. It
// takes no key; so whatever would have to write one is ErrBusy. The requests
// are charged here if they were not before.
func (g *Gate) busy(ctx context.Context, r *Request, requests []ratelimit.Charge, c idempotency.Claim, v Verdict, charge bool) (Verdict, error) {
	var err error
	if charge {
		if v.Decision, err = g.take(ctx, r, requests); err != nil || !v.Decision.Allowed {
			return v, err
		}
	}
	rec, err := g.lookup(ctx, r)
	switch {
	case errors.Is(err, idempotency.ErrNotFound):
		return v, ErrBusy
	case err != nil:
		return v, fmt.Errorf("%w: %w", ErrRecords, err)
	}
	next, ans := idempotency.Decide(rec, c, rec.AsOf)
	if next.Revision != rec.Revision {
		return v, ErrBusy
	}
	return v.answered(ans)
}

// lookup reads the request's record: a record, ErrNotFound, or the store's
// error.
func (g *Gate) lookup(ctx context.Context, r *Request) (idempotency.Record, error) {
	b := within(ctx, g.o.RecordsDeadline)
	rec, err := g.store(r).Lookup(b, r.Key)
	b.end()
	if err != nil && !errors.Is(err, idempotency.ErrNotFound) {
		g.records.saw(ctx, g, r, err)
	} // that it can be read does not mean that it can be written again
	return rec, err
}

// answered is the verdict of a claim that did not start.
func (v Verdict) answered(ans idempotency.Answer) (Verdict, error) {
	v.Record, v.NotComparable = ans.Record, ans.NotComparable
	switch ans.Outcome {
	case idempotency.Replayed:
		v.Outcome = Replayed
	case idempotency.InProgress:
		v.Outcome = InProgress
	case idempotency.Mismatched:
		v.Outcome = Mismatched
	case idempotency.Unknown:
		v.Outcome = Unknown
	case idempotency.Archived:
		v.Outcome = Archived
	default: // Refused: an owner that nobody else can know was withdrawn
		return v, fmt.Errorf("%w: it answered a claim with %v", ErrRecords, ans.Outcome)
	}
	return v, nil
}
