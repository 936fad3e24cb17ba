package redisstore_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// TestConfirmed: with the replica alive all is confirmed; with it frozen a
// Reserve is given back, and an End is counted.
func TestConfirmed(t *testing.T) {
	t.Run("standalone", func(t *testing.T) {
		master := redistest.Start(t)
		replica := redistest.Start(t, "--replicaof", strings.ReplaceAll(master.Addr, ":", " "))
		replica.Expect(t, 0, "MASTER <-> REPLICA sync: Finished with success")
		confirmed(t, "redis://"+master.Addr, []*redistest.Server{replica})
	})
	t.Run("cluster", func(t *testing.T) {
		c := redistest.StartCluster(t, 3, 1)
		confirmed(t, "redis+cluster://"+strings.Join(c.Addrs(), ","), c.Replicas)
	})
}

func confirmed(t *testing.T, url string, replicas []*redistest.Server) {
	t.Helper()
	var told []string
	plain, err := redisstore.Open(url, redisstore.Options{
		Prefix:        fmt.Sprintf("test%d:", prefixes.Add(1)),
		OnUnconfirmed: func(write string) { told = append(told, write) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	s, err := plain.Confirmed(1, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	start := func(i int) idempotency.Reservation {
		t.Helper()
		a, err := s.Reserve(ctx, newClaim(i))
		if err != nil || a.Outcome != idempotency.Started {
			t.Fatalf("Reserve is %v, %v", a.Outcome, err)
		}
		return a.Reservation
	}
	done := idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Payload: []byte("x")})
	// A replica that has just joined may not be counted yet.
	for begin := time.Now(); ; {
		a, err := s.Reserve(ctx, newClaim(0))
		if err == nil && a.Outcome == idempotency.Started {
			break
		}
		if !errors.Is(err, redisstore.ErrUnconfirmed) || time.Since(begin) > 30*time.Second {
			t.Fatalf("the first Reserve is %v, %v", a.Outcome, err)
		}
	}
	short := s.Unconfirmed()
	told = nil
	first, second := start(1), start(2)
	if err := s.SaveStep(ctx, first, idempotency.Step{Name: "pay"}); err != nil {
		t.Fatal(err)
	}
	if err := s.End(ctx, first, done); err != nil {
		t.Fatal(err)
	}
	if s.Unconfirmed() != short {
		t.Fatalf("%d writes were not confirmed, though the replica is alive", s.Unconfirmed()-short)
	}

	for _, r := range replicas {
		r.Pause(t)
		defer r.Resume(t)
	}
	c := newClaim(3)
	if a, err := s.Reserve(ctx, c); !errors.Is(err, redisstore.ErrUnconfirmed) {
		t.Fatalf("Reserve with the replica frozen is %v, %v", a.Outcome, err)
	}
	if _, err := plain.Lookup(ctx, c.Key); !errors.Is(err, idempotency.ErrNotFound) {
		t.Fatalf("the claim that was not confirmed was not given back: %v", err)
	}
	if err := s.SaveStep(ctx, second, idempotency.Step{Name: "pay"}); !errors.Is(err, redisstore.ErrUnconfirmed) {
		t.Fatalf("SaveStep with the replica frozen: %v", err)
	}
	if err := s.End(ctx, second, done); err != nil {
		t.Fatalf("End with the replica frozen: %v", err)
	}
	if got := s.Unconfirmed() - short; got != 3 {
		t.Fatalf("%d writes were not confirmed, want 3", got)
	}
	if want := []string{"reserve", "save step", "end"}; !slices.Equal(told, want) {
		t.Fatalf("the hook was told of %q, want %q", told, want)
	}
	if a, err := s.Reserve(ctx, newClaim(2)); err != nil || a.Outcome != idempotency.Replayed {
		t.Fatalf("the repeat is %v, %v", a.Outcome, err)
	}
}
