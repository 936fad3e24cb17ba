package pgstore

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/escapement-dev/escapement/internal/pgserver"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/storetest"
)

func TestLimitsSuite(t *testing.T) {
	storetest.Run(t, limitHarness(func(t testing.TB) string { return pgserver.Shared(t).URL() }))
}

func TestLimitsSuiteBehindPgbouncer(t *testing.T) {
	storetest.Run(t, limitHarness(func(t testing.TB) string {
		return pgserver.SharedPooler(t).URL() + " default_query_exec_mode=exec"
	}))
}

func limitHarness(url func(testing.TB) string) storetest.Harness {
	return storetest.Harness{
		NewLimits: func(t testing.TB, clock *storetest.Clock) ratelimit.Store {
			return openStore(t, url(t), Options{Now: clock.Now, Schema: migrated(t, pgserver.Shared(t))}).Limits(LimitsOptions{})
		},
		Caps: storetest.Capabilities{
			BucketsOnly: true,
			ReopenLimits: func(t testing.TB, s ratelimit.Store, clock *storetest.Clock) ratelimit.Store {
				old := s.(*Limits).s
				old.pool.Reset() // what is under way is cut off
				return openStore(t, url(t), Options{Now: clock.Now, Schema: old.o.Schema}).Limits(LimitsOptions{})
			},
		},
	}
}

// Two programs on one database: the whole suite, each call by either of two
// stores.
func TestLimitsSuiteWithTwoStores(t *testing.T) {
	h := limitHarness(func(t testing.TB) string { return pgserver.Shared(t).URL() })
	inner := h.NewLimits
	h.NewLimits = func(t testing.TB, clock *storetest.Clock) ratelimit.Store {
		a := inner(t, clock).(*Limits)
		b := openStore(t, pgserver.Shared(t).URL(), a.s.o)
		return &eitherLimits{a: a, b: b.Limits(LimitsOptions{Durable: true})}
	}
	reopen := h.Caps.ReopenLimits
	h.Caps.ReopenLimits = func(t testing.TB, s ratelimit.Store, clock *storetest.Clock) ratelimit.Store {
		x := s.(*eitherLimits)
		return &eitherLimits{a: reopen(t, x.a, clock).(*Limits), b: x.b}
	}
	storetest.Run(t, h)
}

// eitherLimits are two stores of limits on one database.
type eitherLimits struct{ a, b *Limits }

func (x *eitherLimits) one() *Limits {
	if rand.IntN(2) == 0 {
		return x.b
	}
	return x.a
}

func (x *eitherLimits) Take(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	return x.one().Take(ctx, charges)
}

func (x *eitherLimits) Return(ctx context.Context, t *ratelimit.Taken) error {
	return x.one().Return(ctx, t)
}

func (x *eitherLimits) Reset(ctx context.Context, rule, subject string) error {
	return x.one().Reset(ctx, rule, subject)
}
