package guard_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/guard"
	"github.com/escapement-dev/escapement/store/memstore"
)

// errDown is some store's own error.
var errDown = errors.New("down")

// failing is a store that can be away. It counts its calls.
type failing struct {
	ratelimit.Store
	calls atomic.Int64

	mu     sync.Mutex
	err    error
	during func() // if set, called in each call
}

// set says what calls do from now on: those that the guard left behind too.
func (f *failing) set(err error, during func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.during = err, during
}

func (f *failing) answer() error {
	f.calls.Add(1)
	f.mu.Lock()
	err, during := f.err, f.during
	f.mu.Unlock()
	if during != nil {
		during()
	}
	return err
}

func (f *failing) Take(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	if err := f.answer(); err != nil {
		return ratelimit.Decision{}, err
	}
	return f.Store.Take(ctx, charges)
}

func (f *failing) Return(ctx context.Context, t *ratelimit.Taken) error {
	if err := f.answer(); err != nil {
		return err
	}
	return f.Store.Return(ctx, t)
}

func (f *failing) Reset(ctx context.Context, rule, subject string) error {
	if err := f.answer(); err != nil {
		return err
	}
	return f.Store.Reset(ctx, rule, subject)
}

func perHour(rule string, quota int64) ratelimit.Charge {
	return ratelimit.Charge{Rule: ratelimit.Rule{Name: rule, Quota: quota, Window: time.Hour}, Subject: "s", Cost: 1}
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
func byName(rule string) guard.Fallback {
	switch rule {
	case "open":
		return guard.Fallback{On: guard.OnOpen}
	case "closed":
		return guard.Fallback{On: guard.OnClosed}
	case "quarter":
		return guard.Fallback{On: guard.OnLocal, Share: .25}
	}
	return guard.Fallback{}
}

func newGuard(t testing.TB, s ratelimit.Store, o guard.Options) *guard.Guard {
	t.Helper()
	o.Local = newLimits(t)
	if o.Deadline == 0 {
		o.Deadline = time.Minute
	}
	if o.Fallback == nil {
		o.Fallback = byName
	}
	g, err := guard.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGuardKeepsEachRulesPolicy(t *testing.T) {
	away := &failing{Store: newLimits(t)}
	g := newGuard(t, away, guard.Options{Trip: 1_000_000})
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
	away.set(errDown, nil)
	if _, err := take(charge("open", 1), charge("closed", 1)); !errors.Is(err, guard.ErrAway) {
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
	if d, err := take(charge("quarter", 5)); err != nil || d.Allowed || d.Levels[0].Never || d.Levels[0].RetryAfter != guard.DefaultPause {
		t.Fatalf("a cost over the share is %+v, %v", d.Levels, err)
	}
	if d, err := take(charge("quarter", 9)); err != nil || !d.Levels[0].Never {
		t.Fatalf("a cost over the limit is %+v, %v", d.Levels, err)
	}
	if d, err := take(charge("local", 1), charge("open", 1)); err != nil || d.Allowed || !d.Levels[1].Allowed {
		t.Fatalf("a local refusal among others is %+v, %v", d, err)
	}
	if d, err := take(charge("open", -1)); err == nil || errors.Is(err, guard.ErrAway) {
		t.Fatalf("a negative cost is %v, %v", d.Allowed, err)
	}
}

func TestGuardBreakerSparesTheStore(t *testing.T) {
	away := &failing{Store: newLimits(t), err: errDown}
	var states []bool
	g := newGuard(t, away, guard.Options{Trip: 3, Pause: 50 * time.Millisecond, OnState: func(a bool) { states = append(states, a) }})
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
	if _, err := g.Take(t.Context(), closed); !errors.Is(err, guard.ErrAway) {
		t.Fatalf("a closed rule behind an open breaker: %v", err)
	}
	away.set(nil, nil)
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
	g := newGuard(t, away, guard.Options{Trip: 2})
	charge := []ratelimit.Charge{perHour("open", 1)}
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		away.set(context.Canceled, cancel)
		if _, err := g.Take(ctx, charge); !errors.Is(err, context.Canceled) || errors.Is(err, guard.ErrAway) {
			t.Fatalf("a caller who gives up gets %v", err)
		}
		if err := g.Reset(ctx, "open", "s"); !errors.Is(err, context.Canceled) || errors.Is(err, guard.ErrAway) {
			t.Fatalf("a caller who has given up gets %v", err)
		}
	}
	away.set(nil, nil)
	if d, err := g.Take(t.Context(), charge); err != nil || !d.Allowed || away.calls.Load() != 11 {
		t.Fatalf("after that the store was asked %d times: %v, %v", away.calls.Load(), d.Allowed, err)
	}
}

// Faults of the charges are the caller's, whether the store names them in our
// way or in its own.
func TestGuardFaultyChargesAreNoFailures(t *testing.T) {
	away := &failing{Store: newLimits(t), err: errDown}
	g := newGuard(t, away, guard.Options{Trip: 2})
	faulty := perHour("open", 1)
	faulty.Cost = -1
	for range 10 {
		if _, err := g.Take(t.Context(), []ratelimit.Charge{faulty}); !errors.Is(err, ratelimit.ErrCharge) || errors.Is(err, guard.ErrAway) {
			t.Fatalf("a negative cost is %v", err)
		}
	}
	away.set(nil, nil)
	other := perHour("open", 2)
	for range 10 {
		if _, err := g.Take(t.Context(), []ratelimit.Charge{perHour("open", 1), other}); !errors.Is(err, ratelimit.ErrCharge) || errors.Is(err, guard.ErrAway) {
			t.Fatalf("two rules of one name are %v", err)
		}
	}
	if n := away.calls.Load(); n != 20 {
		t.Fatalf("the store was asked %d times, want 20", n)
	}
}

// hung is a store that ignores its context and answers only after release.
type hung struct {
	ratelimit.Store
	release chan struct{}
}

func (h *hung) Take(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	<-h.release
	return h.Store.Take(context.WithoutCancel(ctx), charges)
}

func (h *hung) Return(context.Context, *ratelimit.Taken) error { <-h.release; return nil }

func (h *hung) Reset(context.Context, string, string) error { <-h.release; return nil }

// Calls end by the deadline though those of the store do not, and what is left
// behind reads nothing of the caller's.
func TestGuardCallsEndThoughTheStoresDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hung{Store: newLimits(t), release: make(chan struct{})}
		g := newGuard(t, h, guard.Options{Deadline: 30 * time.Millisecond, Trip: 2, Pause: time.Minute})
		charges := []ratelimit.Charge{perHour("closed", 1)}
		taken := &ratelimit.Taken{Charges: charges, Receipts: make([]ratelimit.Receipt, 1)}
		for name, call := range map[string]func() error{
			"Take":   func() error { _, err := g.Take(t.Context(), charges); return err },
			"Return": func() error { return g.Return(t.Context(), taken) },
			"Reset":  func() error { return g.Reset(t.Context(), "closed", "s") },
		} {
			begin := time.Now()
			if err := call(); !errors.Is(err, guard.ErrAway) {
				t.Fatalf("%s of a hung store is %v", name, err)
			}
			// The third finds the breaker open.
			if took := time.Since(begin); took > 30*time.Millisecond {
				t.Fatalf("%s of a hung store took %v", name, took)
			}
		}
		charges[0] = ratelimit.Charge{} // the race detector sees who else reads it
		close(h.release)
	})
}

func TestGuardOptions(t *testing.T) {
	_, err := guard.New(nil, guard.Options{Deadline: 1, Trip: -1, Pause: 1})
	if err == nil {
		t.Fatal("faulty options are accepted")
	}
	if joined, ok := err.(interface{ Unwrap() []error }); !ok || len(joined.Unwrap()) != 4 {
		t.Fatalf("the error names not all four faults: %v", err)
	}
}

// However small the share, one unit may pass, and no more within the longest
// window that there is.
func TestGuardSmallestShares(t *testing.T) {
	for _, share := range []float64{1e-3, 1e-6, 2.3e-7, 1e-9, 1e-300} {
		away := &failing{Store: newLimits(t)}
		away.set(errDown, nil)
		g := newGuard(t, away, guard.Options{Trip: 1_000_000, Fallback: func(string) guard.Fallback { return guard.Fallback{On: guard.OnLocal, Share: share} }})
		for i := range 3 {
			c := ratelimit.Charge{Rule: ratelimit.Rule{Name: "a", Quota: 1, Window: 24 * time.Hour}, Subject: "s", Cost: 1}
			d, err := g.Take(t.Context(), []ratelimit.Charge{c})
			if err != nil || d.Allowed != (i == 0) || i > 0 && d.Levels[0].RetryAfter < 365*24*time.Hour {
				t.Fatalf("share %v, request %d: %+v, %v", share, i, d.Levels, err)
			}
		}
	}
}
