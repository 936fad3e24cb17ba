package pgstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/pgserver"
)

// 200 requests at once, and a pool of 4 connections, of which every handler
// needs one. While all handlers run, the store holds none, of its own or of the
// pool; and all requests end, whether they end in the handler's transaction or
// after it.
func TestFault05NoConnectionWhileTheHandlerRuns(t *testing.T) {
	const requests = 200
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server := pgserver.Shared(t)
	schema := migrated(t, server)
	pool := newPool(t, server.URL(), 4)
	table := schema + ".fault05"
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+table+" (n integer)"); err != nil {
		t.Fatal(err)
	}
	s, err := New(ctx, pool, Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	gate, err := escapement.New(escapement.Options{Records: s})
	if err != nil {
		t.Fatal(err)
	}
	arrived, all := make(chan struct{}, requests), make(chan struct{})
	policy := escapement.DefaultPolicy()
	policy.Terms.Lease = time.Hour // no heartbeat is under way when connections are counted

	work := func(ctx context.Context, run *escapement.Run, n int) error {
		arrived <- struct{}{}
		select {
		case <-all:
		case <-ctx.Done():
			return ctx.Err()
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := run.FenceIn(ctx, s.In(tx)); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "INSERT INTO "+table+" VALUES ($1)", n); err != nil {
				return err
			}
			if n%2 == 0 {
				return nil // the Gate records the ending, after the commit
			}
			return run.EndIn(ctx, s.In(tx), done("made").Result)
		})
	}
	results := make(chan error, requests)
	for n := range requests {
		go func() {
			c := newClaim(newKey())
			v, err := gate.Do(ctx, escapement.Request{Key: c.Key, Prints: c.Prints, Policy: policy}, func(ctx context.Context, run *escapement.Run) idempotency.Ending {
				if err := work(ctx, run, n); err != nil {
					t.Errorf("request %d: %v", n, err)
				}
				return done("made")
			})
			if err == nil && (!v.Ran || !v.Recorded || v.Ending.Kind != idempotency.EndedDone) {
				err = fmt.Errorf("request %d is %+v", n, v)
			}
			results <- err
		}()
	}
	for range requests {
		select {
		case <-arrived:
		case <-ctx.Done():
			t.Fatal("not all handlers run at once")
		}
	}
	// The batch that claimed the last of them gives its connection back in this
	// moment.
	for s.pool.Stat().AcquiredConns() > 0 && ctx.Err() == nil {
		<-time.After(time.Millisecond)
	}
	if n, m := s.pool.Stat().AcquiredConns(), pool.Stat().AcquiredConns(); n != 0 || m != 0 {
		t.Errorf("while %d handlers run, %d connections of the store's and %d of the pool's are in use", requests, n, m)
	}
	close(all)
	var errs []error
	for range requests {
		errs = append(errs, <-results)
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	var rows, records int
	if err := pool.QueryRow(ctx, "SELECT (SELECT count(DISTINCT n) FROM "+table+"), (SELECT count(*) FROM "+schema+".escapement_records WHERE state = 2)").Scan(&rows, &records); err != nil {
		t.Fatal(err)
	}
	if rows != requests || records != requests {
		t.Errorf("there are %d rows and %d results, want %d of each", rows, records, requests)
	}
}
