package redisstore_test

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// A3: a flood of requests is refused without Redis; a replay is never refused
// because executions are.
func TestCachedAdmitRefusesOnlyByRequests(t *testing.T) {
	s, err := openTenants(t, "redis://"+shared.Addr, nil).Cached(redisstore.DenyCacheOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	rule := func(name string) []ratelimit.Charge {
		return []ratelimit.Charge{{Rule: ratelimit.Rule{Name: name, Quota: 1, Window: time.Hour}, Subject: "acme", Cost: 1}}
	}
	executions := rule("executions")
	first := newClaim(1)
	d, a, err := s.Admit(ctx, nil, executions, first)
	if err != nil || !d.Allowed || a.Outcome != idempotency.Started {
		t.Fatalf("the first is %v, %v, %v", d.Allowed, a.Outcome, err)
	}
	if err := s.End(ctx, a.Reservation, idempotency.Done(idempotency.Result{Class: idempotency.Succeeded})); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if d, _, err := s.Admit(ctx, nil, executions, newClaim(2+i)); err != nil || d.Allowed || d.Levels[0].RetryAfter == 0 {
			t.Fatalf("an execution too many is %+v, %v", d, err)
		}
		first.Owner = idempotency.NewOwner()
		if d, a, err := s.Admit(ctx, nil, executions, first); err != nil || !d.Allowed || a.Outcome != idempotency.Replayed {
			t.Fatalf("the replay is %v, %v, %v", d.Allowed, a.Outcome, err)
		}
	}

	requests := rule("requests")
	if d, _, err := s.Admit(ctx, requests, nil, newClaim(10)); err != nil || !d.Allowed {
		t.Fatalf("the first request is %v, %v", d.Allowed, err)
	}
	if d, _, err := s.Admit(ctx, requests, nil, newClaim(11)); err != nil || d.Allowed {
		t.Fatalf("the second request is %v, %v", d.Allowed, err)
	}
	shared.Cli(t, "config", "resetstat")
	for range 50 {
		d, a, err := s.Admit(ctx, requests, nil, newClaim(12))
		if err != nil || d.Allowed || a.Outcome != idempotency.Refused || len(d.Levels) != 1 || d.Levels[0].RetryAfter > time.Hour {
			t.Fatalf("a request too many is %+v, %v, %v", d, a.Outcome, err)
		}
	}
	if n := scriptCalls(t); n > 2 { // after a second the cache asks again
		t.Fatalf("50 requests too many became %d calls", n)
	}
}

// TestAttackCostsRedisLittle: ten requests too many with each honest one, half
// of them with a key. INFO commandstats counts hardly more calls than for the
// honest ones alone.
func TestAttackCostsRedisLittle(t *testing.T) {
	const honest, callers, times = 2000, 8, 10
	server := redistest.Start(t, "--appendfsync", "no")
	plain := openTenants(t, "redis://"+server.Addr, nil)
	rule := ratelimit.Rule{Name: "r", Quota: 10, Window: time.Hour}
	calls := func(attackers int) int64 {
		t.Helper()
		s, err := plain.Cached(redisstore.DenyCacheOptions{})
		if err != nil {
			t.Fatal(err)
		}
		request := func(subject string, i int) bool {
			charges := []ratelimit.Charge{{Rule: rule, Subject: subject, Cost: 1}}
			var d ratelimit.Decision
			var err error
			if i%2 == 0 {
				d, err = s.Take(t.Context(), charges)
			} else {
				d, _, err = s.Admit(t.Context(), charges, nil, newClaim(i))
			}
			if err != nil {
				t.Error(err)
			}
			return d.Allowed
		}
		server.Cli(t, "flushall")
		server.Cli(t, "config", "resetstat")
		var admitted atomic.Int64
		var wait sync.WaitGroup
		for w := range callers {
			wait.Go(func() {
				for i := w; i < honest; i += callers {
					for n := range attackers {
						if request("acme", i+n) {
							admitted.Add(1)
						}
					}
					if !request(fmt.Sprint("203.0.113.", i), i) {
						t.Error("an honest request is refused")
					}
				}
			})
		}
		wait.Wait()
		if attackers > 0 && admitted.Load() != rule.Quota {
			t.Errorf("%d of the attacker's requests passed, want %d", admitted.Load(), rule.Quota)
		}
		n, err := strconv.ParseInt(scriptStats.FindStringSubmatch(server.Cli(t, "info", "commandstats"))[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	without := calls(0)
	if with := calls(times); with*100 >= without*105 {
		t.Errorf("the attack made %d calls of Redis %d: want less than 5%% more", without, with)
	}
}
