package pgstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/pgserver"
	"github.com/escapement-dev/escapement/store/pgstore"
)

// An order and the record of its key are committed by one transaction: a crash
// at any moment leaves both or neither.
func Example_orders() {
	ctx := context.Background()
	server, err := pgserver.Start(false) // yours, in real life
	if err != nil {
		log.Fatal(err)
	}
	defer server.Stop()
	pool, err := pgxpool.New(ctx, server.URL())
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if _, _, err := pgstore.Migrate(ctx, pool, ""); err != nil {
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, amount bigint NOT NULL)"); err != nil {
		log.Fatal(err)
	}
	store, err := pgstore.New(ctx, pool, pgstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	hasher, err := idempotency.NewHasher([]byte("a secret that all nodes share"))
	if err != nil {
		log.Fatal(err)
	}
	key, err := hasher.Key(idempotency.Scope{Tenant: "acme"}, "order-1")
	if err != nil {
		log.Fatal(err)
	}
	for range 2 { // the client repeats its request
		answer, err := order(ctx, pool, store, key, 1999)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer)
	}
	var n int
	if err := pool.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&n); err != nil {
		log.Fatal(err)
	}
	fmt.Println("orders:", n)
	// Output:
	// {"order":1}
	// {"order":1}
	// orders: 1
}

// order makes an order once for each key.
func order(ctx context.Context, pool *pgxpool.Pool, store *pgstore.Store, key idempotency.Key, amount int64) (string, error) {
	a, err := store.Reserve(ctx, idempotency.Claim{
		Key: key, Owner: idempotency.NewOwner(),
		Terms: idempotency.Terms{Lease: 10 * time.Second, Retention: 24 * time.Hour},
	})
	if err != nil {
		return "", err
	}
	switch a.Outcome {
	case idempotency.Replayed:
		return string(a.Record.Result.Payload), nil
	case idempotency.Started:
	default:
		return "", fmt.Errorf("the order is %v", a.Outcome)
	}
	var answer string
	for try := 1; ; try++ {
		answer, err = orderIn(ctx, pool, store, a.Reservation, amount)
		if try == 3 || !pgstore.Again(err) {
			break
		}
	}
	if err == nil {
		return answer, nil
	}
	// Where the commit's fate is not known, the record has it: the end as not
	// run is refused if it did commit.
	if ended := store.End(ctx, a.Reservation, idempotency.NotRun()); !errors.Is(ended, idempotency.ErrFenced) {
		return "", errors.Join(err, ended)
	}
	rec, err := store.Lookup(ctx, key)
	return string(rec.Result.Payload), err
}

func orderIn(ctx context.Context, pool *pgxpool.Pool, store *pgstore.Store, r idempotency.Reservation, amount int64) (answer string, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		in := store.In(tx)
		if _, err := in.Extend(ctx, r, 10*time.Second); err != nil { // the fence
			return err
		}
		var made struct {
			Order int64 `json:"order"`
		}
		if err := tx.QueryRow(ctx, "INSERT INTO orders (amount) VALUES ($1) RETURNING id", amount).Scan(&made.Order); err != nil {
			return err
		}
		body, err := json.Marshal(made)
		if err != nil {
			return err
		}
		answer = string(body)
		return in.End(ctx, r, idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: body}))
	})
	return answer, err
}

// The SQL of the tables, for those who run it by other means.
func ExampleMigrationSQL() {
	text, err := pgstore.MigrationSQL("", 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.SplitN(text, "\n", 2)[0])
	// Output: BEGIN;
}
