package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/pgserver"
)

// BenchmarkPairs compares a reservation and its end, with a payload of 200
// bytes, on a server that flushes to the disk:
//
//   - ours;
//   - plain: one INSERT … ON CONFLICT DO NOTHING and one UPDATE, each a
//     transaction of its own, without any of what the contract asks for;
//   - three: the form that articles show: BEGIN, INSERT … ON CONFLICT DO
//     NOTHING, COMMIT, then the UPDATE, with the answer as jsonb.
//
// The other forms have as many connections as callers, but at most 64.
//
// One operation is a round, in which each form has its turn; so what else runs
// on the machine meets all alike. Reported are medians over the rounds: of the
// time of one pair (µs by the clock; times the number of callers it is what a
// caller waits), of the processor time of one pair (client and server
// together), and of the ratios of the others to ours within a round, which is
// how many times faster ours is. Run it with -benchtime 15x.
func BenchmarkPairs(b *testing.B) {
	server := durable(b)
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			forms := []*form{
				{name: "ours", pair: ourPairs(b, server)},
				{name: "plain", pair: plainPairs(b, server, callers)},
				{name: "three", pair: threePairs(b, server, callers)},
			}
			const warm, pairs = 50, 4000
			for _, f := range forms {
				repeat(b, callers, warm+callers, f.pair)
			}
			b.ResetTimer()
			for range b.N {
				for i := range forms {
					forms[i].measure(b, server, callers, max(pairs*callers/(callers+15), 250))
				}
			}
			for i, f := range forms {
				b.ReportMetric(median(f.clock), f.name+"-µs")
				b.ReportMetric(median(f.processor), f.name+"-cpu-µs")
				if i > 0 {
					b.ReportMetric(median(ratios(f.clock, forms[0].clock)), f.name+"/ours")
					b.ReportMetric(median(ratios(f.processor, forms[0].processor)), f.name+"/ours-cpu")
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// durable starts a server that flushes to the disk.
func durable(b *testing.B) *pgserver.Server {
	b.Helper()
	server, err := pgserver.Start(true)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Stop(); err != nil {
			b.Error(err)
		}
	})
	return server
}

// form is one way to do a pair, and what each round of it took, in µs per pair.
type form struct {
	name             string
	pair             func() error
	clock, processor []float64
}

// measure lets callers do n pairs together.
func (f *form) measure(b *testing.B, server *pgserver.Server, callers, n int) {
	b.Helper()
	used, start := processorTime(b, server), time.Now()
	repeat(b, callers, n, f.pair)
	took := time.Since(start)
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(n) }
	f.clock = append(f.clock, each(took))
	f.processor = append(f.processor, each(processorTime(b, server)-used))
}

// processorTime is what this process and the server have used; 0 where that is
// not known.
func processorTime(b *testing.B, server *pgserver.Server) time.Duration {
	b.Helper()
	used, err := server.ProcessorTime()
	if errors.Is(err, errors.ErrUnsupported) {
		return 0
	}
	var u syscall.Rusage
	if err := errors.Join(err, syscall.Getrusage(syscall.RUSAGE_SELF, &u)); err != nil {
		b.Fatal(err)
	}
	return used + time.Duration(u.Utime.Nano()+u.Stime.Nano())
}

func ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}

// repeat lets callers do n operations together.
func repeat(b *testing.B, callers, n int, do func() error) {
	b.Helper()
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wait sync.WaitGroup
	for range callers {
		wait.Go(func() {
			for failed.Load() == nil && next.Add(1) <= int64(n) {
				if err := do(); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wait.Wait()
	if err := failed.Load(); err != nil {
		b.Fatal(*err)
	}
}

func ourPairs(b *testing.B, server *pgserver.Server) func() error {
	ctx := context.Background()
	s := openStore(b, server.URL(), Options{Schema: migrated(b, server)})
	payload := make([]byte, 200)
	return func() error {
		a, err := s.Reserve(ctx, newClaim(newKey()))
		if err != nil {
			return err
		}
		if a.Outcome != idempotency.Started {
			return fmt.Errorf("a new key is %v", a.Outcome)
		}
		return s.End(ctx, a.Reservation, idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: payload}))
	}
}

const plainTable = `DROP TABLE IF EXISTS plain; CREATE TABLE plain (
  key bytea PRIMARY KEY, tenant text NOT NULL, method text NOT NULL, path text NOT NULL, body_hash bytea NOT NULL,
  status text NOT NULL, owner bytea NOT NULL, locked_until timestamptz NOT NULL,
  response_code integer, response_body bytea, created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now())`

const (
	plainClaim = `INSERT INTO plain (key, tenant, method, path, body_hash, status, owner, locked_until)
VALUES ($1,'acme','POST','/v1/orders',$2,'in_progress',$3,now()+interval '1 minute') ON CONFLICT (key) DO NOTHING RETURNING key`
	plainEnd = `UPDATE plain SET status='succeeded', response_code=201, response_body=$3, updated_at=now() WHERE key=$1 AND owner=$2 AND status='in_progress'`
)

func plainPairs(b *testing.B, server *pgserver.Server, callers int) func() error {
	ctx := context.Background()
	pool := tables(b, server, callers, plainTable)
	payload := make([]byte, 200)
	return func() error {
		key, owner, hash := newKey(), idempotency.NewOwner(), make([]byte, 32)
		rand.Read(hash)
		var got []byte
		if err := pool.QueryRow(ctx, plainClaim, key.ID[:], hash, owner[:]).Scan(&got); err != nil {
			return err
		}
		return one(pool.Exec(ctx, plainEnd, key.ID[:], owner[:], payload))
	}
}

const threeTable = `DROP TABLE IF EXISTS three; CREATE TABLE three (
  key text PRIMARY KEY, tenant_id text NOT NULL, method text NOT NULL, path text NOT NULL, body_sha256 bytea NOT NULL,
  status text NOT NULL CHECK (status IN ('in_progress','succeeded','failed_final')), response_code int, response_body jsonb,
  created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now(), worker_token uuid, locked_until timestamptz);
CREATE INDEX ON three (tenant_id, created_at)`

const (
	threeClaim = `INSERT INTO three (key, tenant_id, method, path, body_sha256, status, worker_token, locked_until)
VALUES ($1,$2,$3,$4,$5,'in_progress',$6,$7) ON CONFLICT (key) DO NOTHING RETURNING key`
	threeEnd = `UPDATE three SET status='succeeded', response_code=$2, response_body=$3, updated_at=now() WHERE key=$1`
)

func threePairs(b *testing.B, server *pgserver.Server, callers int) func() error {
	ctx := context.Background()
	pool := tables(b, server, callers, threeTable)
	payload := []byte(`{"order_id":"` + strings.Repeat("7", 184) + `"}`)
	return func() error {
		key, owner, hash := rand.Text(), [16]byte(idempotency.NewOwner()), make([]byte, 32)
		rand.Read(hash)
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			return one(tx.Exec(ctx, threeClaim, key, "acme", "POST", "/v1/orders", hash, owner, time.Now().Add(time.Minute)))
		})
		if err != nil {
			return err
		}
		return one(pool.Exec(ctx, threeEnd, key, 201, payload))
	}
}

// tables runs text, and returns a pool for callers.
func tables(b *testing.B, server *pgserver.Server, callers int, text string) *pgxpool.Pool {
	b.Helper()
	pool := newPool(b, server.URL(), int32(min(callers, 64)))
	if _, err := pool.Exec(context.Background(), text, pgx.QueryExecModeSimpleProtocol); err != nil {
		b.Fatal(err)
	}
	return pool
}

// one is err, or that not one row was written.
func one(tag pgconn.CommandTag, err error) error {
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("%d rows were written", tag.RowsAffected())
	}
	return err
}

// BenchmarkReplays measures a replayed key: alone, and while 64 callers write
// 10,000 pairs of others. Reported are the median and the 99th of a hundred.
// (What b.N asks for beyond the 10,000 is read alone, and not counted.)
func BenchmarkReplays(b *testing.B) {
	server := durable(b)
	for _, writes := range []int64{0, 10000} {
		b.Run(fmt.Sprintf("writes=%d", writes), func(b *testing.B) {
			ctx := context.Background()
			s := openStore(b, server.URL(), Options{Schema: migrated(b, server)})
			c := newClaim(newKey())
			if err := s.End(ctx, start(b, s, c), done("body")); err != nil {
				b.Fatal(err)
			}
			others := ourPairs(b, server)
			var left atomic.Int64
			left.Store(writes)
			var wait sync.WaitGroup
			var failed atomic.Pointer[error]
			for range 64 {
				wait.Go(func() {
					for left.Add(-1) >= 0 {
						if err := others(); err != nil {
							failed.CompareAndSwap(nil, &err)
							return
						}
					}
				})
			}
			var took []float64
			b.ResetTimer()
			for range b.N {
				c.Owner = idempotency.NewOwner()
				begin := time.Now()
				a, err := s.Reserve(ctx, c)
				if err != nil || a.Outcome != idempotency.Replayed {
					b.Fatalf("a done key is %v, %v", a.Outcome, err)
				}
				if writes == 0 || left.Load() > 0 {
					took = append(took, float64(time.Since(begin).Nanoseconds())/1e3)
				}
			}
			b.StopTimer()
			wait.Wait()
			if err := failed.Load(); err != nil {
				b.Fatal(*err)
			}
			slices.Sort(took)
			b.ReportMetric(took[len(took)/2], "p50-µs")
			b.ReportMetric(took[len(took)*99/100], "p99-µs")
			b.ReportMetric(0, "ns/op")
		})
	}
}

var testTerms = idempotency.Terms{Lease: time.Minute, Retention: time.Hour, Quiet: time.Second}

func newKey() idempotency.Key {
	k := idempotency.Key{Tenant: "acme"}
	rand.Read(k.ID[:])
	return k
}

func newClaim(k idempotency.Key) idempotency.Claim {
	return idempotency.Claim{
		Key: k, Owner: idempotency.NewOwner(), Terms: testTerms,
		Prints: []idempotency.Fingerprint{{Tag: "json-1", Sum: [32]byte{1, 2, 3}}},
		Origin: idempotency.Origin{Method: "POST", Route: "POST /v1/orders", Trace: "4bf92f3577b34da6a3ce929d0e0e4736"},
	}
}

func start(t testing.TB, s idempotency.Store, c idempotency.Claim) idempotency.Reservation {
	t.Helper()
	a, err := s.Reserve(context.Background(), c)
	if err != nil || a.Outcome != idempotency.Started {
		t.Fatalf("Reserve: %v, %v: want started", a.Outcome, err)
	}
	return a.Reservation
}

func done(payload string) idempotency.Ending {
	return idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: []byte(payload)})
}
