package redisstore_test

import (
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
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
