package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/pgserver"
	"github.com/escapement-dev/escapement/store/storetest"
)

// userTx is a user's transaction, of either kind.
type userTx struct {
	store            idempotency.Store
	exec             func(ctx context.Context, text string, args ...any) error
	commit, rollback func(context.Context) error
}

// beginners begin a user's transaction, by pgx and by database/sql.
var beginners = map[string]func(ctx context.Context, s *Store, p *pgxpool.Pool, level string) (*userTx, error){
	"pgx": func(ctx context.Context, s *Store, p *pgxpool.Pool, level string) (*userTx, error) {
		tx, err := p.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(level)})
		if err != nil {
			return nil, err
		}
		return &userTx{s.In(tx), func(ctx context.Context, text string, args ...any) error {
			_, err := tx.Exec(ctx, text, args...)
			return err
		}, tx.Commit, tx.Rollback}, nil
	},
	"database/sql": func(ctx context.Context, s *Store, p *pgxpool.Pool, level string) (*userTx, error) {
		db := stdlib.OpenDBFromPool(p)
		levels := map[string]sql.IsolationLevel{
			"read committed": sql.LevelReadCommitted, "repeatable read": sql.LevelRepeatableRead, "serializable": sql.LevelSerializable,
		}
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: levels[level]})
		if err != nil {
			return nil, errors.Join(err, db.Close())
		}
		end := func(f func() error) func(context.Context) error {
			return func(context.Context) error { return errors.Join(f(), db.Close()) }
		}
		return &userTx{s.InSQL(tx), func(ctx context.Context, text string, args ...any) error {
			_, err := tx.ExecContext(ctx, text, args...)
			return err
		}, end(tx.Commit), end(tx.Rollback)}, nil
	},
}

var levels = []string{"read committed", "repeatable read", "serializable"}

// eachTx runs a test with both kinds of transactions, at every level.
func eachTx(t *testing.T, test func(t *testing.T, s *Store, begin func(t *testing.T) *userTx, orders func() int)) {
	for kind, begin := range beginners {
		for _, level := range levels {
			t.Run(kind+"/"+level, func(t *testing.T) {
				ctx := context.Background()
				server := pgserver.Shared(t)
				schema := migrated(t, server)
				pool := newPool(t, server.URL(), 4)
				s, err := New(ctx, pool, Options{Schema: schema})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { s.Close() })
				table := schema + ".orders"
				if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+table+" (id bigint GENERATED ALWAYS AS IDENTITY, what text)"); err != nil {
					t.Fatal(err)
				}
				test(t, s, func(t *testing.T) *userTx {
					t.Helper()
					tx, err := begin(ctx, s, pool, level)
					if err != nil {
						t.Fatal(err)
					}
					exec := tx.exec
					tx.exec = func(ctx context.Context, _ string, args ...any) error {
						return exec(ctx, "INSERT INTO "+table+" (what) VALUES ($1)", args...)
					}
					return tx
				}, func() (n int) {
					if err := pool.QueryRow(ctx, "SELECT count(*) FROM "+table).Scan(&n); err != nil {
						t.Fatal(err)
					}
					return n
				})
			})
		}
	}
}

// fence, write, end: what a handler does before it commits or not.
func handle(t *testing.T, tx *userTx, r idempotency.Reservation) {
	t.Helper()
	ctx := context.Background()
	if _, err := tx.store.Extend(ctx, r, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := tx.exec(ctx, "", "book"); err != nil {
		t.Fatal(err)
	}
	if err := tx.store.End(ctx, r, done("made")); err != nil {
		t.Fatal(err)
	}
}

func TestCommitKeepsBothAndRollbackNeither(t *testing.T) {
	eachTx(t, func(t *testing.T, s *Store, begin func(*testing.T) *userTx, orders func() int) {
		ctx := context.Background()
		c := newClaim(newKey())
		r := start(t, s, c)
		tx := begin(t)
		handle(t, tx, r)
		if err := tx.rollback(ctx); err != nil {
			t.Fatal(err)
		}
		if rec, err := s.Lookup(ctx, c.Key); err != nil || rec.State != idempotency.Held || orders() != 0 {
			t.Fatalf("after a rollback the record is %v, %v, and there are %d orders", rec.State, err, orders())
		}
		if err := s.End(ctx, r, idempotency.NotRun()); err != nil {
			t.Fatal(err)
		}
		r = start(t, s, newClaim(c.Key))
		// A heartbeat comes before the fence, and none between it and the end
		// has an effect.
		if _, err := s.Extend(ctx, r, 2*time.Minute); err != nil {
			t.Fatal(err)
		}
		tx = begin(t)
		handle(t, tx, r)
		if end, err := s.Extend(ctx, r, time.Hour); err != nil || time.Until(end) > 3*time.Minute {
			t.Fatalf("a heartbeat while the transaction is open: %v, %v: want the lease as it was", end, err)
		}
		if err := tx.commit(ctx); err != nil {
			t.Fatal(err)
		}
		a, err := s.Reserve(ctx, newClaim(c.Key))
		if err != nil || a.Outcome != idempotency.Replayed || string(a.Record.Result.Payload) != "made" || orders() != 1 {
			t.Fatalf("after the commit a repeat is %v, %v, %q, and there are %d orders", a.Outcome, err, a.Record.Result.Payload, orders())
		}
		if err := s.End(ctx, r, done("made")); err != nil {
			t.Fatalf("the same End after the commit: %v", err)
		}
	})
}

// An attempt that was taken over from finds it out by the fence, before it has
// written anything.
func TestFenceFindsTakeover(t *testing.T) {
	eachTx(t, func(t *testing.T, s *Store, begin func(*testing.T) *userTx, orders func() int) {
		ctx := context.Background()
		c := newClaim(newKey())
		c.Terms.OnUnknown, c.Terms.Quiet = idempotency.Retry, 0
		r := start(t, s, c)
		if err := s.End(ctx, r, idempotency.UnknownEnding()); err != nil {
			t.Fatal(err)
		}
		second := c
		second.Owner = idempotency.NewOwner()
		if next := start(t, s, second); !next.Takeover {
			t.Fatal("the second attempt is no takeover")
		}
		tx := begin(t)
		if _, err := tx.store.Extend(ctx, r, time.Minute); !errors.Is(err, idempotency.ErrFenced) {
			t.Errorf("the fence of the first attempt says %v", err)
		}
		if err := tx.rollback(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

// waitingForLocks counts the server's sessions that wait for a lock.
func waitingForLocks(t *testing.T, c *pgx.Conn) int {
	t.Helper()
	var n int
	if err := c.QueryRow(context.Background(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// While a business transaction is open, nothing of the store's waits for it.
func TestOpenTransactionBlocksNobody(t *testing.T) {
	eachTx(t, func(t *testing.T, s *Store, begin func(*testing.T) *userTx, _ func() int) {
		ctx := context.Background()
		watch, err := pgx.Connect(ctx, pgserver.Shared(t).URL())
		if err != nil {
			t.Fatal(err)
		}
		defer watch.Close(ctx)
		c := newClaim(newKey())
		r := start(t, s, c)
		other := start(t, s, newClaim(newKey()))
		tx := begin(t)
		handle(t, tx, r)
		// Long enough for each of them to have met the lock many times; a call
		// that waits for it would wait until the transaction ends, so it would
		// never return.
		until := time.Now().Add(500 * time.Millisecond)
		for i := 0; time.Now().Before(until); i++ {
			done1 := make(chan error, 8)
			calls := []func() error{
				func() error {
					a, err := s.Reserve(ctx, newClaim(c.Key))
					if err == nil && a.Outcome != idempotency.InProgress {
						err = fmt.Errorf("a repeat is %v", a.Outcome)
					}
					return err
				},
				func() error { _, err := s.Extend(ctx, r, time.Minute); return err },
				func() error { _, err := s.Extend(ctx, other, time.Minute+time.Duration(i)*time.Second); return err },
				func() error {
					a, err := s.Reserve(ctx, newClaim(newKey()))
					if err != nil {
						return err
					}
					return s.End(ctx, a.Reservation, done("x"))
				},
				func() error { _, err := s.Lookup(ctx, c.Key); return err },
				func() error { _, err := s.Sweep(ctx, 10); return err },
				func() error { _, err := s.List(ctx, idempotency.Filter{}); return err },
			}
			for _, f := range calls {
				go func() { done1 <- f() }()
			}
			for range calls {
				select {
				case err := <-done1:
					if err != nil {
						t.Fatal(err)
					}
				case <-time.After(20 * time.Second):
					t.Fatal("a call waits for a user's transaction")
				}
			}
			if n := waitingForLocks(t, watch); n != 0 {
				t.Fatalf("%d sessions wait for a lock", n)
			}
		}
		// What must write the record says so, and changes nothing.
		if err := s.End(ctx, r, idempotency.NotRun()); !errors.Is(err, ErrLocked) {
			t.Errorf("NotRun while the transaction is open: %v, want ErrLocked", err)
		}
		if err := tx.commit(ctx); err != nil {
			t.Fatal(err)
		}
		if err := s.End(ctx, r, idempotency.NotRun()); !errors.Is(err, idempotency.ErrFenced) {
			t.Errorf("NotRun after the commit: %v, want ErrFenced", err)
		}
	})
}

// A lease that ran out while its owner's transaction is open is not taken over
// before that ends, and the owner's heartbeat is told so; a heartbeat that meets
// somebody who takes over is not.
func TestHeartbeatTellsOwnerFromTaker(t *testing.T) {
	ctx := context.Background()
	server := pgserver.Shared(t)
	clock := storetest.NewClock()
	s := openStore(t, server.URL(), Options{Schema: migrated(t, server), Now: clock.Now, LockWait: 50 * time.Millisecond})
	pool := newPool(t, server.URL(), 2)
	c := newClaim(newKey())
	c.Terms.OnUnknown, c.Terms.Quiet = idempotency.Retry, 0
	r := start(t, s, c)
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.In(tx).Extend(ctx, r, time.Minute); err != nil {
		t.Fatal(err)
	}
	clock.Advance(2 * time.Minute)
	if a, err := s.Reserve(ctx, newClaim(c.Key)); err != nil || a.Outcome != idempotency.InProgress {
		t.Fatalf("a repeat after the lease, while the owner's transaction is open, is %v, %v", a.Outcome, err)
	}
	if end, err := s.Extend(ctx, r, time.Minute); err != nil || !end.Equal(r.LeaseEnd) {
		t.Fatalf("the owner's heartbeat: %v, %v: want the lease as it is stored, %v", end, err, r.LeaseEnd)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}

	taker, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer taker.Rollback(ctx)
	if _, err := taker.Exec(ctx, s.q.lockAway, [][]byte{c.Key.ID[:]}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Extend(ctx, r, time.Minute); !errors.Is(err, ErrLocked) {
		t.Fatalf("a heartbeat that meets a taker: %v, want ErrLocked", err)
	}
}

// A key that somebody else is inserting, in a transaction that stays open, does
// not hold up a batch for longer than lock_timeout, however it was inserted.
func TestForeignInsertDoesNotHoldTheBatch(t *testing.T) {
	ctx := context.Background()
	server := pgserver.Shared(t)
	s := openStore(t, server.URL(), Options{Schema: migrated(t, server)})
	pool := newPool(t, server.URL(), 1)
	k := newKey()
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "INSERT INTO "+s.o.Schema+".escapement_records (id,tenant,created,updated,revision) VALUES ($1,'x',1,1,1)", k.ID[:]); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := s.Reserve(ctx, newClaim(k))
		result <- err
	}()
	select {
	case err := <-result:
		if code(err) != "55P03" {
			t.Fatalf("a claim that meets an insert which stays open: %v, want SQLSTATE 55P03", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("a claim waits for an insert that stays open")
	}
	start(t, s, newClaim(newKey()))
}

// The whole suite, with every operation that belongs there in a transaction of
// the user's, one for each.
func TestSuiteInTransactions(t *testing.T) {
	for _, kind := range []string{"pgx", "database/sql"} {
		t.Run(kind, func(t *testing.T) {
			url := func(t testing.TB) string { return pgserver.Shared(t).URL() }
			h := harness(url)
			inner := h.New
			h.New = func(t testing.TB, clock *storetest.Clock) idempotency.Store {
				return &transacting{Store: inner(t, clock).(*Store), pool: newPool(t, url(t), 16), begin: beginners[kind]}
			}
			reopen, endIn := h.Caps.Reopen, h.Caps.EndInTx
			h.Caps.Reopen = func(t testing.TB, s idempotency.Store, clock *storetest.Clock) idempotency.Store {
				x := s.(*transacting)
				return &transacting{Store: reopen(t, x.Store, clock).(*Store), pool: x.pool, begin: x.begin}
			}
			h.Caps.EndInTx = func(t testing.TB, s idempotency.Store, r idempotency.Reservation, e idempotency.Ending) func(bool) {
				return endIn(t, s.(*transacting).Store, r, e)
			}
			// A restart breaks this test's own pool too.
			h.Faults.Restart = nil
			for _, c := range storetest.Cases(h) {
				if txLess[c.Name] == "" {
					t.Run(c.Name, func(t *testing.T) { c.Run(t, h) })
				}
			}
		})
	}
}

// txLess are the cases that do not hold where every call is a transaction of
// the user's, and why.
var txLess = map[string]string{
	"HistoryHasAnOrder":                 "a claim that meets a locked record is in progress, though the transaction that has locked it may then be rolled back",
	"F7NobodyWaitsForAUsersTransaction": "it is the outer store's Extend that does not wait; a fence does",
}

// transacting runs each operation in a transaction of its own.
type transacting struct {
	*Store
	pool  *pgxpool.Pool
	begin func(ctx context.Context, s *Store, p *pgxpool.Pool, level string) (*userTx, error)
}

func (x *transacting) in(ctx context.Context, f func(idempotency.Store) error) error {
	tx, err := x.begin(ctx, x.Store, x.pool, "read committed")
	if err != nil {
		return err
	}
	if err := f(tx.store); err != nil {
		_ = tx.rollback(context.WithoutCancel(ctx)) // what f returned counts
		return err
	}
	return tx.commit(ctx)
}

func (x *transacting) Reserve(ctx context.Context, c idempotency.Claim) (a idempotency.Answer, err error) {
	err = x.in(ctx, func(s idempotency.Store) (err error) { a, err = s.Reserve(ctx, c); return err })
	return a, err
}

func (x *transacting) Extend(ctx context.Context, r idempotency.Reservation, d time.Duration) (end time.Time, err error) {
	err = x.in(ctx, func(s idempotency.Store) (err error) { end, err = s.Extend(ctx, r, d); return err })
	return end, err
}

func (x *transacting) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	return x.in(ctx, func(s idempotency.Store) error { return s.End(ctx, r, e) })
}

func (x *transacting) Void(ctx context.Context, k idempotency.Key, o idempotency.Owner) error {
	return x.in(ctx, func(s idempotency.Store) error { return s.Void(ctx, k, o) })
}

func (x *transacting) Lookup(ctx context.Context, k idempotency.Key) (rec idempotency.Record, err error) {
	err = x.in(ctx, func(s idempotency.Store) (err error) { rec, err = s.Lookup(ctx, k); return err })
	return rec, err
}

func (x *transacting) SaveStep(ctx context.Context, r idempotency.Reservation, st idempotency.Step) error {
	return x.in(ctx, func(s idempotency.Store) error { return s.(idempotency.StepStore).SaveStep(ctx, r, st) })
}
