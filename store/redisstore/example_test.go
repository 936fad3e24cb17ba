package redisstore_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// One round trip decides about a request: is it within its tenant's limit, and
// was its key used before?
func ExampleStore_Admit() {
	store, err := redisstore.Open("redis://"+shared.Addr, redisstore.Options{
		Prefix: "example:",
		// Subjects that begin with "tenant " belong to the tenant behind it.
		TenantOf: func(_, subject string) string {
			tenant, _ := strings.CutPrefix(subject, "tenant ")
			return tenant
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	ctx := context.Background()

	keys, err := idempotency.NewHasher([]byte("a secret of 16 bytes or more"))
	if err != nil {
		fmt.Println(err)
		return
	}
	key, err := keys.Key(idempotency.Scope{Tenant: "acme"}, "order-1")
	if err != nil {
		fmt.Println(err)
		return
	}
	limit := []ratelimit.Charge{{
		Rule:    ratelimit.Rule{Name: "orders", Quota: 10, Window: time.Second, Burst: 20},
		Subject: "tenant acme", Cost: 1,
	}}
	for range 2 {
		decision, answer, err := store.Admit(ctx, limit, nil, idempotency.Claim{
			Key: key, Owner: idempotency.NewOwner(),
			Terms: idempotency.Terms{Lease: 30 * time.Second, Retention: 24 * time.Hour},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(decision.Allowed, answer.Outcome)
		if answer.Outcome == idempotency.Started {
			// Here the order is made.
			err = store.End(ctx, answer.Reservation, idempotency.Done(idempotency.Result{
				Class: idempotency.Succeeded, Status: 201, Payload: []byte(`{"order": 1}`),
			}))
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		if answer.Outcome == idempotency.Replayed {
			fmt.Println(string(answer.Record.Result.Payload))
		}
	}
	// Output:
	// true started
	// true replayed
	// {"order": 1}
}
