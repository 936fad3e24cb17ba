package escapement

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// Limit charges without running anything: for callers that must judge a
// request's charges before they read its body. Give Do only the others then
// (see ratelimit.Split).
// The error is ErrClosed, ErrLimits, or a fault of charges; after ErrLimits the
// charges may have been taken.
func (g *Gate) Limit(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	if err := g.checkCharges(charges); err != nil {
		return ratelimit.Decision{}, err
	}
	if g.slots.closed() {
		return ratelimit.Decision{}, ErrClosed
	}
	var r Request
	return g.take(ctx, &r, charges)
}

func (g *Gate) checkCharges(charges []ratelimit.Charge) error {
	if len(charges) == 0 {
		return nil
	}
	if g.o.Limits == nil {
		return errors.New("escapement: a request has charges and the gate has no store of limits: set Options.Limits")
	}
	for i := range charges {
		if err := charges[i].Validate(); err != nil {
			return err
		}
	}
	return nil
}

// take asks the limits. The error wraps ErrLimits.
func (g *Gate) take(ctx context.Context, r *Request, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	if len(charges) == 0 {
		return ratelimit.Decision{Allowed: true}, nil
	}
	start := g.watch()
	c := within(ctx, g.o.LimitsDeadline)
	d, err := g.o.Limits.Take(c, charges)
	c.end()
	if g.o.Observer != nil {
		g.observe(ctx, r, Event{Kind: LimitsAsked, Took: time.Since(start), Levels: d.Levels, Allowed: d.Allowed, Err: err})
	}
	if err == nil || ctx.Err() == nil { // a caller that has gone says nothing of the store
		g.limits.saw(ctx, g, r, err)
	}
	if err != nil {
		return ratelimit.Decision{}, fmt.Errorf("%w: %w", ErrLimits, err)
	}
	return d, nil
}

// giveBack returns what was charged for an operation that was not called.
func (g *Gate) giveBack(ctx context.Context, r *Request, t *ratelimit.Taken) {
	if t == nil {
		return
	}
	start := g.watch()
	c := within(ctx, g.o.LimitsDeadline)
	err := g.o.Limits.Return(c, t)
	c.end()
	if g.o.Observer != nil {
		g.observe(ctx, r, Event{Kind: ChargesReturned, Took: time.Since(start), Err: err})
	}
	g.limits.saw(ctx, g, r, err)
}

// join is the decision of both kinds, its levels in the order of charges. It
// has no Taken of its own where both kinds were asked.
func join(charges []ratelimit.Charge, requests, executions ratelimit.Decision) ratelimit.Decision {
	switch {
	case len(requests.Levels) == 0:
		return executions
	case len(executions.Levels) == 0:
		requests.Allowed = requests.Allowed && executions.Allowed
		return requests
	}
	d := ratelimit.Decision{Allowed: requests.Allowed && executions.Allowed}
	d.Levels = make([]ratelimit.Level, 0, len(requests.Levels)+len(executions.Levels))
	re, ex := requests.Levels, executions.Levels
	for _, c := range charges {
		from := &re
		if c.Kind == ratelimit.Executions {
			from = &ex
		}
		if len(*from) > 0 {
			d.Levels = append(d.Levels, (*from)[0])
			*from = (*from)[1:]
		}
	}
	return d
}
