package redisstore_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// failing is a store that can be away. It counts its calls.
type failing struct {
	ratelimit.Store
	err   error
	calls atomic.Int64
}

func (f *failing) Take(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	f.calls.Add(1)
	if f.err != nil {
		return ratelimit.Decision{}, f.err
	}
	return f.Store.Take(ctx, charges)
}

func newLimits(t testing.TB) *memstore.Limits {
	t.Helper()
	m, err := memstore.NewLimits(memstore.LimitsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// byName is the policy that the rule's name says.
func byName(rule string) redisstore.Fallback {
	switch rule {
	case "open":
		return redisstore.Fallback{On: redisstore.OnOpen}
	case "closed":
		return redisstore.Fallback{On: redisstore.OnClosed}
	case "quarter":
		return redisstore.Fallback{On: redisstore.OnLocal, Share: .25}
	}
	return redisstore.Fallback{}
}

func newGuard(t testing.TB, s ratelimit.Store, o redisstore.GuardOptions) *redisstore.Guard {
	t.Helper()
	o.Local = newLimits(t)
	if o.Fallback == nil {
		o.Fallback = byName
	}
	g, err := redisstore.NewGuard(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGuardKeepsEachRulesPolicy(t *testing.T) {
	away := &failing{Store: newLimits(t)}
	g := newGuard(t, away, redisstore.GuardOptions{Trip: 1_000_000})
	charge := func(rule string, cost int64) ratelimit.Charge {
		return ratelimit.Charge{Rule: ratelimit.Rule{Name: rule, Quota: 8, Window: time.Hour}, Subject: "s", Cost: cost}
	}
	take := func(charges ...ratelimit.Charge) (ratelimit.Decision, error) { return g.Take(t.Context(), charges) }

	// While the store is there, it decides, and the local one is kept warm.
	for range 7 {
		if d, err := take(charge("local", 1), charge("quarter", 1), charge("open", 1), charge("closed", 1)); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	away.err = redisstore.ErrUnavailable
	if _, err := take(charge("open", 1), charge("closed", 1)); !errors.Is(err, redisstore.ErrUnavailable) {
		t.Fatalf("a closed rule without its store: %v", err)
	}
	for range 20 {
		if d, err := take(charge("open", 1)); err != nil || !d.Allowed || d.Taken == nil {
			t.Fatalf("an open rule without its store: %+v, %v", d, err)
		} else if err := g.Return(t.Context(), d.Taken); err != nil {
			t.Fatal(err)
		}
	}
	passed := map[string]int{}
	for _, rule := range []string{"local", "quarter"} {
		for range 10 {
			d, err := take(charge(rule, 1))
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed {
				passed[rule]++
			} else if d.Levels[0].RetryAfter == 0 || d.Levels[0].Rule.Quota != 8 {
				t.Fatalf("a refusal of the local rule is %+v", d.Levels[0])
			}
		}
	}
	if passed["local"] != 1 || passed["quarter"] != 0 {
		t.Fatalf("after 7 of 8, or of a quarter of 8, %v more passed without the store, want 1 and 0", passed)
	}
	// A cost that only the whole limit can bear waits for the store.
	if d, err := take(charge("quarter", 5)); err != nil || d.Allowed || d.Levels[0].Never || d.Levels[0].RetryAfter != redisstore.DefaultPause {
		t.Fatalf("a cost over the share is %+v, %v", d.Levels, err)
	}
	if d, err := take(charge("quarter", 9)); err != nil || !d.Levels[0].Never {
		t.Fatalf("a cost over the limit is %+v, %v", d.Levels, err)
	}
	if d, err := take(charge("local", 1), charge("open", 1)); err != nil || d.Allowed || !d.Levels[1].Allowed {
		t.Fatalf("a local refusal among others is %+v, %v", d, err)
	}
	if d, err := take(charge("open", -1)); err == nil || errors.Is(err, redisstore.ErrUnavailable) {
		t.Fatalf("a negative cost is %v, %v", d.Allowed, err)
	}
}

func TestGuardBreakerSparesTheStore(t *testing.T) {
	away := &failing{Store: newLimits(t), err: redisstore.ErrUnavailable}
	var states []bool
	g := newGuard(t, away, redisstore.GuardOptions{Trip: 3, Pause: 50 * time.Millisecond, OnState: func(a bool) { states = append(states, a) }})
	open := []ratelimit.Charge{{Rule: ratelimit.Rule{Name: "open", Quota: 1, Window: time.Hour}, Subject: "s", Cost: 1}}
	closed := []ratelimit.Charge{{Rule: ratelimit.Rule{Name: "closed", Quota: 1, Window: time.Hour}, Subject: "s", Cost: 1}}
	for range 100 {
		if d, err := g.Take(t.Context(), open); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	if n := away.calls.Load(); n > 5 {
		t.Fatalf("a store that failed 3 times was asked %d times", n)
	}
	if _, err := g.Take(t.Context(), closed); !errors.Is(err, redisstore.ErrUnavailable) {
		t.Fatalf("a closed rule behind an open breaker: %v", err)
	}
	away.err = nil
	for begin := time.Now(); ; {
		if d, err := g.Take(t.Context(), closed); err == nil && d.Allowed {
			break
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatal("the store is not asked again")
		}
	}
	// Refusals are no failures.
	for range 20 {
		if d, err := g.Take(t.Context(), closed); err != nil || d.Allowed {
			t.Fatal(d, err)
		}
	}
	if !slices.Equal(states, []bool{true, false}) {
		t.Fatalf("the states were %v, want away and back", states)
	}
}

func TestGuardCallersWhoGiveUpAreNoFailures(t *testing.T) {
	away := &failing{Store: newLimits(t)}
	g := newGuard(t, away, redisstore.GuardOptions{Trip: 2})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	charge := []ratelimit.Charge{perHour("open", "s", 1)}
	for range 10 {
		if _, err := g.Take(ctx, charge); !errors.Is(err, context.Canceled) {
			t.Fatalf("a caller who has given up gets %v", err)
		}
	}
	if d, err := g.Take(t.Context(), charge); err != nil || !d.Allowed || away.calls.Load() != 11 {
		t.Fatalf("after that the store was asked %d times: %v, %v", away.calls.Load(), d.Allowed, err)
	}
}

// TestGuardWhileRedisHangs: the server is frozen; no call takes much longer
// than the deadline, with the breaker open hardly any time, goroutines stay
// few, and the limit comes back with the server.
func TestGuardWhileRedisHangs(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, "redis://"+server.Addr, nil)
	g := newGuard(t, s, redisstore.GuardOptions{Deadline: 30 * time.Millisecond, Pause: 200 * time.Millisecond})
	charge := func(rule string) []ratelimit.Charge { return []ratelimit.Charge{perHour(rule, "s", 1)} }
	if d, err := g.Take(t.Context(), charge("local")); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	server.Pause(t)
	before := runtime.NumGoroutine()
	var took []time.Duration
	for range 5000 {
		begin := time.Now()
		if d, err := g.Take(t.Context(), charge("open")); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	if p99, most := took[len(took)*99/100], took[len(took)-1]; p99 > time.Millisecond*5 || most > time.Second {
		t.Fatalf("with Redis hung, p99 is %v and the longest call took %v", p99, most)
	}
	if n := runtime.NumGoroutine(); n > before+50 {
		t.Fatalf("%d goroutines became %d", before, n)
	}
	server.Resume(t)
	for begin := time.Now(); ; {
		if d, err := g.Take(t.Context(), charge("closed")); err == nil && d.Allowed {
			break
		}
		if time.Since(begin) > 20*time.Second {
			t.Fatal("the server is back and is not asked")
		}
	}
}

func TestGuardOptions(t *testing.T) {
	_, err := redisstore.NewGuard(nil, redisstore.GuardOptions{Deadline: 1, Trip: -1, Pause: 1})
	if err == nil {
		t.Fatal("faulty options are accepted")
	}
	if joined, ok := err.(interface{ Unwrap() []error }); !ok || len(joined.Unwrap()) != 4 {
		t.Fatalf("the error names not all four faults: %v", err)
	}
}
