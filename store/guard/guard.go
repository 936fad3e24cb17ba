package guard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/escapement-dev/escapement/ratelimit"
)

// OnUnavailable says what becomes of a rule while the store is out of reach.
type OnUnavailable uint8

const (
	// OnLocal counts in this process, with a share of the limit. It is the zero
	// value.
	OnLocal OnUnavailable = iota
	// OnClosed refuses: Take returns the store's error, as an ErrAway.
	OnClosed
	// OnOpen lets everything pass.
	OnOpen
)

// String returns the policy's name as the configuration writes it.
func (o OnUnavailable) String() string {
	switch o {
	case OnLocal:
		return "local"
	case OnClosed:
		return "closed"
	case OnOpen:
		return "open"
	}
	return "invalid"
}

// Fallback is what a rule does while the store is out of reach.
type Fallback struct {
	On OnUnavailable
	// Share is the part of the limit that this process may admit on its own,
	// above 0 and up to 1; 0 means 1. It counts only with OnLocal.
	Share float64
}

// ErrAway is what errors.Is finds in an error of a call that the store did not
// answer as it should: it is out of reach, too slow, or not asked for a while.
// Unless it was not asked, charges may have been taken.
var ErrAway = errors.New("guard: the store is out of reach")

// Defaults of [Options].
const (
	DefaultDeadline = 20 * time.Millisecond
	DefaultTrip     = 5
	DefaultPause    = time.Second
)

// Options are the options of [New].
type Options struct {
	// Deadline is how long one call may take: at least 1 ms. 0:
	// DefaultDeadline. A context that ends earlier wins.
	Deadline time.Duration
	// Fallback says what a rule does. Nil: OnLocal with the whole limit, for all.
	Fallback func(rule string) Fallback
	// Local counts for rules that are OnLocal, such as memstore.Limits. It must
	// be set.
	Local ratelimit.Store
	// Trip is after how many failures in a row the store is no longer asked: at
	// least 1. 0: DefaultTrip.
	Trip int
	// Pause is how long it is not asked then; after it, one call tries, and
	// the others go on without it: at least 1 ms. 0: DefaultPause.
	Pause time.Duration
	// OnState, if set, is told when the store is no longer asked (away) and
	// when it is again. It must return at once.
	OnState func(away bool)
	// OnFallback, if set, is told of every charge that is decided without the
	// store. It must return at once, and may be called concurrently.
	OnFallback func(rule string, on OnUnavailable)
}

// Guard is a ratelimit.Store in front of another, for the time when that one
// cannot be reached: each call has a deadline, a circuit breaker spares the
// callers the waiting, and each rule has its policy. Any error of the store
// says that it is out of reach, but a ratelimit.ErrCharge and what comes of a
// caller's own context. Refusals are no failures, nor is a caller who gives up.
//
// A charge to an OnLocal rule that the store admits is also charged to the local
// one, so that this is not full when its turn comes. A local rule admits Share
// of the rule's rate and burst, but at least one unit at once. In a decision
// made without the store, RetryAfter is the local one; a cost that only the
// whole limit could bear says to retry after Pause. What such a decision took
// is not given back by Return.
//
// A call ends by its deadline also if the store's does not: that is then left
// behind, and ends when it does. Only a Take within 250 ms of a good answer
// trusts the store to end with its context.
//
// Its methods may be called concurrently.
type Guard struct {
	store   ratelimit.Store
	o       Options
	breaker *gobreaker.CircuitBreaker[ratelimit.Decision]
	pulse   pulse
}

var _ ratelimit.Store = (*Guard)(nil)

// New returns a guard in front of a store. The error names every faulty
// option.
func New(s ratelimit.Store, o Options) (*Guard, error) {
	var errs []error
	if o.Deadline == 0 {
		o.Deadline = DefaultDeadline
	}
	if o.Trip == 0 {
		o.Trip = DefaultTrip
	}
	if o.Pause == 0 {
		o.Pause = DefaultPause
	}
	if o.Deadline < time.Millisecond {
		errs = append(errs, fmt.Errorf("guard: Deadline is %v: want at least 1ms, or 0 for %v", o.Deadline, DefaultDeadline))
	}
	if o.Trip < 1 {
		errs = append(errs, fmt.Errorf("guard: Trip is %d: want at least 1, or 0 for %d", o.Trip, DefaultTrip))
	}
	if o.Pause < time.Millisecond {
		errs = append(errs, fmt.Errorf("guard: Pause is %v: want at least 1ms, or 0 for %v", o.Pause, DefaultPause))
	}
	if s == nil || o.Local == nil {
		errs = append(errs, errors.New("guard: want a store, and Local"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	g := &Guard{store: s, o: o, pulse: newPulse()}
	g.breaker = gobreaker.NewCircuitBreaker[ratelimit.Decision](gobreaker.Settings{
		Timeout:      o.Pause,
		MaxRequests:  1,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= uint32(o.Trip) },
		IsSuccessful: func(err error) bool { return err == nil || errors.Is(err, ratelimit.ErrCharge) },
		IsExcluded:   func(err error) bool { return errors.Is(err, errGaveUp) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			if o.OnState == nil {
				return
			}
			if to == gobreaker.StateOpen && from == gobreaker.StateClosed {
				o.OnState(true)
			} else if to == gobreaker.StateClosed {
				o.OnState(false)
			}
		},
	})
	return g, nil
}

// errGaveUp is a caller's own end. It is no failure of the store.
var errGaveUp = errors.New("the caller gave up")

// call asks the store, unless the breaker is open. The error is the caller's
// own end, an ErrCharge, or ErrAway.
func (g *Guard) call(ctx context.Context, ask func(ctx context.Context) (ratelimit.Decision, error)) (ratelimit.Decision, error) {
	if err := ctx.Err(); err != nil {
		return ratelimit.Decision{}, err
	}
	var cause error
	d, err := g.breaker.Execute(func() (ratelimit.Decision, error) {
		mine, cancel := context.WithTimeout(ctx, g.o.Deadline)
		defer cancel()
		d, err := ask(mine)
		if err != nil && ctx.Err() != nil {
			cause = err
			return d, errGaveUp
		}
		return d, err
	})
	switch {
	case err == nil, errors.Is(err, ratelimit.ErrCharge):
		return d, err
	case errors.Is(err, errGaveUp):
		return d, cause
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		return d, fmt.Errorf("%w: it has failed %d times in a row and is not asked for %v", ErrAway, g.o.Trip, g.o.Pause)
	}
	return d, fmt.Errorf("%w: %w", ErrAway, err)
}

// Take implements ratelimit.Store. The error is the caller's own end, a
// ratelimit.ErrCharge, or, where a rule is OnClosed, ErrAway.
func (g *Guard) Take(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	d, err := g.call(ctx, func(ctx context.Context) (ratelimit.Decision, error) { return g.take(ctx, charges) })
	switch {
	case err == nil:
		if d.Allowed {
			g.warm(ctx, charges)
		}
		return d, nil
	case !errors.Is(err, ErrAway):
		return ratelimit.Decision{}, err
	}
	return g.without(ctx, charges, err)
}

// take asks the store to take.
func (g *Guard) take(ctx context.Context, charges []ratelimit.Charge) (d ratelimit.Decision, err error) {
	begin := g.pulse.now()
	if g.pulse.recent(begin) {
		d, err = g.store.Take(ctx, charges)
	} else {
		own := slices.Clone(charges) // a call that is left behind may still read them
		d, err = promptly(ctx, func() (ratelimit.Decision, error) { return g.store.Take(ctx, own) })
	}
	if err == nil {
		g.pulse.felt(begin)
		return d, nil
	}
	if !errors.Is(err, ratelimit.ErrCharge) {
		err = errors.Join(err, faultsOf(charges))
	}
	return d, err
}

// faultsOf are the faults of the charges that a store may have named in its own
// way.
func faultsOf(charges []ratelimit.Charge) error {
	for i := range charges {
		if err := charges[i].Validate(); err != nil {
			return err
		}
	}
	return nil
}

func (g *Guard) fallback(rule string) Fallback {
	if g.o.Fallback == nil {
		return Fallback{Share: 1}
	}
	f := g.o.Fallback(rule)
	if f.Share <= 0 || f.Share > 1 || math.IsNaN(f.Share) { // also what is no number
		f.Share = 1
	}
	return f
}

// share is the part of a charge's rule that this process may admit.
func share(c ratelimit.Charge, part float64) ratelimit.Charge {
	if part == 1 {
		return c
	}
	r := c.Rule
	if r.Algorithm == ratelimit.TokenBucket {
		r.Burst = max(1, int64(math.Floor(float64(r.Capacity())*part)))
	}
	if quota := int64(math.Floor(float64(r.Quota) * part)); quota >= 1 {
		r.Quota = quota
	} else { // less than one unit per window: one unit per longer window
		longer := math.Ceil(float64(r.Window.Microseconds()) / (part * float64(r.Quota)))
		longer = min(longer, float64(ratelimit.MaxWindow.Microseconds())) // it may be more than a Duration holds
		r.Quota, r.Window = 1, time.Duration(longer)*time.Microsecond
	}
	c.Rule = r
	return c
}

// warm charges to the local store what was admitted. What does not fit there
// empties it no further.
func (g *Guard) warm(ctx context.Context, charges []ratelimit.Charge) {
	for i := range charges {
		if charges[i].Cost == 0 {
			continue
		}
		if f := g.fallback(charges[i].Rule.Name); f.On == OnLocal {
			c := share(charges[i], f.Share)
			c.Cost = min(c.Cost, c.Rule.Capacity())
			_, _ = g.o.Local.Take(ctx, []ratelimit.Charge{c})
		}
	}
}

// without decides without the store, which failed with the given error.
func (g *Guard) without(ctx context.Context, charges []ratelimit.Charge, cause error) (ratelimit.Decision, error) {
	if err := faultsOf(charges); err != nil {
		return ratelimit.Decision{}, err
	}
	d := ratelimit.Decision{Allowed: true, Levels: make([]ratelimit.Level, len(charges))}
	var local []ratelimit.Charge
	var from []int
	for i, c := range charges {
		f := g.fallback(c.Rule.Name)
		if f.On == OnClosed {
			return ratelimit.Decision{}, fmt.Errorf("rule %q is closed while its store is away: %w", c.Rule.Name, cause)
		}
		d.Levels[i] = ratelimit.Level{Rule: c.Rule, Subject: c.Subject, Allowed: true, Remaining: c.Rule.Capacity()}
		if f.On == OnLocal {
			local, from = append(local, share(c, f.Share)), append(from, i)
		}
	}
	if len(local) > 0 {
		part, err := g.o.Local.Take(ctx, local)
		if errors.Is(err, ratelimit.ErrCharge) {
			return ratelimit.Decision{}, err
		} else if err != nil {
			return ratelimit.Decision{}, errors.Join(err, cause)
		}
		d.Allowed = part.Allowed
		for i, at := range from {
			l := part.Levels[i]
			l.Rule = charges[at].Rule
			if l.Never && charges[at].Cost <= l.Rule.Capacity() {
				l.Never, l.RetryAfter = false, g.o.Pause
			}
			d.Levels[at] = l
		}
	}
	if d.Allowed {
		d.Taken = new(ratelimit.Taken) // nothing that the store could give back
	}
	if g.o.OnFallback != nil {
		for i := range charges {
			g.o.OnFallback(charges[i].Rule.Name, g.fallback(charges[i].Rule.Name).On)
		}
	}
	return d, nil
}

// Warm charges to the local store what was admitted by a call that went past
// the guard, such as one that takes charges and claims a key together.
func (g *Guard) Warm(ctx context.Context, charges []ratelimit.Charge) { g.warm(ctx, charges) }

// Return implements ratelimit.Store. The error is the caller's own end, or
// ErrAway; then the charges may have been given back, and what was not is not.
func (g *Guard) Return(ctx context.Context, t *ratelimit.Taken) error {
	if t == nil || len(t.Charges) == 0 {
		return nil
	}
	return g.change(ctx, func(ctx context.Context) error { return g.store.Return(ctx, t) })
}

// Reset implements ratelimit.Store: in the store and here. The error is the
// caller's own end, or ErrAway; the subject may then be forgotten here alone.
func (g *Guard) Reset(ctx context.Context, rule, subject string) error {
	err := g.change(ctx, func(ctx context.Context) error { return g.store.Reset(ctx, rule, subject) })
	return errors.Join(err, g.o.Local.Reset(ctx, rule, subject))
}

// change makes a call that decides nothing.
func (g *Guard) change(ctx context.Context, do func(ctx context.Context) error) error {
	_, err := g.call(ctx, func(ctx context.Context) (ratelimit.Decision, error) {
		return promptly(ctx, func() (ratelimit.Decision, error) { return ratelimit.Decision{}, do(ctx) })
	})
	return err
}
