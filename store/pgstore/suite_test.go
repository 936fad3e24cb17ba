package pgstore

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/pgserver"
	"github.com/escapement-dev/escapement/store/pgstore/internal/pgtest"
	"github.com/escapement-dev/escapement/store/storetest"
)

func TestSuite(t *testing.T) {
	storetest.Run(t, harness(func(t testing.TB) string { return pgserver.Shared(t).URL() }))
}

func TestSuiteBehindPgbouncer(t *testing.T) {
	modes := []string{"exec"}
	if os.Getenv("ESCAPEMENT_SOAK") == "1" { // it differs in who describes the statements
		modes = append(modes, "cache_describe")
	}
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			storetest.Run(t, harness(func(t testing.TB) string {
				return pgserver.SharedPooler(t).URL() + " default_query_exec_mode=" + mode
			}))
		})
	}
}

// migrated returns the name of a fresh schema with the tables.
func migrated(t testing.TB, server *pgserver.Server) string {
	t.Helper()
	return pgtest.Schema(t, server, func(ctx context.Context, c *pgx.Conn, schema string) error {
		_, _, err := Migrate(ctx, c, schema)
		return err
	})
}

func openStore(t testing.TB, url string, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newPool(t testing.TB, url string, conns int32) *pgxpool.Pool {
	t.Helper()
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = conns
	p, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func harness(url func(testing.TB) string) storetest.Harness {
	return storetest.Harness{
		New: func(t testing.TB, clock *storetest.Clock) idempotency.Store {
			return openStore(t, url(t), Options{Now: clock.Now, Schema: migrated(t, pgserver.Shared(t))})
		},
		Caps: storetest.Capabilities{
			Steps: true, Keeper: true, Settings: true,
			Reopen: func(t testing.TB, s idempotency.Store, clock *storetest.Clock) idempotency.Store {
				// What is under way is cut off.
				s.(*Store).pool.Reset()
				return openStore(t, url(t), Options{Now: clock.Now, Schema: s.(*Store).o.Schema})
			},
			EndInTx: func(t testing.TB, s idempotency.Store, r idempotency.Reservation, e idempotency.Ending) func(bool) {
				ctx := context.Background()
				pool := newPool(t, url(t), 1)
				tx, err := pool.Begin(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.(*Store).In(tx).End(ctx, r, e); err != nil {
					t.Fatal(err)
				}
				return func(commit bool) {
					end := tx.Rollback
					if commit {
						end = tx.Commit
					}
					if err := end(ctx); err != nil {
						t.Fatal(err)
					}
				}
			},
		},
		Faults: storetest.Faults{
			Restart: func(t testing.TB, _ idempotency.Store) {
				if err := pgserver.Shared(t).Restart(); err != nil {
					t.Fatal(err)
				}
			},
		},
	}
}
