package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// load is what clients do while something is broken: each sends orders and
// payments, one after the other, to several programs in turn, and repeats each
// until it is made.
type load struct {
	name string
	ps   []*program
	made atomic.Int64

	mu   sync.Mutex
	done []made
	odd  []string

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// made is a key whose answer came.
type made struct {
	request
	first reply
}

// startLoad starts so many clients.
func startLoad(t *testing.T, name string, clients int, ps ...*program) *load {
	t.Helper()
	l := &load{name: name, ps: ps}
	ctx, cancel := context.WithCancel(t.Context())
	l.cancel = cancel
	for c := range clients {
		l.wg.Go(func() { l.client(ctx, c) })
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) client(ctx context.Context, c int) {
	for n := 0; ctx.Err() == nil; n++ {
		kind := []string{"orders", "payments"}[n%2]
		q := request{path: "/v1/" + kind, key: fmt.Sprintf("%s-%d-%d", l.name, c, n), body: `{"amount":7}`}
		limit := time.Now().Add(patience)
		for try := 0; ; try++ {
			r := q.send(l.ps[(c+try)%len(l.ps)].url)
			if r.err == nil && r.status == http.StatusCreated {
				l.mu.Lock()
				l.done = append(l.done, made{q, r})
				l.mu.Unlock()
				l.made.Add(1)
				break
			}
			if !passing(r) || time.Now().After(limit) {
				l.mu.Lock()
				l.odd = append(l.odd, fmt.Sprintf("%s: %v", q.key, r))
				l.mu.Unlock()
				return
			}
			pause(20 * time.Millisecond)
		}
	}
}

// passing reports whether an answer is one that a store brings about that is
// away, and that passes when it is back.
func passing(r reply) bool {
	if r.err != nil {
		return false
	}
	switch r.code() {
	case "store-unavailable", "idempotency-result-not-recorded":
		return r.status == http.StatusServiceUnavailable
	case "idempotency-request-in-progress", "idempotency-outcome-unknown":
		return r.status == http.StatusConflict
	}
	return false
}

// goesOn waits until so many more operations are made.
func (l *load) goesOn(t *testing.T, more int64) {
	t.Helper()
	before := l.made.Load()
	if !soon(func() bool { return l.made.Load() >= before+more }) {
		l.stop()
		t.Fatalf("nothing goes on: %v", l.odd)
	}
}

func (l *load) stop() {
	l.cancel()
	l.wg.Wait()
}

// executedOnce stops the load, and looks at what came of it: no payment was
// executed twice, each order was made once, and every key replays its answer at
// every program.
func (l *load) executedOnce(t *testing.T, up string) {
	t.Helper()
	l.stop()
	for _, text := range l.odd {
		t.Errorf("not made: %s", text)
	}
	keys := map[string]int64{}
	for i, m := range l.done {
		keys[m.path]++
		var r reply
		p := l.ps[i%len(l.ps)]
		soon(func() bool { r = m.send(p.url); return !passing(r) }) // it may not have noticed yet that the store is back
		if !r.same(m.first) || !r.replayed() {
			t.Errorf("%s: the repeat gets %v (replayed %v), the first %v", m.key, r, r.replayed(), m.first)
		}
	}
	// The upstream knows an order's key, and a payment's not.
	if c, n := mustCount(t, up, "payments"), keys["/v1/payments"]; c != (counts{n, n}) {
		t.Errorf("the upstream says of payments %+v, want %d of as many POSTs", c, n)
	}
	if c, n := mustCount(t, up, "orders"), keys["/v1/orders"]; c.Count != n {
		t.Errorf("the upstream says of orders %+v, want %d", c, n)
	}
	if keys["/v1/payments"] == 0 || keys["/v1/orders"] == 0 {
		t.Errorf("made: %v", keys)
	}
}
