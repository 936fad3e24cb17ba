package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// shop is a caller's database with a table of orders, and a store in it.
func shop(t *testing.T, conns int, o Options) (*sql.DB, *Store) {
	t.Helper()
	db := ownDatabase(t, newFile(t))
	db.SetMaxOpenConns(conns)
	if _, err := db.Exec("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)"); err != nil {
		t.Fatal(err)
	}
	s, err := New(context.Background(), db, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return db, s
}

func begin(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

func order(t *testing.T, tx *sql.Tx) {
	t.Helper()
	if _, err := tx.Exec("INSERT INTO orders (item) VALUES ('tea')"); err != nil {
		t.Fatal(err)
	}
}

func orders(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRow("SELECT count(*) FROM orders").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestInCommit(t *testing.T) {
	ctx := context.Background()
	db, s := shop(t, 2, Options{})
	r := start(t, s, newClaim(newKey()))
	tx := begin(t, db)
	in := s.In(tx)
	if _, err := in.Extend(ctx, r, time.Hour); err != nil {
		t.Fatal(err)
	}
	order(t, tx)
	if err := in.End(ctx, r, done("order 1")); err != nil {
		t.Fatal(err)
	}
	if rec, err := in.Lookup(ctx, r.Key); err != nil || rec.State != idempotency.Ended {
		t.Errorf("inside, before the commit: %v, %v: want done", rec.State, err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if rec, err := s.Lookup(ctx, r.Key); err != nil || string(rec.Result.Payload) != "order 1" || orders(t, db) != 1 {
		t.Errorf("after the commit: %v, %v, %d orders", rec.State, err, orders(t, db))
	}
}

func TestInRollback(t *testing.T) {
	ctx := context.Background()
	db, s := shop(t, 2, Options{})
	r := start(t, s, newClaim(newKey()))
	before, err := s.Lookup(ctx, r.Key)
	if err != nil {
		t.Fatal(err)
	}
	tx := begin(t, db)
	order(t, tx)
	if err := s.In(tx).(idempotency.StepStore).SaveStep(ctx, r, idempotency.Step{Name: "pay"}); err != nil {
		t.Fatal(err)
	}
	if err := s.In(tx).End(ctx, r, done("order 1")); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	after, err := s.Lookup(ctx, r.Key)
	if err != nil || after.State != idempotency.Held || after.Revision != before.Revision || len(after.Steps) != 0 || orders(t, db) != 0 {
		t.Errorf("after the rollback: %+v, %v, %d orders: want it as before", after, err, orders(t, db))
	}
	if err := s.End(ctx, r, idempotency.NotRun()); err != nil {
		t.Error(err)
	}
}

// Who lost the key is told so before any business is done.
func TestInFence(t *testing.T) {
	ctx := context.Background()
	clock := time.Now()
	db, s := shop(t, 2, Options{Now: func() time.Time { return clock }})
	c := newClaim(newKey())
	c.Terms.OnUnknown = idempotency.Retry
	old := start(t, s, c)
	clock = clock.Add(c.Terms.Lease + c.Terms.Quiet)
	c.Owner = idempotency.NewOwner()
	start(t, s, c)
	tx := begin(t, db)
	if _, err := s.In(tx).Extend(ctx, old, time.Hour); !errors.Is(err, idempotency.ErrFenced) {
		t.Errorf("Extend: %v: want ErrFenced", err)
	}
	if err := s.In(tx).End(ctx, old, done("x")); !errors.Is(err, idempotency.ErrFenced) {
		t.Errorf("End: %v: want ErrFenced", err)
	}
}

// While the caller's transaction is open, writes wait for it and reads do not.
func TestInOthersWait(t *testing.T) {
	ctx := context.Background()
	db, s := shop(t, 3, Options{})
	r := start(t, s, newClaim(newKey()))
	tx := begin(t, db)
	if err := s.In(tx).End(ctx, r, done("order 1")); err != nil {
		t.Fatal(err)
	}
	if rec, err := s.Lookup(ctx, r.Key); err != nil || rec.State != idempotency.Held {
		t.Errorf("outside, before the commit: %v, %v: want held", rec.State, err)
	}
	answered := make(chan error)
	go func() {
		a, err := s.Reserve(ctx, newClaim(newKey()))
		if err == nil && a.Outcome != idempotency.Started {
			err = errors.New(a.Outcome.String())
		}
		answered <- err
	}()
	waitQueued(t, s, 1)
	select {
	case err := <-answered:
		t.Errorf("a claim was answered (%v) while the transaction was open", err)
	default:
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// Two connections are enough for a heartbeat to wait for the transaction.
func TestInTwoConnections(t *testing.T) {
	ctx := context.Background()
	db, s := shop(t, 2, Options{})
	r := start(t, s, newClaim(newKey()))
	tx := begin(t, db)
	order(t, tx)
	extended := make(chan error)
	go func() {
		_, err := s.Extend(ctx, r, time.Hour)
		extended <- err
	}()
	waitQueued(t, s, 1)
	if err := s.In(tx).End(ctx, r, done("order 1")); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-extended; !errors.Is(err, idempotency.ErrFenced) {
		t.Errorf("Extend after the end: %v: want ErrFenced", err)
	}
}

// A transaction that is not the store's, or not an immediate one, is told what
// is wrong with it.
func TestInRefuses(t *testing.T) {
	ctx := context.Background()
	db, s := shop(t, 3, Options{})
	r := start(t, s, newClaim(newKey()))
	other := begin(t, ownDatabase(t, newFile(t)))
	wantError(t, "another database", s.In(other).End(ctx, r, done("x")), "no such table", "the store's own database")

	deferred, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer deferred.Rollback()
	if _, err := s.In(deferred).Lookup(ctx, r.Key); err != nil {
		t.Fatal(err)
	}
	start(t, s, newClaim(newKey()))
	wantError(t, "deferred", s.In(deferred).End(ctx, r, done("x")), "deferred", "_txlock=immediate")
}

func TestInValidates(t *testing.T) {
	ctx := context.Background()
	db, s := shop(t, 2, Options{})
	c := newClaim(newKey())
	in := s.In(begin(t, db))
	a, err := in.Reserve(ctx, c)
	if err != nil || a.Outcome != idempotency.Started {
		t.Fatal(a.Outcome, err)
	}
	if err := in.End(ctx, a.Reservation, idempotency.Done(idempotency.Result{})); err == nil {
		t.Error("End took a result without a class")
	}
	if _, err := in.Reserve(ctx, idempotency.Claim{}); err == nil {
		t.Error("Reserve took an empty claim")
	}
	if err := in.(idempotency.StepStore).SaveStep(ctx, a.Reservation, idempotency.Step{}); err == nil {
		t.Error("SaveStep took an empty step")
	}
	if err := in.Void(ctx, c.Key, c.Owner); err != nil {
		t.Error(err)
	}
	if _, err := in.Lookup(ctx, c.Key); !errors.Is(err, idempotency.ErrNotFound) {
		t.Errorf("after Void: %v: want ErrNotFound", err)
	}
}
