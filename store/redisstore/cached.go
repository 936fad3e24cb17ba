package redisstore

import (
	"context"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// Cached is a Store that answers refusals from a [DenyCache] where it may.
type Cached struct {
	*Store
	denials *DenyCache
}

var _ ratelimit.Store = (*Cached)(nil)

// Cached returns the store behind a cache of refusals, which is this process's
// own.
func (s *Store) Cached(o DenyCacheOptions) (*Cached, error) {
	d, err := NewDenyCache(s, o)
	if err != nil {
		return nil, err
	}
	return &Cached{Store: s, denials: d}, nil
}

// Take is [DenyCache.Take].
func (c *Cached) Take(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	return c.denials.Take(ctx, charges)
}

// Return is [DenyCache.Return].
func (c *Cached) Return(ctx context.Context, t *ratelimit.Taken) error {
	return c.denials.Return(ctx, t)
}

// Reset is [DenyCache.Reset].
func (c *Cached) Reset(ctx context.Context, rule, subject string) error {
	return c.denials.Reset(ctx, rule, subject)
}

// Admit is [Store.Admit]. Only requests-charges are answered from the cache:
// whether executions count at all, the record decides (A3).
func (c *Cached) Admit(ctx context.Context, requests, executions []ratelimit.Charge, claim idempotency.Claim) (ratelimit.Decision, idempotency.Answer, error) {
	if d, denied := c.denials.Denied(requests); denied {
		return d, idempotency.Answer{}, nil
	}
	begin := time.Now()
	d, a, err := c.Store.Admit(ctx, requests, executions, claim)
	if err == nil && !d.Allowed {
		all := append(append([]ratelimit.Charge(nil), requests...), executions...)
		c.denials.Note(all[:len(d.Levels)], d, time.Since(begin))
	}
	return d, a, err
}
