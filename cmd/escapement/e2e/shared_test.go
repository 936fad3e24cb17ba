package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// What must come of two programs on one store, whichever that is.

// once sends one key ten times at once, to the programs in turn: one order, and
// ten equal answers.
func once(t *testing.T, up string, programs ...string) {
	t.Helper()
	before := mustCount(t, up, "orders")
	q := request{key: fmt.Sprint("once-", before.Received), body: `{"item":"tea"}`, fields: map[string]string{"X-Demo-Delay": "300ms"}}
	answers, errs := make([]reply, 10), make([]error, 10)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i], errs[i] = q.final(programs[i%len(programs)]) })
	}
	wg.Wait()
	first := 0
	for i, r := range answers {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if r.status != http.StatusCreated || !r.same(answers[0]) {
			t.Errorf("answer %d is %v, and the first %v", i, r, answers[0])
		}
		if !r.replayed() {
			first++
		}
	}
	if first != 1 {
		t.Errorf("%d answers are not replays, want 1", first)
	}
	if c := mustCount(t, up, "orders"); c.Count != before.Count+1 || c.Received != before.Received+1 {
		t.Errorf("the upstream says %+v, and before %+v: want one order of one POST more", c, before)
	}
}

// racing sends 100 keys, each to both programs at once: never do both run.
func racing(t *testing.T, up string, ps [2]*program) {
	t.Helper()
	const keys = 100
	for n := range keys {
		q := request{path: "/v1/payments", key: fmt.Sprint("k", n), body: `{"amount":7}`}
		var got [2]reply
		var wg sync.WaitGroup
		for i, p := range ps {
			wg.Go(func() { got[i] = q.send(p.url) })
		}
		wg.Wait()
		ran := 0
		for _, r := range got {
			switch {
			case r.status == http.StatusCreated && !r.replayed():
				ran++
			case r.status == http.StatusCreated, r.code() == "idempotency-request-in-progress":
			default:
				t.Fatalf("key %d: %v", n, r)
			}
		}
		if ran != 1 {
			t.Fatalf("key %d: %d of two ran: %v", n, ran, got)
		}
	}
	if c := mustCount(t, up, "payments"); c != (counts{keys, keys}) {
		t.Errorf("the upstream says %+v, want %d payments of as many POSTs", c, keys)
	}
}

// burstThenRate asks two programs for more than a limit of 10/s, burst 20, lets
// through on GET /v1/orders. What a noisy machine does to the clock is measured,
// not assumed.
func burstThenRate(t *testing.T, ps [2]*program) {
	t.Helper()
	q := request{method: http.MethodGet, path: "/v1/orders", fields: map[string]string{"X-Api-Key": "one"}}
	var passed atomic.Int64
	limited := func(r reply) bool {
		switch {
		case r.err == nil && r.status == http.StatusOK:
			passed.Add(1)
			return false
		case r.err == nil && r.status == http.StatusTooManyRequests && r.code() == "quota-exceeded":
			if d, err := r.retryAfter(); err != nil || d != time.Second {
				t.Errorf("a token comes every 100ms, and Retry-After is %v (%v)", d, err)
			}
			return true
		}
		t.Errorf("the answer is %v", r)
		return false
	}
	from := time.Now()
	atMost := func() float64 { return 20 + 10*time.Since(from).Seconds() }
	limited(q.send(ps[0].url))
	first := time.Now() // not before the bucket began to refill
	var wg sync.WaitGroup
	for i := range 39 {
		wg.Go(func() { limited(q.send(ps[i%2].url)) })
	}
	wg.Wait()
	if n := passed.Load(); n < 20 || float64(n) > atMost() {
		t.Errorf("%d passed at once, want from 20 to %v", n, atMost())
	}
	for i := range 4 {
		wg.Go(func() {
			for time.Since(from) < 3*time.Second {
				limited(q.send(ps[i%2].url))
			}
		})
	}
	wg.Wait()
	if n := passed.Load(); float64(n) > atMost() {
		t.Errorf("%d passed in %v, want at most %v", n, time.Since(from), atMost())
	}
	// A refusal says that the bucket is empty: all that came in has been spent,
	// but for what came while a refusal was remembered, for less than 100ms.
	var asked time.Time
	if !soon(func() bool { asked = time.Now(); return limited(q.send(ps[1].url)) }) {
		t.Fatal("the limit refuses nothing")
	}
	if n, least := passed.Load(), 20+10*asked.Sub(first).Seconds()-2; float64(n) < least {
		t.Errorf("%d passed in %v, want at least %v", n, asked.Sub(first), least)
	}
}

// takenOver kills one program while its operation runs: of ten repeats at once
// at the other, exactly one takes over.
func takenOver(t *testing.T, up string, ps [2]*program) {
	t.Helper()
	q := request{key: "shared", body: `{"item":"tea"}`}
	slow := q
	slow.fields = map[string]string{"X-Demo-Delay": "500ms"}
	sent := make(chan reply, 1)
	go func() { sent <- slow.send(ps[0].url) }()
	if !soon(func() bool { return mustCount(t, up, "orders").Received == 1 }) {
		t.Fatal("the request does not reach the upstream")
	}
	ps[0].kill()
	if r := <-sent; r.err == nil {
		t.Fatalf("the killed program answers %v", r)
	}
	var took atomic.Int64
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			r, err := q.final(ps[1].url)
			if err != nil || r.status != http.StatusCreated || r.body != "{\"order_id\":1}\n" {
				t.Errorf("the other program answers %v (%v)", r, err)
			}
			if !r.replayed() {
				took.Add(1)
			}
		})
	}
	wg.Wait()
	if n := took.Load(); n != 1 {
		t.Errorf("%d took over, want 1", n)
	}
	if c := mustCount(t, up, "orders"); c != (counts{1, 2}) {
		t.Errorf("the upstream says %+v, want one order of two POSTs", c)
	}
}
