package escapement_test

import (
	"context"
	"fmt"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/memstore"
)

// An order is placed once, however often its request is repeated.
func ExampleGate_Do() {
	store, err := memstore.NewRecords(memstore.RecordsOptions{})
	if err != nil {
		panic(err)
	}
	gate, err := escapement.New(escapement.Options{Records: store})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	background := make(chan error, 1)
	go func() { background <- gate.Run(ctx) }()

	hasher, err := idempotency.NewHasher([]byte("a secret that all nodes share"))
	if err != nil {
		panic(err)
	}
	key, err := hasher.Key(idempotency.Scope{Tenant: "shop"}, "order-4711")
	if err != nil {
		panic(err)
	}
	request := escapement.Request{Key: key, Policy: escapement.DefaultPolicy()}

	orders := 0
	for range 3 {
		v, err := gate.Do(ctx, request, func(context.Context, *escapement.Run) idempotency.Ending {
			orders++
			return idempotency.Done(idempotency.Result{
				Class: idempotency.Succeeded, Status: 201, Payload: fmt.Appendf(nil, "order %d", orders),
			})
		})
		switch {
		case err != nil:
			fmt.Println("nothing was executed:", err)
		case v.Outcome == escapement.Admitted && v.Recorded:
			fmt.Printf("%v: %s\n", v.Outcome, v.Ending.Result.Payload)
		case v.Outcome == escapement.Replayed:
			fmt.Printf("%v: %s\n", v.Outcome, v.Record.Result.Payload)
		default:
			fmt.Println(v.Outcome)
		}
	}

	stopping, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := gate.Shutdown(stopping); err != nil {
		fmt.Println(err)
	}
	stop()
	<-background
	// Output:
	// admitted: order 1
	// replayed: order 1
	// replayed: order 1
}
