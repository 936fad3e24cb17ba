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

// BenchmarkSweep measures reservations, and pairs of them and their ends, of 16
// callers, while a Gate of another node sweeps 500,000 expired records (or
// EXPIRED): by turns it sweeps for a second, and rests for one, so that both are
// measured under the same load of the machine.
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
	sweeper := openStore(b, server.URL(), s.o)
	fill(b, s, expired)
	ctx := context.Background()

	// turn counts seconds: in odd ones it sweeps.
	var turn, sum atomic.Int64
	var took [2]struct{ reserves, pairs []time.Duration }
	var mu sync.Mutex
	var wait sync.WaitGroup
	over := func() bool { return b.Failed() || sum.Load() >= int64(expired) }
	b.ResetTimer()
	for range callers {
		wait.Go(func() {
			for !over() {
				n := turn.Load()
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
				if turn.Load() == n {
					mu.Lock()
					t := &took[n%2]
					t.reserves, t.pairs = append(t.reserves, t1.Sub(t0)), append(t.pairs, time.Since(t0))
					mu.Unlock()
				}
			}
		})
	}
	seconds := 0
	for !over() {
		<-time.After(time.Second)
		turn.Add(1)
		c, stop := context.WithTimeout(ctx, time.Second)
		gate, err := escapement.New(escapement.Options{Records: sweeper, SweepEvery: time.Millisecond, Observer: sweeps(func(n int, err error) {
			if err != nil && c.Err() == nil {
				b.Error(err)
			}
			sum.Add(int64(n))
		})})
		if err != nil {
			b.Fatal(err)
		}
		if err := gate.Run(c); err != nil {
			b.Error(err)
		}
		stop()
		turn.Add(1)
		seconds++
	}
	wait.Wait()
	b.StopTimer()
	micros := func(all []time.Duration, part int) float64 {
		slices.Sort(all)
		return float64(all[len(all)*part/100].Microseconds())
	}
	for i, name := range []string{"alone", "sweeping"} {
		b.ReportMetric(micros(took[i].reserves, 50), name+"-reserve-p50-µs")
		b.ReportMetric(micros(took[i].reserves, 99), name+"-reserve-p99-µs")
		b.ReportMetric(micros(took[i].pairs, 50), name+"-pair-p50-µs")
		b.ReportMetric(float64(len(took[i].pairs))/float64(seconds), name+"-pairs/s")
	}
	b.ReportMetric(float64(sum.Load())/float64(seconds), "swept/s")
	b.ReportMetric(0, "ns/op")
}
