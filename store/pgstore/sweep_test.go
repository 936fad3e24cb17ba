package pgstore

import (
	"context"
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
