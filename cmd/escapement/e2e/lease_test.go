package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// An upstream that hangs for longer than the time-out: the answer says that
// the outcome is unknown; one of ten repeats at once takes an order over, and a
// payment stays unknown. When the hung requests have their effect after all,
// there is still one.
func TestT3HungUpstream(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := start(t, up, options{})
	hung := map[string]string{"X-Demo-Delay": "4s"} // the time-out is 2s
	order := request{path: "/v1/orders", key: "hung", body: `{"item":"tea"}`}
	payment := request{path: "/v1/payments", key: "hung", body: `{"amount":7}`}
	var wg sync.WaitGroup
	for _, q := range []request{order, payment} {
		q.fields = hung
		wg.Go(func() {
			r := q.send(p.url)
			if r.status != http.StatusGatewayTimeout || r.code() != "upstream-timeout" || !strings.Contains(r.body, `"executed":"unknown"`) {
				t.Errorf("%s: the answer is %v", q.path, r)
			}
		})
	}
	wg.Wait()
	ran := make(chan bool, 10)
	for range cap(ran) {
		wg.Go(func() {
			r, err := order.final(p.url)
			if err != nil || r.status != http.StatusCreated || r.body != "{\"order_id\":1}\n" {
				t.Errorf("a repeat gets %v (%v)", r, err)
			}
			ran <- !r.replayed()
		})
	}
	wg.Wait()
	took := 0
	for range cap(ran) {
		if <-ran {
			took++
		}
	}
	if took != 1 {
		t.Errorf("%d repeats took over, want 1", took)
	}
	payment.send(p.url).want(t, http.StatusConflict, "idempotency-outcome-unknown")

	if !soon(func() bool { return mustCount(t, up, "payments").Count == 1 }) {
		t.Error("the hung payment never had its effect")
	}
	payment.send(p.url).want(t, http.StatusConflict, "idempotency-outcome-unknown")
	if c := mustCount(t, up, "payments"); c != (counts{1, 1}) {
		t.Errorf("the upstream says of payments %+v, want one of one POST", c)
	}
	if c := mustCount(t, up, "orders"); c != (counts{1, 2}) {
		t.Errorf("the upstream says of orders %+v, want one of two POSTs", c)
	}
}

// Two programs on one file: when one is killed, the other takes over from it.
func TestT3AnotherProcessTakesOver(t *testing.T) {
	t.Parallel()
	up, dir, other := startUpstream(t), t.TempDir(), t.TempDir()
	db := filepath.Join(dir, "escapement.db")
	a := start(t, up, options{dir: dir, db: db})
	b := start(t, up, options{dir: other, db: db})
	q := request{key: "shared", body: `{"item":"tea"}`}
	slow := q
	slow.fields = map[string]string{"X-Demo-Delay": "100ms"}
	sent := make(chan reply, 1)
	go func() { sent <- slow.send(a.url) }()
	if !soon(func() bool { return mustCount(t, up, "orders").Received == 1 }) {
		t.Fatal("the request does not reach the upstream")
	}
	a.kill()
	if r := <-sent; r.err == nil {
		t.Fatalf("the killed program answers %v", r)
	}
	r, err := q.final(b.url)
	if err != nil || r.status != http.StatusCreated || r.replayed() {
		t.Errorf("the other program answers %v (replayed %v, %v)", r, r.replayed(), err)
	}
	if again := q.send(b.url); !again.same(r) || !again.replayed() {
		t.Errorf("and then %v (replayed %v)", again, again.replayed())
	}
	if c := mustCount(t, up, "orders"); c != (counts{1, 2}) {
		t.Errorf("the upstream says %+v, want one order of two POSTs", c)
	}
}

// A record does not stay in progress for ever after its holder was killed: the
// repeat that obeys Retry-After is past the lease, and gets a final answer.
func TestFault11KilledHolder(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]struct {
		status int
		code   string
		counts counts
	}{
		"/v1/orders":   {http.StatusCreated, "", counts{1, 1}},
		"/v1/payments": {http.StatusConflict, "idempotency-outcome-unknown", counts{0, 0}},
	} {
		t.Run(strings.TrimPrefix(path, "/v1/"), func(t *testing.T) {
			t.Parallel()
			up, dir := startUpstream(t), t.TempDir()
			p := start(t, up, options{dir: dir, killAt: "after-claim"})
			q := request{path: path, key: "killed", body: `{"item":"tea"}`}
			if r := q.send(p.url); r.err == nil {
				t.Fatalf("the killed program answers %v", r)
			}
			if err := p.wait(); err != nil {
				t.Fatal(err)
			}
			p = start(t, up, options{dir: dir})
			r := q.send(p.url)
			for n := 0; r.code() == "idempotency-request-in-progress"; n++ {
				if n == 2 { // the lease is shorter than one Retry-After
					t.Fatalf("still in progress after two Retry-After: %v", r)
				}
				d, err := r.retryAfter()
				if err != nil {
					t.Fatal(err)
				}
				pause(d)
				r = q.send(p.url)
			}
			r.want(t, want.status, want.code)
			if c := mustCount(t, up, strings.TrimPrefix(path, "/v1/")); c != want.counts {
				t.Errorf("the upstream says %+v, want %+v", c, want.counts)
			}
		})
	}
}

// A streamed answer goes out before its record: killed in the middle of it, the
// outcome is unknown, and the part is never replayed as the whole.
func TestT2KilledInAStream(t *testing.T) {
	t.Parallel()
	up, dir := startUpstream(t), t.TempDir()
	p := start(t, up, options{dir: dir, killAt: "mid-answer:2"})
	q := request{path: "/_test/events?n=5&every=100ms", key: "stream", body: "{}"}
	cut := q.send(p.url)
	// The Gate's second piece is the second event, or the last byte of the
	// first one: it holds a byte back until the proxy flushes. Half of it is out.
	part := cut.body == "data: 1\n\ndata" || cut.body == "data: 1\n"
	if cut.err == nil || cut.status != http.StatusOK || !part {
		t.Errorf("the killed program's stream is %v", cut)
	}
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	p = start(t, up, options{dir: dir})
	for range 2 {
		r, err := q.final(p.url)
		if err != nil {
			t.Fatal(err)
		}
		r.want(t, http.StatusConflict, "idempotency-outcome-unknown")
	}
}
