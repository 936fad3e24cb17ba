package bench

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/sqlitestore"
)

var terms = idempotency.Terms{Lease: 15 * time.Second, Retention: 24 * time.Hour, OnUnknown: idempotency.Retry}

var result = idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: make([]byte, 512)}

// pairs runs b.N pairs from n callers at once and reports the rate.
func pairs(b *testing.B, n int, pair func(i int64) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	b.ResetTimer()
	for range n {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				if err := pair(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "pairs/s")
}

// BenchmarkDurablePairs reserves a new key and ends it with 512 bytes, on disk:
// our group commit, and the plain form that commits each statement by itself.
// The third is the disk's own limit: two fdatasyncs of 4 KiB, one after the
// other.
func BenchmarkDurablePairs(b *testing.B) {
	for _, n := range []int{1, 32, 256} {
		b.Run(fmt.Sprintf("callers=%d/impl=escapement", n), func(b *testing.B) {
			ctx := context.Background()
			s, err := sqlitestore.Open(ctx, filepath.Join(b.TempDir(), "keys.db"), sqlitestore.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			pairs(b, n, func(i int64) error {
				k := idempotency.Key{Tenant: "bench"}
				o := idempotency.NewOwner()
				copy(k.ID[:], o[:])
				a, err := s.Reserve(ctx, idempotency.Claim{Key: k, Owner: o, Terms: terms})
				if err != nil {
					return err
				}
				if a.Outcome != idempotency.Started {
					return fmt.Errorf("outcome %v", a.Outcome)
				}
				return s.End(ctx, a.Reservation, idempotency.Done(result))
			})
		})
		b.Run(fmt.Sprintf("callers=%d/impl=plain", n), func(b *testing.B) {
			db, err := sql.Open("sqlite", "file:"+filepath.Join(b.TempDir(), "plain.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(60000)&_txlock=immediate")
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			db.SetMaxOpenConns(1) // one writer at a time, without busy loops
			if _, err := db.Exec(`CREATE TABLE keys (id BLOB PRIMARY KEY, owner BLOB, state INT, lease INT, status INT, payload BLOB) WITHOUT ROWID`); err != nil {
				b.Fatal(err)
			}
			ins, err := db.Prepare(`INSERT INTO keys (id, owner, state, lease) VALUES (?, ?, 1, ?) ON CONFLICT DO NOTHING`)
			if err != nil {
				b.Fatal(err)
			}
			upd, err := db.Prepare(`UPDATE keys SET state = 2, status = ?, payload = ? WHERE id = ? AND owner = ?`)
			if err != nil {
				b.Fatal(err)
			}
			pairs(b, n, func(i int64) error {
				id, owner := idempotency.NewOwner(), idempotency.NewOwner()
				if _, err := ins.Exec(id[:], owner[:], time.Now().UnixMicro()); err != nil {
					return err
				}
				_, err := upd.Exec(result.Status, result.Payload, id[:], owner[:])
				return err
			})
		})
	}
	b.Run("callers=1/impl=fdatasync", func(b *testing.B) {
		f, err := os.Create(filepath.Join(b.TempDir(), "raw"))
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		page := make([]byte, 4096)
		pairs(b, 1, func(int64) error {
			for range 2 {
				if _, err := f.Write(page); err != nil {
					return err
				}
				if err := datasync(f); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
