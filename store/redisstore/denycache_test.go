package redisstore_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
	"github.com/escapement-dev/escapement/store/redisstore"
	"github.com/escapement-dev/escapement/store/storetest"
)

// counted counts the calls of Take.
type counted struct {
	ratelimit.Store
	takes atomic.Int64
}

func (c *counted) Take(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	c.takes.Add(1)
	return c.Store.Take(ctx, charges)
}

func newCache(t testing.TB, clock *storetest.Clock, max int) (*redisstore.DenyCache, *counted) {
	t.Helper()
	m, err := memstore.NewLimits(memstore.LimitsOptions{Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{Store: m}
	d, err := redisstore.NewDenyCache(c, redisstore.DenyCacheOptions{Now: clock.Now, Max: max})
	if err != nil {
		t.Fatal(err)
	}
	return d, c
}

// Behind the cache a store decides as it did, except that some refusals have
// fewer levels, and a wait that does not know what was spent since.
func TestDenyCacheRefusesWhatTheStoreWould(t *testing.T) {
	clock := storetest.NewClock()
	cache, asked := newCache(t, clock, 0)
	plain, err := memstore.NewLimits(memstore.LimitsOptions{Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	rules := []ratelimit.Rule{
		{Name: "a", Quota: 3, Window: time.Second, Burst: 2},
		{Name: "b", Quota: 1, Window: 7 * time.Second},
		{Name: "c", Algorithm: ratelimit.SlidingWindowLog, Quota: 2, Window: 3 * time.Second},
	}
	const n = 20_000
	for i := range n {
		clock.Advance(time.Duration(1+i%1009) * time.Microsecond)
		charges := []ratelimit.Charge{{Rule: rules[i%3], Subject: fmt.Sprint(i % 5), Cost: int64(1 + i%2)}}
		if i%4 == 0 {
			charges = append(charges, ratelimit.Charge{Rule: rules[(i+1)%3], Subject: "s", Cost: 1})
		}
		got, err := cache.Take(ctx, charges)
		if err != nil {
			t.Fatal(err)
		}
		want, err := plain.Take(ctx, charges)
		if err != nil {
			t.Fatal(err)
		}
		if got.Allowed != want.Allowed {
			t.Fatalf("call %d: with the cache allowed is %v, without %v", i, got.Allowed, want.Allowed)
		}
		for _, l := range got.Levels {
			for _, w := range want.Levels {
				if l.Rule == w.Rule && l.Subject == w.Subject && (l.Allowed != w.Allowed || l.RetryAfter > w.RetryAfter || !l.Allowed && !l.Never && l.RetryAfter < 1) {
					t.Fatalf("call %d: with the cache the level is %+v, without %+v", i, l, w)
				}
			}
		}
	}
	if asked.takes.Load() > n*4/5 {
		t.Fatalf("of %d calls, %d went to the store: the cache has hardly answered", n, asked.takes.Load())
	}
}

// An attack of ten to one costs the store next to nothing.
func TestDenyCacheShieldsFromAFlood(t *testing.T) {
	clock := storetest.NewClock()
	cache, asked := newCache(t, clock, 0)
	rule := ratelimit.Rule{Name: "r", Quota: 10, Window: time.Minute}
	const honest = 1000
	for i := range honest {
		clock.Advance(5 * time.Millisecond)
		for range 10 {
			if _, err := cache.Take(t.Context(), []ratelimit.Charge{{Rule: rule, Subject: "attacker", Cost: 1}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := cache.Take(t.Context(), []ratelimit.Charge{{Rule: rule, Subject: fmt.Sprint(i), Cost: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := asked.takes.Load(); got > honest*105/100 {
		t.Fatalf("%d honest calls and %d of an attacker became %d calls of the store: want less than 5%% more", honest, 10*honest, got)
	}
}

func TestDenyCacheIsBounded(t *testing.T) {
	clock := storetest.NewClock()
	cache, _ := newCache(t, clock, 64)
	rule := ratelimit.Rule{Name: "r", Quota: 1, Window: time.Hour}
	for i := range 5000 {
		for range 2 {
			if _, err := cache.Take(t.Context(), []ratelimit.Charge{{Rule: rule, Subject: fmt.Sprint(i), Cost: 1}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	known := 0
	for i := range 5000 {
		if _, denied := cache.Denied([]ratelimit.Charge{{Rule: rule, Subject: fmt.Sprint(i), Cost: 1}}); denied {
			known++
		}
	}
	if known == 0 || known > 64 {
		t.Fatalf("a cache of 64 knows %d refusals", known)
	}
}

func TestDenyCacheForgetsWhatIsGivenBack(t *testing.T) {
	clock := storetest.NewClock()
	cache, _ := newCache(t, clock, 0)
	charges := []ratelimit.Charge{{Rule: ratelimit.Rule{Name: "r", Quota: 1, Window: time.Hour}, Subject: "s", Cost: 1}}
	take := func(want bool) ratelimit.Decision {
		t.Helper()
		d, err := cache.Take(t.Context(), charges)
		if err != nil || d.Allowed != want {
			t.Fatalf("allowed is %v, %v, want %v", d.Allowed, err, want)
		}
		return d
	}
	first := take(true)
	take(false)
	if err := cache.Return(t.Context(), first.Taken); err != nil {
		t.Fatal(err)
	}
	take(true)
	take(false)
	if err := cache.Reset(t.Context(), "r", "s"); err != nil {
		t.Fatal(err)
	}
	take(true)
	take(false)
	clock.Advance(time.Second) // what others give back is seen after a second
	if _, denied := cache.Denied(charges); denied {
		t.Fatal("a refusal is believed for more than a second")
	}
}

func BenchmarkDenyCache(b *testing.B) {
	m, err := memstore.NewLimits(memstore.LimitsOptions{})
	if err != nil {
		b.Fatal(err)
	}
	cache, err := redisstore.NewDenyCache(m, redisstore.DenyCacheOptions{})
	if err != nil {
		b.Fatal(err)
	}
	charges := []ratelimit.Charge{{Rule: ratelimit.Rule{Name: "r", Quota: 1, Window: time.Hour}, Subject: "s", Cost: 1}}
	b.ReportAllocs()
	for b.Loop() {
		if d, err := cache.Take(b.Context(), charges); err != nil || d.Allowed && b.N > 1 && len(d.Levels) == 0 {
			b.Fatal(d, err)
		}
	}
}
