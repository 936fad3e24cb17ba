package idempotency_test

import (
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

func ExampleDecide() {
	hasher, err := idempotency.NewHasher([]byte("a secret of 16 bytes or more"))
	if err != nil {
		fmt.Println(err)
		return
	}
	scope := idempotency.Scope{Tenant: "acme", Parts: []idempotency.Part{{Name: "method", Value: "POST"}, {Name: "path", Value: "/v1/orders"}}}
	key, err := hasher.Key(scope, "order-4711")
	if err != nil {
		fmt.Println(err)
		return
	}
	terms := idempotency.Terms{Lease: 10 * time.Second, Retention: 24 * time.Hour, Quiet: time.Minute}
	claim := func() idempotency.Claim { // each attempt has an owner of its own
		return idempotency.Claim{Key: key, Owner: idempotency.NewOwner(), Terms: terms}
	}
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)

	var record idempotency.Record // nothing is known of the key
	record, first := idempotency.Decide(record, claim(), now)
	fmt.Println(first.Outcome)

	record, second := idempotency.Decide(record, claim(), now.Add(time.Second))
	fmt.Println(second.Outcome)

	result := idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: []byte("order 1")}
	record, err = idempotency.Finish(record, first.Reservation, idempotency.Done(result), now.Add(2*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, third := idempotency.Decide(record, claim(), now.Add(3*time.Second))
	fmt.Printf("%v: %d %s\n", third.Outcome, third.Record.Result.Status, third.Record.Result.Payload)
	// Output:
	// started
	// in_progress
	// replayed: 201 order 1
}
