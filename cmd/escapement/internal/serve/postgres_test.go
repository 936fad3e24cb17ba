package serve

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
	"github.com/escapement-dev/escapement/internal/pgserver"
)

// While PostgreSQL hangs, requests that were answered leave nothing behind that
// waits: neither goroutines nor connections grow with their number.
func TestHungPostgresHoldsNothing(t *testing.T) {
	server, err := pgserver.Start(false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	r := newRig(t, setup{
		yaml: "postgres: {key_deadline: 200ms}\n",
		change: func(c *config.Config) {
			c.Store = config.StoreURL{Kind: "postgres", Address: "postgres://postgres@" + server.Address() + "/postgres?sslmode=disable"}
		},
	})
	if a := r.until("POST", "/v1/orders", `{"item":"tea"}`, "Idempotency-Key", "before"); a.status != 201 {
		t.Fatal(a)
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	const rounds, each = 5, 100
	before := runtime.NumGoroutine()
	for round := range rounds {
		var wg sync.WaitGroup
		for n := range each {
			wg.Go(func() {
				a := r.do("POST", "/v1/orders", `{"item":"tea"}`, "Idempotency-Key", fmt.Sprint(round, "-", n))
				if a.status != 503 || a.code() != "store-unavailable" {
					t.Errorf("the answer is %v", a)
				}
			})
		}
		wg.Wait()
	}
	r.client.CloseIdleConnections()
	// Some withdraw, in the background, claims that may have come: each in turn.
	r.eventually(func() bool { return runtime.NumGoroutine() < before+rounds*each/4 })
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	r.eventually(func() bool {
		return r.do("POST", "/v1/orders", `{"item":"tea"}`, "Idempotency-Key", "after").status == 201
	})
	r.wantCounts("/v1/orders", 2, 2)
}
