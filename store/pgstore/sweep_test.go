package pgstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/pgserver"
	"github.com/escapement-dev/escapement/store/storetest"
)

// A sweep passes over what others have locked, removes or shrinks the rest in
// several transactions, and several sweeps share the work.
func TestSweepPassesOverLockedRecords(t *testing.T) {
	ctx := context.Background()
	server := pgserver.Shared(t)
	clock := storetest.NewClock()
	a := openStore(t, server.URL(), Options{Schema: migrated(t, server), Now: clock.Now})
	b := openStore(t, server.URL(), a.o)
	const n, remembered = 700, 5
	keys := make([]idempotency.Key, n)
	for i := range keys {
		c := newClaim(newKey())
		keys[i] = c.Key
		if i < remembered {
			c.Terms.Remember = 24 * time.Hour
		}
		if err := a.End(ctx, start(t, a, c), done("body")); err != nil {
			t.Fatal(err)
		}
	}
	clock.Advance(2 * time.Hour)
	tx, err := newPool(t, server.URL(), 1).Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	locked := keys[n-1]
	if _, err := tx.Exec(ctx, a.q.lock, [][]byte{locked.ID[:]}); err != nil {
		t.Fatal(err)
	}
	type swept struct {
		n   int
		err error
	}
	results := make(chan swept, 2)
	for _, s := range []*Store{a, b} {
		go func() {
			n, err := s.Sweep(ctx, n)
			results <- swept{n, err}
		}()
	}
	sum := 0
	for range 2 {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		sum += r.n
	}
	// Each may have stopped where the other held the last of what was due.
	for _, s := range []*Store{a, b} {
		more, err := s.Sweep(ctx, n)
		if err != nil {
			t.Fatal(err)
		}
		sum += more
	}
	if sum != n-1 {
		t.Errorf("the sweeps removed or shrank %d records, want %d: all but the locked one", sum, n-1)
	}
	var rows, bodies int
	if err := a.pool.QueryRow(ctx, "SELECT count(*), count(payload) FROM "+a.o.Schema+".escapement_records").Scan(&rows, &bodies); err != nil {
		t.Fatal(err)
	}
	if rows != remembered+1 || bodies != 1 {
		t.Errorf("there are %d rows, %d with payloads; want %d, 1: what is remembered, and the locked one", rows, bodies, remembered+1)
	}
	if ans, err := b.Reserve(ctx, newClaim(keys[0])); err != nil || ans.Outcome != idempotency.Archived {
		t.Errorf("a repeat of a remembered operation is %v, %v", ans.Outcome, err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Sweep(ctx, n); err != nil || got != 1 {
		t.Errorf("after the lock is gone a sweep removes %d, %v; want 1", got, err)
	}
}

// Two nodes sweep while keys that have expired are used again, and others are
// alive. Each record is removed once, or used again; and nothing that is alive is
// lost.
func TestSweepersMeetClaims(t *testing.T) {
	ctx := context.Background()
	server := pgserver.Shared(t)
	clock := storetest.NewClock()
	a := openStore(t, server.URL(), Options{Schema: migrated(t, server), Now: clock.Now})
	b := openStore(t, server.URL(), a.o)
	stores := []*Store{a, b}
	const expired, again, alive, workers = 600, 200, 50, 4
	var keys []idempotency.Key
	var wait sync.WaitGroup
	for range expired {
		c := newClaim(newKey())
		keys = append(keys, c.Key)
		wait.Go(func() {
			r, err := a.Reserve(ctx, c)
			if err == nil {
				err = a.End(ctx, r.Reservation, done("first"))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	clock.Advance(2 * time.Hour)
	for range alive {
		start(t, a, newClaim(newKey()))
	}

	var removed atomic.Int64
	for i, s := range stores {
		wait.Go(func() {
			for range expired / 5 { // the last find nothing
				n, err := s.Sweep(ctx, 3)
				if err != nil {
					t.Error(err)
					return
				}
				removed.Add(int64(n))
			}
		})
		for w := range workers {
			wait.Go(func() {
				for at := workers*i + w; at < again; at += workers * len(stores) {
					ans, err := s.Reserve(ctx, newClaim(keys[at]))
					for err == nil && ans.Outcome == idempotency.InProgress { // it is being swept
						ans, err = s.Reserve(ctx, newClaim(keys[at]))
					}
					if err == nil && ans.Outcome != idempotency.Started {
						err = fmt.Errorf("an expired key is %v", ans.Outcome)
					}
					if err == nil {
						err = s.End(ctx, ans.Reservation, done("second"))
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wait.Wait()
	for _, s := range stores {
		n, err := s.Sweep(ctx, expired)
		if err != nil {
			t.Fatal(err)
		}
		removed.Add(int64(n))
	}
	for _, k := range keys[:again] {
		if rec, err := b.Lookup(ctx, k); err != nil || string(rec.Result.Payload) != "second" {
			t.Errorf("a key that was used again has %q, %v", rec.Result.Payload, err)
		}
	}
	if n := int(removed.Load()); n > expired || n < expired-again {
		t.Errorf("%d records were removed; %d had expired, of which %d were used again", n, expired, again)
	}
	var rows int
	if err := a.pool.QueryRow(ctx, "SELECT count(*) FROM "+a.o.Schema+".escapement_records").Scan(&rows); err != nil || rows != again+alive {
		t.Errorf("there are %d rows, %v; want %d", rows, err, again+alive)
	}
	t.Logf("%d removed", removed.Load())
}
