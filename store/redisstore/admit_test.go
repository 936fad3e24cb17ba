package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
	"github.com/escapement-dev/escapement/store/storetest"
)

// tenantOf says that subjects that begin with "acme" belong to that tenant.
func tenantOf(_, subject string) string {
	if strings.HasPrefix(subject, "acme") {
		return "acme"
	}
	return ""
}

func openTenants(t testing.TB, url string, clock *storetest.Clock) *redisstore.Store {
	t.Helper()
	o := redisstore.Options{Prefix: fmt.Sprintf("test%d:", prefixes.Add(1)), TenantOf: tenantOf}
	if clock != nil {
		o.Now = clock.Now
	}
	s, err := redisstore.Open(url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestAdmitIsTheSameAsThreeCalls(t *testing.T) {
	t.Run("standalone", func(t *testing.T) {
		clock := storetest.NewClock()
		url := "redis://" + shared.Addr
		admitAgainstThreeCalls(t, clock, openTenants(t, url, clock), openTenants(t, url, clock), 1500)
	})
	t.Run("cluster", func(t *testing.T) {
		clock := storetest.NewClock()
		url := "redis+cluster://" + strings.Join(redistest.StartCluster(t, 3, 0).Addrs(), ",")
		if s := openTenants(t, url, nil); s.Apart("r", "acme") || !s.Apart("r", "203.0.113.7") {
			t.Error("a tenant's limit lies apart, or a limit of no tenant does not")
		}
		admitAgainstThreeCalls(t, clock, openTenants(t, url, clock), openTenants(t, url, clock), 1500)
	})
}

// admitAgainstThreeCalls admits on one and calls Take, Reserve and Take on
// three, at random, and demands the same all along.
func admitAgainstThreeCalls(t *testing.T, clock *storetest.Clock, one, three *redisstore.Store, n int) {
	t.Helper()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	fail := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("seed %d: "+format, append([]any{seed}, args...)...)
	}
	ctx := t.Context()
	rules := []ratelimit.Rule{
		{Name: "a", Quota: 4, Window: time.Second, Burst: 6},
		{Name: "b", Quota: 5, Window: 2 * time.Second},
		{Name: "c", Algorithm: ratelimit.SlidingWindowLog, Quota: 4, Window: time.Second},
	}
	some := func(names string) (list []ratelimit.Charge) {
		for range r.IntN(3) {
			rule := rules[r.IntN(len(rules))]
			rule.Name = names + rule.Name
			if r.IntN(20) == 0 {
				rule.Window *= 2 // the rule changes: the slow way
			}
			subject := []string{"acme", "acme x", "203.0.113.7"}[r.IntN(3)]
			c := ratelimit.Charge{Rule: rule, Subject: subject, Cost: int64(r.IntN(3))}
			twice := false
			for _, o := range list {
				twice = twice || o.Rule.Name == c.Rule.Name && o.Subject == c.Subject && o.Rule != c.Rule
			}
			if !twice {
				list = append(list, c)
			}
		}
		return list
	}
	outcomes := map[string]int{}
	for range n {
		clock.Advance(time.Duration(r.IntN(200)) * time.Millisecond)
		requests, executions := some("r"), some("e")
		c := newClaim(r.IntN(40))
		c.Terms.OnUnknown = idempotency.Retry
		c.Terms.Lease = time.Duration(1+r.IntN(3)) * time.Second
		c.Terms.Retention = 4 * time.Second

		d, a, err := one.Admit(ctx, requests, executions, c)
		if err != nil {
			fail("Admit: %v", err)
		}
		want, err := three.Take(ctx, requests)
		if err != nil {
			fail("Take: %v", err)
		}
		var claimed idempotency.Answer
		if want.Allowed {
			if claimed, err = three.Reserve(ctx, c); err != nil {
				fail("Reserve: %v", err)
			}
			if claimed.Outcome == idempotency.Started {
				second, err := three.Take(ctx, executions)
				if err != nil {
					fail("Take: %v", err)
				}
				want.Levels = append(want.Levels, second.Levels...)
				if want.Allowed = second.Allowed; !second.Allowed {
					if err := three.End(ctx, claimed.Reservation, idempotency.NotRun()); err != nil {
						fail("End: %v", err)
					}
					claimed = idempotency.Answer{}
				}
			}
		}
		if d.Allowed != want.Allowed || fmt.Sprintf("%+v", d.Levels) != fmt.Sprintf("%+v", want.Levels) {
			fail("Admit decides\n%v %+v, three calls\n%v %+v", d.Allowed, d.Levels, want.Allowed, want.Levels)
		}
		if a.Outcome != claimed.Outcome || a.Record.State != claimed.Record.State ||
			a.Reservation.Takeover != claimed.Reservation.Takeover || a.NotComparable != claimed.NotComparable {
			fail("Admit answers\n%+v, three calls\n%+v", a, claimed)
		}
		if d.Allowed != (d.Taken != nil) {
			fail("allowed is %v, and what was taken %+v", d.Allowed, d.Taken)
		}
		outcomes[fmt.Sprintf("%v %v", d.Allowed, a.Outcome)]++
		if a.Outcome == idempotency.Started && r.IntN(4) > 0 {
			e := []idempotency.Ending{
				idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Payload: []byte("x")}),
				idempotency.NotRun(), idempotency.UnknownEnding(),
			}[r.IntN(3)]
			for _, x := range []struct {
				s *redisstore.Store
				r idempotency.Reservation
			}{{one, a.Reservation}, {three, claimed.Reservation}} {
				if err := x.s.End(ctx, x.r, e); err != nil {
					fail("End: %v", err)
				}
			}
		}
		if d.Allowed && r.IntN(4) == 0 {
			back := want.Taken
			for _, x := range []struct {
				s *redisstore.Store
				t *ratelimit.Taken
			}{{one, &ratelimit.Taken{Charges: d.Taken.Charges[:len(back.Charges)], Receipts: d.Taken.Receipts[:len(back.Charges)]}}, {three, back}} {
				if err := x.s.Return(ctx, x.t); err != nil {
					fail("Return: %v", err)
				}
			}
		}
	}
	for _, kind := range []string{"true started", "false refused", "true replayed", "true in_progress"} {
		if outcomes[kind] == 0 {
			fail("it never came to %q: %v", kind, outcomes)
		}
	}
}

// TestAdmitIsOneRoundTrip counts the commands that the server runs.
func TestAdmitIsOneRoundTrip(t *testing.T) {
	s := openTenants(t, "redis://"+shared.Addr, nil)
	charges := []ratelimit.Charge{perHour("one", "acme", 1), perHour("two", "203.0.113.7", 1)}
	more := []ratelimit.Charge{perHour("three", "acme", 1), perHour("four", "all", 1)}
	admit := func(i int) {
		t.Helper()
		d, a, err := s.Admit(t.Context(), charges, more, newClaim(i))
		if err != nil || !d.Allowed || a.Outcome != idempotency.Started {
			t.Fatalf("Admit is %v, %v, %v", d.Allowed, a.Outcome, err)
		}
	}
	admit(0)
	shared.Cli(t, "config", "resetstat")
	admit(1)
	stats := shared.Cli(t, "info", "commandstats")
	if !strings.Contains(stats, "cmdstat_evalsha:calls=1,") || strings.Contains(stats, "cmdstat_eval:") {
		t.Fatalf("one Admit was:\n%s", stats)
	}
}

func TestAdmitLeavesNoReservationWhenLimited(t *testing.T) {
	shared.Cli(t, "flushall")
	s := openTenants(t, "redis://"+shared.Addr, nil)
	rule := ratelimit.Rule{Name: "r", Quota: 1, Window: time.Hour}
	charge := []ratelimit.Charge{{Rule: rule, Subject: "acme", Cost: 1}}
	if d, a, err := s.Admit(t.Context(), nil, charge, newClaim(1)); err != nil || !d.Allowed || a.Outcome != idempotency.Started {
		t.Fatalf("the first Admit is %v, %v, %v", d.Allowed, a.Outcome, err)
	}
	before := dump(t, "*")
	d, a, err := s.Admit(t.Context(), nil, charge, newClaim(2))
	if err != nil || d.Allowed || a.Outcome != idempotency.Refused || len(d.Levels) != 1 || d.Levels[0].RetryAfter == 0 {
		t.Fatalf("the second Admit is %+v, %v, %v", d, a.Outcome, err)
	}
	if after := dump(t, "*"); after != before {
		t.Fatalf("a refusal changed Redis from\n%s\nto\n%s", before, after)
	}
	// A repeat of the first meets its reservation, whatever the executions' rule
	// says (A1).
	d, a, err = s.Admit(t.Context(), nil, charge, newClaim(1))
	if err != nil || !d.Allowed || a.Outcome != idempotency.InProgress || len(d.Levels) != 0 {
		t.Fatalf("the repeat is %+v, %v, %v", d, a.Outcome, err)
	}
}
