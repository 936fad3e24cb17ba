package redisstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
	"github.com/escapement-dev/escapement/store/storetest"
)

// TestContractUnderFaults runs the cases that need a server to hurt.
func TestContractUnderFaults(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server)
	h := harness("redis://"+proxy.Addr, func(t testing.TB) { server.Cli(t, "flushall") })
	plain := names(storetest.Cases(h))
	h.Faults = storetest.Faults{
		Stall: func(t testing.TB, _ idempotency.Store) func() {
			server.Pause(t)
			return func() { server.Resume(t) }
		},
		LoseReply: func(testing.TB, idempotency.Store) { proxy.LoseReply() },
		Restart:   func(t testing.TB, _ idempotency.Store) { server.Restart(t) },
	}
	ran := 0
	for _, c := range storetest.Cases(h) {
		if !slices.Contains(plain, c.Name) {
			ran++
			t.Run(c.Name, func(t *testing.T) { c.Run(t, h) })
		}
	}
	if ran < 3 {
		t.Fatalf("only %d cases need a fault", ran)
	}
}

func names(cases []storetest.Case) (list []string) {
	for _, c := range cases {
		list = append(list, c.Name)
	}
	return list
}

// TestScriptsAreRepaired: a server that has forgotten all scripts is told them
// again, by the very call, in pipelines too.
func TestScriptsAreRepaired(t *testing.T) {
	s := open(t, "redis://"+shared.Addr, nil)
	ctx := t.Context()
	for i := range 3 {
		c := newClaim(i)
		flush := func() { shared.Cli(t, "script", "flush") }
		flush()
		a, err := s.Reserve(ctx, c)
		if err != nil || a.Outcome != idempotency.Started {
			t.Fatalf("Reserve after SCRIPT FLUSH is %v, %v", a.Outcome, err)
		}
		if a.Reservation.Repeated {
			t.Fatal("a Reserve that the server did not know has not been sent twice")
		}
		flush()
		if err := s.End(ctx, a.Reservation, idempotency.Done(idempotency.Result{Class: idempotency.Succeeded})); err != nil {
			t.Fatalf("End after SCRIPT FLUSH: %v", err)
		}
		flush()
		p, err := s.List(ctx, idempotency.Filter{Limit: 50})
		if err != nil || len(p.Records) != i+1 {
			t.Fatalf("List after SCRIPT FLUSH has %d records, %v", len(p.Records), err)
		}
		flush()
		if d, err := s.Take(ctx, []ratelimit.Charge{perHour("r", "s", 1)}); err != nil || !d.Allowed {
			t.Fatalf("Take after SCRIPT FLUSH is %v, %v", d.Allowed, err)
		} else {
			flush()
			if err := s.Return(ctx, d.Taken); err != nil {
				t.Fatalf("Return after SCRIPT FLUSH: %v", err)
			}
		}
	}
	if d, err := s.Take(ctx, []ratelimit.Charge{perHour("r", "s", 0)}); err != nil || d.Levels[0].Remaining != 5 {
		t.Fatalf("after all was given back, %+v, %v", d.Levels, err)
	}
}

// TestTakeIsNeverSentTwice: a Take whose reply is lost is an error, and was
// charged once.
func TestTakeIsNeverSentTwice(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server)
	s := open(t, "redis://"+proxy.Addr, nil)
	charge := perHour("r", "s", 1)
	if d, err := s.Take(t.Context(), []ratelimit.Charge{charge}); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	proxy.LoseReply()
	_, err := s.Take(t.Context(), []ratelimit.Charge{charge})
	if !errors.Is(err, redisstore.ErrUnavailable) || errors.Is(err, redisstore.ErrNotExecuted) {
		t.Fatalf("Take whose reply is lost: %v", err)
	}
	charge.Cost = 0
	d, err := s.Take(t.Context(), []ratelimit.Charge{charge})
	if err != nil || d.Levels[0].Remaining != 3 {
		t.Fatalf("after two charges, of which one had no reply, %+v, %v", d.Levels, err)
	}
}

// TestErrorsAreClear makes servers refuse in every way that can be made here.
func TestErrorsAreClear(t *testing.T) {
	try := func(s *redisstore.Store) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := s.Take(ctx, []ratelimit.Charge{perHour("r", "s", 1)})
		return err
	}
	expect := func(t *testing.T, err error, word, text string, notExecuted bool) {
		t.Helper()
		if !errors.Is(err, redisstore.ErrUnavailable) || errors.Is(err, redisstore.ErrNotExecuted) != notExecuted ||
			!strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), text) {
			t.Fatalf("the error is %q (unavailable %v, not executed %v), want %s and %q, not executed %v", err,
				errors.Is(err, redisstore.ErrUnavailable), errors.Is(err, redisstore.ErrNotExecuted), word, text, notExecuted)
		}
	}
	t.Run("READONLY", func(t *testing.T) {
		master := redistest.Start(t)
		replica := redistest.Start(t, "--replicaof", strings.ReplaceAll(master.Addr, ":", " "))
		expect(t, try(open(t, "redis://"+replica.Addr, nil)), "READONLY", "the server is a replica", true)
	})
	t.Run("OOM", func(t *testing.T) {
		server := redistest.Start(t)
		s := open(t, "redis://"+server.Addr, nil)
		server.Cli(t, "config", "set", "maxmemory", "1")
		expect(t, try(s), "OOM", "out of memory", true)
	})
	t.Run("BUSY", func(t *testing.T) {
		server := redistest.Start(t, "--busy-reply-threshold", "10")
		s := open(t, "redis://"+server.Addr, nil)
		if _, err := redistest.Dial(t, server).Write([]byte("EVAL \"while true do end\" 0\r\n")); err != nil {
			t.Fatal(err)
		}
		server.Expect(t, 0, "Slow script detected")
		expect(t, try(s), "BUSY", "busy with somebody's script", true)
	})
	t.Run("NOPERM", func(t *testing.T) {
		server := redistest.Start(t)
		server.Cli(t, "acl", "setuser", "app", "on", ">pw", "~*", "+@all", "-evalsha", "-eval")
		expect(t, try(open(t, "redis://app:pw@"+server.Addr, nil)), "NOPERM", "may not run this", true)
	})
	t.Run("CLUSTERDOWN", func(t *testing.T) {
		c := redistest.StartCluster(t, 3, 0)
		s := open(t, "redis+cluster://"+strings.Join(c.Addrs(), ","), nil)
		if err := try(s); err != nil {
			t.Fatal(err)
		}
		for _, m := range c.Masters {
			m.Cli(t, "config", "set", "cluster-require-full-coverage", "yes")
		}
		from := c.Masters[1].Log()
		c.Masters[0].Kill()
		c.Masters[1].Expect(t, from, "Cluster state changed: fail")
		down := false
		for i := range 50 { // subjects on all nodes
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			_, err := s.Take(ctx, []ratelimit.Charge{perHour("r", string(rune('a'+i)), 1)})
			cancel()
			if err == nil {
				t.Fatal("a Take passes in a cluster that is down")
			}
			if strings.Contains(err.Error(), "CLUSTERDOWN") {
				expect(t, err, "CLUSTERDOWN", "the cluster does not serve this slot", true)
				down = true
				break
			}
		}
		if !down {
			t.Fatal("no Take says CLUSTERDOWN")
		}
	})
	t.Run("nobody", func(t *testing.T) {
		server := redistest.Start(t)
		s := open(t, "redis://"+server.Addr, nil)
		server.Kill()
		if err := try(s); !errors.Is(err, redisstore.ErrUnavailable) { // the connection may still have been there
			t.Fatalf("Take from a server that is gone: %v", err)
		}
		expect(t, try(s), "cannot connect", "", true)
		if _, err := redisstore.Open("redis://"+server.Addr, redisstore.Options{}); !errors.Is(err, redisstore.ErrUnavailable) {
			t.Fatalf("Open of a server that is not there: %v", err)
		}
	})
	t.Run("hung", func(t *testing.T) {
		server := redistest.Start(t)
		s := open(t, "redis://"+server.Addr, nil)
		if err := try(s); err != nil {
			t.Fatal(err)
		}
		server.Pause(t)
		defer server.Resume(t)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer cancel()
		begin := time.Now()
		_, err := s.Take(ctx, []ratelimit.Charge{perHour("r", "s", 1)})
		if took := time.Since(begin); took > 2*time.Second {
			t.Fatalf("a call with a deadline of 30ms returned after %v", took)
		}
		expect(t, err, "gave up waiting", "", false)
	})
}

// newClaim is the i-th claim of a test.
func newClaim(i int) idempotency.Claim {
	k := idempotency.Key{Tenant: "acme"}
	k.ID[0], k.ID[1], k.ID[2] = 1, byte(i), byte(i>>8)
	return idempotency.Claim{
		Key: k, Owner: idempotency.NewOwner(),
		Terms: idempotency.Terms{Lease: time.Minute, Retention: time.Hour},
	}
}

// perHour is a charge of a rule of five per hour.
func perHour(rule, subject string, cost int64) ratelimit.Charge {
	return ratelimit.Charge{Rule: ratelimit.Rule{Name: rule, Quota: 5, Window: time.Hour}, Subject: subject, Cost: cost}
}
