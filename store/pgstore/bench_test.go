package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
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
//   - three: a transaction of BEGIN, INSERT … ON CONFLICT DO NOTHING, COMMIT,
//     and the UPDATE in another one like it.
//
// The plain forms have as many connections as callers, but at most 64.
func BenchmarkPairs(b *testing.B) {
	server, err := pgserver.Start(true)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Stop(); err != nil {
			b.Error(err)
		}
	})
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("ours/callers=%d", callers), func(b *testing.B) { benchOurs(b, server, callers) })
		b.Run(fmt.Sprintf("plain/callers=%d", callers), func(b *testing.B) { benchPlain(b, server, callers, plainPair) })
		b.Run(fmt.Sprintf("three/callers=%d", callers), func(b *testing.B) { benchPlain(b, server, callers, threePair) })
	}
}

// repeat lets callers do b.N operations together, and reports their rate and
// the median of their times.
func repeat(b *testing.B, callers int, do func() error) {
	b.Helper()
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wait sync.WaitGroup
	b.ResetTimer()
	start := time.Now()
	for range callers {
		wait.Go(func() {
			for failed.Load() == nil && next.Add(1) <= int64(b.N) {
				if err := do(); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wait.Wait()
	b.StopTimer()
	if err := failed.Load(); err != nil {
		b.Fatal(*err)
	}
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "ops/s")
}

func benchOurs(b *testing.B, server *pgserver.Server, callers int) {
	ctx := context.Background()
	s := openStore(b, server.URL(), Options{Schema: migrated(b, server)})
	payload := make([]byte, 200)
	repeat(b, callers, func() error {
		a, err := s.Reserve(ctx, newClaim(newKey()))
		if err != nil {
			return err
		}
		if a.Outcome != idempotency.Started {
			return fmt.Errorf("a new key is %v", a.Outcome)
		}
		return s.End(ctx, a.Reservation, idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: payload}))
	})
}

const plainTable = `CREATE TABLE plain (
  key bytea PRIMARY KEY, tenant text NOT NULL, method text NOT NULL, path text NOT NULL, body_hash bytea NOT NULL,
  status text NOT NULL, owner bytea NOT NULL, locked_until timestamptz NOT NULL,
  response_code integer, response_body bytea, created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now())`

const (
	plainClaim = `INSERT INTO plain (key, tenant, method, path, body_hash, status, owner, locked_until)
VALUES ($1,'acme','POST','/v1/orders',$2,'in_progress',$3,now()+interval '1 minute') ON CONFLICT (key) DO NOTHING RETURNING key`
	plainEnd = `UPDATE plain SET status='succeeded', response_code=201, response_body=$3, updated_at=now() WHERE key=$1 AND owner=$2 AND status='in_progress'`
)

func benchPlain(b *testing.B, server *pgserver.Server, callers int, pair func(ctx context.Context, p *pgxpool.Pool, key, owner, hash, payload []byte) error) {
	ctx := context.Background()
	pool := newPool(b, server.URL(), int32(min(callers, 64)))
	if _, err := pool.Exec(ctx, strings.Replace(plainTable, "CREATE TABLE plain", "DROP TABLE IF EXISTS plain; CREATE TABLE plain", 1), pgx.QueryExecModeSimpleProtocol); err != nil {
		b.Fatal(err)
	}
	payload := make([]byte, 200)
	repeat(b, callers, func() error {
		key := newKey()
		owner := idempotency.NewOwner()
		hash := make([]byte, 32)
		rand.Read(hash)
		return pair(ctx, pool, key.ID[:], owner[:], hash, payload)
	})
}

func plainPair(ctx context.Context, p *pgxpool.Pool, key, owner, hash, payload []byte) error {
	var got []byte
	if err := p.QueryRow(ctx, plainClaim, key, hash, owner).Scan(&got); err != nil {
		return err
	}
	tag, err := p.Exec(ctx, plainEnd, key, owner, payload)
	if err == nil && tag.RowsAffected() != 1 {
		err = errors.New("the key is lost")
	}
	return err
}

func threePair(ctx context.Context, p *pgxpool.Pool, key, owner, hash, payload []byte) error {
	err := pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
		var got []byte
		return tx.QueryRow(ctx, plainClaim, key, hash, owner).Scan(&got)
	})
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, plainEnd, key, owner, payload)
		if err == nil && tag.RowsAffected() != 1 {
			err = errors.New("the key is lost")
		}
		return err
	})
}

// BenchmarkReplays measures a replayed key, alone and while 64 callers write
// others.
func BenchmarkReplays(b *testing.B) {
	server, err := pgserver.Start(true)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Stop(); err != nil {
			b.Error(err)
		}
	})
	for _, writers := range []int{0, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			ctx, cancel := context.WithCancel(context.Background())
			s := openStore(b, server.URL(), Options{Schema: migrated(b, server)})
			c := newClaim(newKey())
			if err := s.End(ctx, start(b, s, c), done("body")); err != nil {
				b.Fatal(err)
			}
			var wait sync.WaitGroup
			for range writers {
				wait.Go(func() {
					for ctx.Err() == nil {
						if a, err := s.Reserve(ctx, newClaim(newKey())); err == nil {
							_ = s.End(ctx, a.Reservation, done("other")) // the context may have ended
						}
					}
				})
			}
			repeat(b, 1, func() error {
				c.Owner = idempotency.NewOwner()
				a, err := s.Reserve(ctx, c)
				if err == nil && a.Outcome != idempotency.Replayed {
					err = fmt.Errorf("a done key is %v", a.Outcome)
				}
				return err
			})
			cancel()
			wait.Wait()
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
