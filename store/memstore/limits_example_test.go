package memstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
)

// A request is charged to its tenant and to everybody together, or to neither.
func ExampleLimits() {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	limits, err := memstore.NewLimits(memstore.LimitsOptions{
		Now: func() time.Time { return now }, // left out, it is the real time
	})
	if err != nil {
		panic(err)
	}
	tenant := ratelimit.Rule{Name: "tenant", Quota: 10, Window: time.Second, Burst: 2}
	all := ratelimit.Rule{Name: "all", Quota: 1000, Window: time.Second}
	for range 3 {
		d, err := limits.Take(context.Background(), []ratelimit.Charge{
			{Rule: tenant, Subject: "acme", Cost: 1},
			{Rule: all, Cost: 1},
		})
		if err != nil {
			panic(err) // no decision was made
		}
		wait, _ := d.RetryAfter()
		fmt.Println(d.Allowed, d.Levels[0].Remaining, d.Levels[1].Remaining, wait)
	}
	// Output:
	// true 1 999 0s
	// true 0 998 0s
	// false 0 998 100ms
}
