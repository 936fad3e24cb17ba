package e2e

import (
	"net/http"
	"sync"
	"testing"
)

// The README's demo: ten requests at once with one key make one order, and all
// get its answer.
func TestT1TenRequestsOneOrder(t *testing.T) {
	t.Parallel()
	demo := startDemo(t)
	q := request{key: "first", body: `{"item":"tea"}`, fields: map[string]string{"X-Demo-Delay": "300ms"}}
	answers := make([]reply, 10)
	errs := make([]error, len(answers))
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i], errs[i] = q.final(demo.url) })
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
		if got := r.header.Get("Idempotency-Key"); got != "first" {
			t.Errorf("answer %d carries the key %q", i, got)
		}
		if !r.replayed() {
			first++
		}
	}
	if first != 1 {
		t.Errorf("%d answers are not replays, want 1", first)
	}
	if c := mustCount(t, demo.url, "orders"); c != (counts{1, 1}) {
		t.Errorf("the upstream says %+v, want one order of one POST", c)
	}
}

func TestDemoRefusals(t *testing.T) {
	t.Parallel()
	demo := startDemo(t)
	slow := request{key: "k", body: `{"item":"tea"}`, fields: map[string]string{"X-Demo-Delay": "1s"}}
	running := make(chan reply, 1)
	go func() { running <- slow.send(demo.url) }()
	if !soon(func() bool { return mustCount(t, demo.url, "orders").Received == 1 }) {
		t.Fatal("the first request does not reach the upstream")
	}
	other := request{key: "k", body: `{"item":"coffee"}`}
	other.send(demo.url).want(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
	first := <-running
	first.want(t, http.StatusCreated, "")
	other.send(demo.url).want(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
	request{body: `{"item":"tea"}`}.send(demo.url).want(t, http.StatusBadRequest, "idempotency-key-missing")

	again := request{key: "k", body: "{ \"item\" : \"tea\" }"}.send(demo.url)
	if !again.same(first) || !again.replayed() {
		t.Errorf("the repeat, written otherwise, gets %v (replayed %v), and the first %v", again, again.replayed(), first)
	}
	tenant := request{key: "k", tenant: "b", body: `{"item":"tea"}`}.send(demo.url)
	tenant.want(t, http.StatusCreated, "")
	if tenant.body == first.body || tenant.replayed() {
		t.Errorf("another tenant's equal key gets %v (replayed %v), the first tenant's %v", tenant, tenant.replayed(), first)
	}
	if c := mustCount(t, demo.url, "orders"); c != (counts{2, 2}) {
		t.Errorf("the upstream says %+v, want two orders of two POSTs", c)
	}
	if err := demo.terminate(); err != nil {
		t.Error(err)
	}
}
