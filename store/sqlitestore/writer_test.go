package sqlitestore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// Within a batch, what keeps a reservation comes before what would take it
// over (F5).
func TestBatchOrder(t *testing.T) {
	ctx := context.Background()
	clock := time.Now()
	path := newFile(t)
	s := open(t, path, Options{Now: func() time.Time { return clock }})
	c := newClaim(newKey())
	c.Terms.OnUnknown = idempotency.Retry
	old := start(t, s, c)
	clock = clock.Add(c.Terms.Lease + c.Terms.Quiet)
	unlock := lock(t, path)

	claimed := make(chan idempotency.Outcome)
	go func() {
		c := c
		c.Owner = idempotency.NewOwner()
		a, err := s.Reserve(ctx, c)
		if err != nil {
			t.Error(err)
		}
		claimed <- a.Outcome
	}()
	waitQueued(t, s, 1)
	extended := make(chan error)
	go func() {
		_, err := s.Extend(ctx, old, time.Minute)
		extended <- err
	}()
	waitQueued(t, s, 2)
	unlock()
	if err := <-extended; err != nil {
		t.Errorf("Extend: %v", err)
	}
	if o := <-claimed; o != idempotency.InProgress {
		t.Errorf("the claim that arrived first is %v: want in_progress, since the lease was extended", o)
	}
}

// One operation that the file has no room for fails alone (F6): the batch is
// lost with it, and is written again.
func TestBatchWithBadOperation(t *testing.T) {
	ctx := context.Background()
	path := newFile(t)
	s := open(t, path, Options{MaxPages: 64})
	bad := start(t, s, newClaim(newKey()))
	good := make([]idempotency.Reservation, 20)
	for i := range good {
		good[i] = start(t, s, newClaim(newKey()))
	}
	fenced := good[0]
	fenced.Token++
	unlock := lock(t, path)

	type result struct {
		what string
		err  error
	}
	results := make(chan result)
	submit := func(what string, r idempotency.Reservation, e idempotency.Ending) {
		t.Helper()
		s.w.mu.Lock()
		n := len(s.w.queue)
		s.w.mu.Unlock()
		go func() { results <- result{what, s.End(ctx, r, e)} }()
		waitQueued(t, s, n+1)
	}
	for _, r := range good[:10] {
		submit("good", r, done("small"))
	}
	submit("bad", bad, done(strings.Repeat("x", 1<<20)))
	submit("fenced", fenced, done("small"))
	for _, r := range good[10:] {
		submit("good", r, done("small"))
	}
	unlock()
	for range len(good) + 2 {
		r := <-results
		want := map[string]error{"bad": idempotency.ErrFull, "fenced": idempotency.ErrFenced}[r.what]
		if !errors.Is(r.err, want) {
			t.Errorf("the %s operation: %v: want %v", r.what, r.err, want)
		}
	}
	for _, r := range good {
		if rec, err := s.Lookup(ctx, r.Key); err != nil || rec.State != idempotency.Ended {
			t.Errorf("a good operation left %v, %v", rec.State, err)
		}
	}
	if rec, err := s.Lookup(ctx, bad.Key); err != nil || rec.State != idempotency.Held {
		t.Errorf("the bad operation left %v, %v", rec.State, err)
	}
}

// Operations that leave while the file is locked do not pile up.
func TestQueueForgets(t *testing.T) {
	path := newFile(t)
	s := open(t, path, Options{BusyTimeout: time.Hour})
	unlock := lock(t, path)
	for range 1000 {
		ctx, cancel := context.WithCancel(context.Background())
		failed := make(chan error)
		go func() { failed <- s.Void(ctx, newKey(), idempotency.NewOwner()) }()
		waitWaiting(t, s)
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	s.w.mu.Lock()
	n := len(s.w.queue)
	s.w.mu.Unlock()
	if n > 100 {
		t.Errorf("%d operations are kept of 1000 that left", n)
	}
	unlock()
	start(t, s, newClaim(newKey()))
}

// waitWaiting waits until an operation waits that has not left.
func waitWaiting(t testing.TB, s *Store) {
	t.Helper()
	eventually(t, func() bool {
		s.w.mu.Lock()
		defer s.w.mu.Unlock()
		for _, o := range s.w.queue {
			if o.state.Load() == waiting {
				return true
			}
		}
		return false
	})
}

// The writer makes way for others only where there are others.
func TestWatchesRivals(t *testing.T) {
	path := newFile(t)
	s := open(t, path, Options{})
	rival := func() (at time.Time) {
		err := s.write(context.Background(), false, func(session, time.Time) error {
			at = s.w.rival
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	start(t, s, newClaim(newKey()))
	start(t, s, newClaim(newKey()))
	if at := rival(); !at.IsZero() {
		t.Errorf("it took its own writes for those of a rival, at %v", at)
	}
	other := open(t, path, Options{})
	start(t, other, newClaim(newKey()))
	if rival().IsZero() {
		t.Error("it did not see the writes of another connection")
	}
}
