package redisstore_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
	"github.com/escapement-dev/escapement/store/storetest"
)

// crowd takes one unit again and again, by many callers on two nodes at once,
// and returns how many passed. The clock stands still.
func crowd(t *testing.T, nodes []*redisstore.Store, rule ratelimit.Rule) int64 {
	t.Helper()
	var passed atomic.Int64
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			for range 20 {
				d, err := nodes[i%len(nodes)].Take(t.Context(), []ratelimit.Charge{{Rule: rule, Subject: "s", Cost: 1}})
				if err != nil {
					t.Error(err)
				} else if d.Allowed {
					passed.Add(1)
				} else if d.Levels[0].RetryAfter > rule.Window+time.Second {
					t.Errorf("a refusal says to wait for %v", d.Levels[0].RetryAfter)
				}
			}
		})
	}
	wait.Wait()
	return passed.Load()
}

// TestServersClockStepsBack: the server's clock goes back by an hour, under a
// crowd: nobody is admitted for it, and nobody waits for longer than a bucket
// takes to be full, or a window to pass.
func TestServersClockStepsBack(t *testing.T) {
	for _, rule := range []ratelimit.Rule{
		{Name: "bucket", Quota: 10, Window: time.Second, Burst: 20},
		{Name: "slow", Quota: 5, Window: time.Hour},
		{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: 15, Window: 2 * time.Second},
	} {
		t.Run(rule.Name, func(t *testing.T) {
			clock := storetest.NewClock()
			first := open(t, "redis://"+shared.Addr, clock)
			nodes := []*redisstore.Store{first, openAt(t, "redis://"+shared.Addr, redisstore.PrefixOf(first), clock)}
			want := func(n int64) {
				t.Helper()
				if got := crowd(t, nodes, rule); got != n {
					t.Fatalf("%d passed, want %d", got, n)
				}
			}
			full := rule.Capacity()
			toFull := rule.Window // of a log
			if rule.Algorithm == ratelimit.TokenBucket {
				toFull = rule.Window * time.Duration(full) / time.Duration(rule.Quota)
			}
			want(full)
			for range 3 {
				clock.Advance(-time.Hour)
				want(0)
				if rule.Algorithm == ratelimit.TokenBucket {
					clock.Advance(rule.Window / time.Duration(rule.Quota))
					want(1)
				}
				clock.Advance(toFull)
				want(full)
			}
			// And forward again: never more than is due.
			clock.Advance(3 * time.Hour)
			want(full)
		})
	}
}

// TestServersClockStepsBackUnderALease: a lease lasts for longer by the step,
// and its holder goes on; nobody else gets the key meanwhile.
func TestServersClockStepsBackUnderALease(t *testing.T) {
	clock := storetest.NewClock()
	s := open(t, "redis://"+shared.Addr, clock)
	c := newClaim(1)
	c.Terms.OnUnknown = idempotency.Retry
	a, err := s.Reserve(t.Context(), c)
	if err != nil || a.Outcome != idempotency.Started {
		t.Fatal(a.Outcome, err)
	}
	clock.Advance(-time.Hour)
	again := c
	again.Owner = idempotency.NewOwner()
	for range 2 {
		if b, err := s.Reserve(t.Context(), again); err != nil || b.Outcome != idempotency.InProgress {
			t.Fatalf("another claim is %v, %v", b.Outcome, err)
		}
		clock.Advance(time.Hour)
	}
	clock.Advance(-time.Hour) // here it would be over
	if _, err := s.Extend(t.Context(), a.Reservation, c.Terms.Lease); err != nil {
		t.Fatalf("Extend after the step: %v", err)
	}
	if err := s.End(t.Context(), a.Reservation, idempotency.Done(idempotency.Result{Class: idempotency.Succeeded})); err != nil {
		t.Fatalf("End after the step: %v", err)
	}
	if b, err := s.Reserve(t.Context(), again); err != nil || b.Outcome != idempotency.Replayed {
		t.Fatalf("a repeat is %v, %v", b.Outcome, err)
	}
}
