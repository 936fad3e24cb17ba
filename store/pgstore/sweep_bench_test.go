package pgstore

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/internal/pgserver"
)

// fill inserts n records that have expired, as the store itself would have left
// them, and brings the server's statistics up to date.
func fill(t testing.TB, s *Store, n int) {
	t.Helper()
	ctx := context.Background()
	model := newClaim(newKey())
	if err := s.End(ctx, start(t, s, model), done("a payload of some bytes")); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	table := quote(s.o.Schema) + ".escapement_records"
	for _, text := range []string{
		"CREATE TEMPORARY TABLE model AS SELECT * FROM " + table,
		"UPDATE model SET expires = created, keep_until = created",
	} {
		if _, err := conn.Exec(ctx, text); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Exec(ctx, "DO $$ DECLARE r model%ROWTYPE; BEGIN SELECT * INTO r FROM model LIMIT 1; "+
		"FOR n IN 1.."+strconv.Itoa(n)+" LOOP r.id := sha256(n::text::bytea); INSERT INTO "+table+" SELECT r.*; END LOOP; END $$"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "VACUUM ANALYZE "+table); err != nil {
		t.Fatal(err)
	}
}

// sweeps is an observer of sweeps.
type sweeps func(n int, err error)

func (f sweeps) Observe(_ context.Context, e escapement.Event) {
	if e.Kind == escapement.RecordsSwept {
		f(e.Count, e.Err)
	}
}

// BenchmarkSweep measures a reservation, and the pair of it and its end, of 16
// callers: alone, while a Gate of another node sweeps 500,000 expired records (or
// EXPIRED), and alone again.
func BenchmarkSweep(b *testing.B) {
	const callers = 16
	expired := 500_000
	if n, err := strconv.Atoi(os.Getenv("EXPIRED")); err == nil {
		expired = n
	}
	server, err := pgserver.Start(true)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Stop(); err != nil {
			b.Error(err)
		}
	})
	s := openStore(b, server.URL(), Options{Schema: migrated(b, server)})
	sweeper := openStore(b, server.URL(), s.o) // another node's
	ctx := context.Background()
	load := func(b *testing.B, until func() bool) {
		b.Helper()
		var mu sync.Mutex
		var reserves, pairs []time.Duration
		var wait sync.WaitGroup
		begin := time.Now()
		for range callers {
			wait.Go(func() {
				var r, p []time.Duration
				for !until() {
					t0 := time.Now()
					a, err := s.Reserve(ctx, newClaim(newKey()))
					t1 := time.Now()
					if err == nil {
						err = s.End(ctx, a.Reservation, done("a payload of some bytes"))
					}
					if err != nil {
						b.Error(err)
						return
					}
					r, p = append(r, t1.Sub(t0)), append(p, time.Since(t0))
				}
				mu.Lock()
				defer mu.Unlock()
				reserves, pairs = append(reserves, r...), append(pairs, p...)
			})
		}
		wait.Wait()
		slices.Sort(reserves)
		slices.Sort(pairs)
		micros := func(d time.Duration) float64 { return float64(d.Microseconds()) }
		b.ReportMetric(micros(reserves[len(reserves)/2]), "reserve-p50-µs")
		b.ReportMetric(micros(reserves[len(reserves)*99/100]), "reserve-p99-µs")
		b.ReportMetric(micros(pairs[len(pairs)/2]), "pair-p50-µs")
		b.ReportMetric(float64(len(pairs))/time.Since(begin).Seconds(), "pairs/s")
		b.ReportMetric(0, "ns/op")
	}
	const alone = 10 * time.Second
	for _, name := range []string{"before", "sweeping", "after"} {
		b.Run(name, func(b *testing.B) {
			if name != "sweeping" {
				end := time.Now().Add(alone)
				load(b, func() bool { return time.Now().After(end) })
				return
			}
			b.StopTimer()
			fill(b, s, expired)
			b.StartTimer()
			var sum atomic.Int64
			begin := time.Now()
			ctx, stop := context.WithCancel(ctx)
			gate, err := escapement.New(escapement.Options{Records: sweeper, SweepEvery: 10 * time.Millisecond, Observer: sweeps(func(n int, err error) {
				if err != nil && ctx.Err() == nil {
					b.Error(err)
				}
				sum.Add(int64(n))
			})})
			if err != nil {
				b.Fatal(err)
			}
			ran := make(chan error)
			go func() { ran <- gate.Run(ctx) }()
			load(b, func() bool { return b.Failed() || sum.Load() >= int64(expired) })
			b.ReportMetric(float64(expired)/time.Since(begin).Seconds(), "swept/s")
			stop()
			if err := <-ran; err != nil || sum.Load() != int64(expired) {
				b.Errorf("%d records were swept, want %d: %v", sum.Load(), expired, err)
			}
		})
	}
}
