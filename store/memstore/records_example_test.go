package memstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/memstore"
)

// One attempt runs, the repeat is answered with its result.
func ExampleNewRecords() {
	store, err := memstore.NewRecords(memstore.RecordsOptions{MaxRecords: 10_000})
	if err != nil {
		fmt.Println(err)
		return
	}
	hasher, err := idempotency.NewHasher([]byte("a secret of sixteen bytes or more"))
	if err != nil {
		fmt.Println(err)
		return
	}
	key, err := hasher.Key(idempotency.Scope{Tenant: "acme"}, "order-1234")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for range 2 {
		answer, err := store.Reserve(ctx, idempotency.Claim{
			Key: key, Owner: idempotency.NewOwner(),
			Terms: idempotency.Terms{Lease: 30 * time.Second, Retention: 24 * time.Hour},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		switch answer.Outcome {
		case idempotency.Started:
			fmt.Println("runs")
			result := idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: []byte("order 77")}
			if err := store.End(ctx, answer.Reservation, idempotency.Done(result)); err != nil {
				fmt.Println(err)
			}
		case idempotency.Replayed:
			fmt.Printf("replays %d %s\n", answer.Record.Result.Status, answer.Record.Result.Payload)
		}
	}
	// Output:
	// runs
	// replays 201 order 77
}
