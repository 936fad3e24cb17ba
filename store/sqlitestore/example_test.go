package sqlitestore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/sqlitestore"
)

// An order and the end of its key's record are committed together: there is
// one order, with a crash at any instruction.
func Example_sameTransaction() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+
		"?_txlock=immediate&_pragma=journal_mode(wal)&_pragma=synchronous(full)&_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)"); err != nil {
		log.Fatal(err)
	}
	store, err := sqlitestore.New(ctx, db, sqlitestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	hasher, err := idempotency.NewHasher([]byte("a secret of 16 bytes or more"))
	if err != nil {
		log.Fatal(err)
	}
	key, err := hasher.Key(idempotency.Scope{Tenant: "acme"}, "client-key-1")
	if err != nil {
		log.Fatal(err)
	}

	// handle is what a request does.
	handle := func() (string, error) {
		answer, err := store.Reserve(ctx, idempotency.Claim{
			Key: key, Owner: idempotency.NewOwner(),
			Terms: idempotency.Terms{Lease: 30 * time.Second, Retention: 24 * time.Hour},
		})
		if err != nil {
			return "", err
		}
		if answer.Outcome != idempotency.Started {
			return fmt.Sprintf("%v: %s", answer.Outcome, answer.Record.Result.Payload), nil
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return "", err
		}
		defer tx.Rollback() // gives the key back to held; does nothing after Commit
		in := store.In(tx)
		if _, err := in.Extend(ctx, answer.Reservation, 30*time.Second); err != nil {
			return "", err // idempotency.ErrFenced: another attempt has taken over
		}
		res, err := tx.ExecContext(ctx, "INSERT INTO orders (item) VALUES ('tea')")
		if err != nil {
			return "", err
		}
		id, err := res.LastInsertId()
		if err != nil {
			return "", err
		}
		body := fmt.Sprintf("order %d", id)
		err = in.End(ctx, answer.Reservation, idempotency.Done(idempotency.Result{
			Class: idempotency.Succeeded, Status: 201, Payload: []byte(body),
		}))
		if err != nil {
			return "", err
		}
		if err := tx.Commit(); err != nil {
			return "", err // Lookup says whether it took place
		}
		return "created: " + body, nil
	}

	for range 3 {
		said, err := handle()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(said)
	}
	var n int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM orders").Scan(&n); err != nil {
		log.Fatal(err)
	}
	fmt.Println("orders:", n)
	// Output:
	// created: order 1
	// replayed: order 1
	// replayed: order 1
	// orders: 1
}
