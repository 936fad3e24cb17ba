package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/guard"
)

// breaker spares callers the waiting while a store is away: after some failures
// in a row a key is refused at once, but for one call now and then that tries.
type breaker = gobreaker.TwoStepCircuitBreaker[struct{}]

// newBreaker returns a breaker that takes for a failure what away says is one.
func newBreaker(log *slog.Logger, away func(error) bool) *breaker {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout: guard.DefaultPause, MaxRequests: 1,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= guard.DefaultTrip },
		IsSuccessful: func(err error) bool { return !away(err) },
		IsExcluded:   func(err error) bool { return errors.Is(err, context.Canceled) }, // a caller that gave up
		OnStateChange: func(_ string, from, to gobreaker.State) {
			if from == gobreaker.StateClosed {
				log.Warn("the store of records is away: keyed requests are refused at once, but for one now and then that tries")
			} else if to == gobreaker.StateClosed {
				log.Info("the store of records is back")
			}
		},
	})
}

// bodyRate is how fast a body goes to the store at least, per byte: 10 MB/s.
const bodyRate = 100 * time.Nanosecond

// bounded are records whose calls have a deadline.
type bounded struct {
	records
	deadline time.Duration
	breaker  *breaker
}

// ask makes a call that a client waits for and that nothing depends on yet.
func (b *bounded) ask(ctx context.Context, call func(context.Context) error) error {
	done, err := b.breaker.Allow()
	if err != nil {
		return fmt.Errorf("%w: it has failed several times in a row (%w)", idempotency.ErrNotSent, err)
	}
	err = b.within(ctx, b.deadline, call)
	done(err)
	return err
}

// within makes a call that has so much time.
func (b *bounded) within(ctx context.Context, limit time.Duration, call func(context.Context) error) error {
	mine, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := call(mine)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("the store did not answer within %v: %w", limit, err)
	}
	return err
}

// Reserve implements idempotency.Store.
func (b *bounded) Reserve(ctx context.Context, c idempotency.Claim) (a idempotency.Answer, err error) {
	err = b.ask(ctx, func(ctx context.Context) error { a, err = b.records.Reserve(ctx, c); return err })
	return a, err
}

// Lookup implements idempotency.Store.
func (b *bounded) Lookup(ctx context.Context, k idempotency.Key) (rec idempotency.Record, err error) {
	err = b.ask(ctx, func(ctx context.Context) error { rec, err = b.records.Lookup(ctx, k); return err })
	return rec, err
}

// Extend implements idempotency.Store.
func (b *bounded) Extend(ctx context.Context, r idempotency.Reservation, lease time.Duration) (end time.Time, err error) {
	err = b.within(ctx, b.deadline, func(ctx context.Context) error { end, err = b.records.Extend(ctx, r, lease); return err })
	return end, err
}

// End implements idempotency.Store.
func (b *bounded) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	limit := b.deadline + time.Duration(len(e.Result.Payload))*bodyRate
	return b.within(ctx, limit, func(ctx context.Context) error { return b.records.End(ctx, r, e) })
}
