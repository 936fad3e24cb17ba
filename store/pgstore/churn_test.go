package pgstore

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/pgserver"
)

// Records come, end, expire and are swept, over and over. The table stays below
// twice the size that its live rows have needed: the space of what is gone is
// used again. ESCAPEMENT_CHURN is for how long, such as 5m; in soak it is an
// hour. In runs of seconds, where the table has some dozens of pages, it stays
// below three times that.
//
// A record lives for a sixth of the time, and the server vacuums by itself ten
// times as often, at most once per second; with the server's default, once a
// minute, the run of an hour is like one. In the shortest runs that is not often
// enough, so the test vacuums too.
func TestChurnUsesSpaceAgain(t *testing.T) {
	duration := 3 * time.Second
	if os.Getenv("ESCAPEMENT_SOAK") == "1" {
		duration = time.Hour
	}
	if v := os.Getenv("ESCAPEMENT_CHURN"); v != "" {
		var err error
		if duration, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	const callers = 8
	retention := duration / 6
	pause := retention / 10
	ctx := context.Background()
	server, err := pgserver.Start(false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
	conn, err := pgx.Connect(ctx, server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	exec := func(format string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(ctx, fmt.Sprintf(format, args...)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := Migrate(ctx, conn, ""); err != nil {
		t.Fatal(err)
	}
	exec("ALTER SYSTEM SET autovacuum_naptime = %d", max(1, int(pause.Seconds())))
	exec("SELECT pg_reload_conf()")

	s := openStore(t, server.URL(), Options{})
	gate, err := escapement.New(escapement.Options{Records: s, SweepEvery: max(pause/10, 10*time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var work sync.WaitGroup
	work.Go(func() {
		if err := gate.Run(running); err != nil {
			t.Error(err)
		}
	})
	var pairs atomic.Int64
	payload := make([]byte, 500)
	for range callers {
		work.Go(func() {
			for running.Err() == nil {
				c := newClaim(newKey())
				c.Terms.Retention = retention
				a, err := s.Reserve(ctx, c)
				if err == nil {
					err = s.End(ctx, a.Reservation, idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: payload}))
				}
				if err != nil {
					t.Error(err)
					return
				}
				pairs.Add(1)
			}
		})
	}

	// What is there at the end has lived for no longer than its retention, a
	// sweep and a vacuum; so it is measured from the second half on.
	limit := 2.0
	if duration < time.Minute {
		limit = 3
	}
	worst, live, measured := 0.0, 0, 0
	var most int64 // that the live rows have needed
	tick := time.NewTicker(pause)
	defer tick.Stop()
	begin := time.Now()
	for time.Since(begin) < duration {
		<-tick.C
		if pause < time.Second {
			exec("VACUUM escapement_records")
		}
		// A copy has the size that the live rows need.
		exec("DROP TABLE IF EXISTS compact; CREATE TABLE compact (LIKE escapement_records INCLUDING ALL); INSERT INTO compact SELECT * FROM escapement_records")
		var size, need, indexes, needed int64
		if err := conn.QueryRow(ctx, "SELECT pg_table_size('escapement_records'), pg_table_size('compact'), pg_indexes_size('escapement_records'), "+
			"pg_indexes_size('compact'), (SELECT count(*) FROM compact)").Scan(&size, &need, &indexes, &needed, &live); err != nil {
			t.Fatal(err)
		}
		most = max(most, need)
		if time.Since(begin) < duration/2 {
			continue
		}
		ratio := float64(size) / float64(most)
		worst = max(worst, ratio)
		measured++
		t.Logf("after %v: %d pairs, %d live rows; the table has %.2f times the size that they have needed (now %d KiB), its indexes %.2f times",
			time.Since(begin).Round(time.Millisecond), pairs.Load(), live, ratio, need>>10, float64(indexes)/float64(needed))
	}
	stop()
	work.Wait()
	if worst >= limit {
		t.Errorf("the table has had %.2f times the size that its live rows need", worst)
	}
	if int64(live) > pairs.Load()/2 || measured == 0 {
		t.Errorf("of %d records %d are alive: too few have gone, or nothing was measured", pairs.Load(), live)
	}
}
