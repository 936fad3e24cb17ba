package httpgate_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/httpgate"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
)

// post sends an order with a key and prints what matters of the answer.
func post(h http.Handler, key, body string) {
	r := httptest.NewRequest("POST", "/v1/orders", strings.NewReader(body))
	r.Header.Set("X-Tenant-Id", "acme")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Header().Get("Content-Type") == "application/problem+json" {
		fmt.Println(w.Code, "problem")
		return
	}
	fmt.Println(w.Code, w.Body, "replayed:", w.Header().Get("Idempotent-Replayed") == "true")
}

// gate makes a Gate on memory; a real service chooses a store that survives it.
func gate() *escapement.Gate {
	records, err := memstore.NewRecords(memstore.RecordsOptions{})
	if err != nil {
		panic(err)
	}
	limits, err := memstore.NewLimits(memstore.LimitsOptions{})
	if err != nil {
		panic(err)
	}
	g, err := escapement.New(escapement.Options{Records: records, Limits: limits})
	if err != nil {
		panic(err)
	}
	return g
}

func Example() {
	hasher, err := idempotency.NewHasher([]byte("the same secret on every node"))
	if err != nil {
		panic(err)
	}
	g := gate()
	mw, err := httpgate.New(httpgate.Config{
		Gate:     g,
		Hasher:   hasher,
		Identity: httpgate.Identity{Tenant: httpgate.MustSources("header:X-Tenant-Id")},
		Routes:   map[string]httpgate.KeyPolicy{"POST /v1/orders": {Mode: httpgate.Required}},
		Limits: []httpgate.Limit{{
			Rule: ratelimit.Rule{Name: "tenant", Quota: 10, Window: time.Second, Burst: 20},
			By:   []string{"tenant"},
		}},
	})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go g.Run(ctx) // sweeps, and retries what could not be recorded

	orders := 0
	h := mw.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		orders++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %d", orders)
	}))
	post(h, "k-1", `{"item": "tea", "n": 2}`)
	post(h, "k-1", `{"n": 2, "item": "tea"}`) // the same meaning
	post(h, "k-1", `{"n": 3, "item": "tea"}`) // another one
	post(h, "k-2", `{"item": "tea", "n": 2}`)
	// Output:
	// 201 order 1 replayed: false
	// 201 order 1 replayed: true
	// 422 problem
	// 201 order 2 replayed: false
}

// A handler that knows that nothing has happened says so, whatever its status:
// the key is free again.
func ExampleReport() {
	hasher, err := idempotency.NewHasher([]byte("the same secret on every node"))
	if err != nil {
		panic(err)
	}
	mw, err := httpgate.New(httpgate.Config{
		Gate: gate(), Hasher: hasher,
		Identity: httpgate.Identity{Tenant: httpgate.MustSources("header:X-Tenant-Id")},
	})
	if err != nil {
		panic(err)
	}
	open := false
	h := mw.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !open {
			httpgate.Report(r.Context(), httpgate.NotExecuted)
			w.WriteHeader(http.StatusConflict)
			io.WriteString(w, "closed")
			return
		}
		io.WriteString(w, "done")
	}))
	post(h, "k", "{}")
	open = true
	post(h, "k", "{}")
	post(h, "k", "{}")
	// Output:
	// 409 closed replayed: false
	// 200 done replayed: false
	// 200 done replayed: true
}
