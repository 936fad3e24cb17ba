package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Over warm connections, a POST without a body whose upstream dies after the
// effect is sent once: nobody below us repeats it because it carries a key.
func TestI23NothingIsSentTwice(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := start(t, up, options{})
	var wg sync.WaitGroup
	for range 8 { // each holds a connection for a while; then all are idle
		wg.Go(func() {
			r := request{method: http.MethodGet, path: "/v1/orders", fields: map[string]string{"X-Demo-Delay": "200ms"}}.send(p.url)
			if r.err != nil || r.status != http.StatusOK {
				t.Errorf("warming up: %v", r)
			}
		})
	}
	wg.Wait()
	for i, fault := range []string{"crash-after-effect", "crash-before-effect"} {
		for j, kind := range []string{"orders", "payments"} {
			before := mustCount(t, up, kind)
			r := request{path: "/v1/" + kind, key: fmt.Sprintf("i23-%d-%d", i, j), fields: map[string]string{"X-Demo-Fault": fault}}.send(p.url)
			if r.status != http.StatusBadGateway || r.code() != "upstream-unreachable" || !strings.Contains(r.body, `"executed":"unknown"`) {
				t.Errorf("%s, %s: the answer is %v", kind, fault, r)
			}
			made := int64(0)
			if fault == "crash-after-effect" {
				made = 1
			}
			after := mustCount(t, up, kind)
			if after.Received != before.Received+1 || after.Count != before.Count+made {
				t.Errorf("%s, %s: the upstream says %+v, and before %+v", kind, fault, after, before)
			}
		}
	}
}

// An upstream that is not there was sent nothing, and the key is free again.
func TestUpstreamAway(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := "http://" + l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := start(t, away, options{dir: dir})
	q := request{path: "/v1/payments", key: "away", body: `{"amount":7}`}
	for range 2 {
		r := q.send(p.url)
		r.want(t, http.StatusBadGateway, "upstream-unreachable")
		if !strings.Contains(r.body, `"executed":"no"`) {
			t.Errorf("the answer is %v", r)
		}
	}
	if err := p.terminate(); err != nil {
		t.Fatal(err)
	}
	up := startUpstream(t)
	p = start(t, up, options{dir: dir})
	q.send(p.url).want(t, http.StatusCreated, "")
}

// An upstream that is killed in the middle of its answer: the client's answer
// breaks too, and is never replayed; when the upstream is back, the order is
// taken over and the payment unknown.
func TestUpstreamKilledInItsAnswer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	victim, up, err := upstream(dir)
	if err != nil {
		t.Fatal(err)
	}
	victim.cleanup(t)
	p := start(t, up, options{settings: patient("300ms")})
	slow := map[string]string{"X-Demo-Fault": "slow-body"} // two seconds
	order := request{path: "/v1/orders", key: "broken", body: `{"n":1}`}
	payment := request{path: "/v1/payments", key: "broken", body: `{"n":1}`}
	sent := make(chan reply, 2)
	for _, q := range []request{order, payment} {
		q.fields = slow
		go func() { sent <- q.send(p.url) }()
	}
	if !soon(func() bool {
		return mustCount(t, up, "orders").Count == 1 && mustCount(t, up, "payments").Count == 1
	}) {
		t.Fatal("the requests do not reach the upstream")
	}
	pause(300 * time.Millisecond) // into the answers; sooner is as good a time
	victim.kill()
	for range 2 {
		if r := <-sent; r.err == nil && r.status < 500 {
			t.Errorf("a broken answer is given as %v", r)
		}
	}
	again, _, err := upstreamAt(dir, strings.TrimPrefix(up, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	again.cleanup(t)
	for range 2 {
		r, err := order.final(p.url)
		if err != nil || r.status != http.StatusCreated || r.body != "{\"order_id\":1}\n" {
			t.Errorf("a repeat of the order gets %v (%v)", r, err)
		}
		payment.send(p.url).want(t, http.StatusConflict, "idempotency-outcome-unknown")
	}
	if c := mustCount(t, up, "orders"); c != (counts{1, 2}) {
		t.Errorf("the upstream says of orders %+v, want one of two POSTs", c)
	}
	if c := mustCount(t, up, "payments"); c != (counts{1, 1}) {
		t.Errorf("the upstream says of payments %+v, want one of one POST", c)
	}
}

// A client that hangs up while it sends has asked for nothing.
func TestClientHangsUpWhileSending(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := start(t, up, options{})
	host := strings.TrimPrefix(p.url, "http://")
	for name, sent := range map[string]string{
		"length":  "Content-Length: 100\r\n\r\n{\"item\":",
		"chunked": "Transfer-Encoding: chunked\r\n\r\n8\r\n{\"item\":\r\n",
		"chunk":   "Transfer-Encoding: chunked\r\n\r\n40\r\n{\"item\":",
		"large":   "Content-Length: 1000000\r\n\r\n" + strings.Repeat(" ", 200_000),
	} {
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(conn, "POST /v1/payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: cut\r\nContent-Type: application/json\r\n"+sent)
		if err != nil {
			t.Fatal(err)
		}
		// Half closed: the program sees the end, and we see what it says.
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			b, _ := io.ReadAll(resp.Body)
			if resp.StatusCode < 400 || resp.StatusCode >= 500 {
				t.Errorf("%s: the answer is %d %q", name, resp.StatusCode, b)
			}
			resp.Body.Close()
		}
		conn.Close()
	}
	if c := mustCount(t, up, "payments"); c != (counts{}) {
		t.Errorf("the upstream says %+v, want nothing", c)
	}
	q := request{path: "/v1/payments", key: "cut", body: `{"amount":7}`}
	if r := q.send(p.url); r.status != http.StatusCreated || r.replayed() {
		t.Errorf("the whole request gets %v", r)
	}
}

// A client that hangs up while it waits has its order, and the repeat its
// answer.
func TestClientHangsUpWhileWaiting(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := start(t, up, options{})
	q := request{key: "gone", body: `{"item":"tea"}`}
	slow := q
	slow.fields = map[string]string{"X-Demo-Delay": "700ms"}
	ctx, hangUp := context.WithTimeout(context.Background(), patience)
	sent := make(chan reply, 1)
	go func() { sent <- slow.sendWithin(ctx, p.url) }()
	if !soon(func() bool { return mustCount(t, up, "orders").Received == 1 }) {
		t.Fatal("the request does not reach the upstream")
	}
	hangUp()
	if r := <-sent; r.err == nil {
		t.Fatalf("the client that hung up got %v", r)
	}
	r, err := q.final(p.url)
	if err != nil || r.status != http.StatusCreated || !r.replayed() {
		t.Errorf("the repeat gets %v (replayed %v, %v)", r, r.replayed(), err)
	}
	if c := mustCount(t, up, "orders"); c != (counts{1, 1}) {
		t.Errorf("the upstream says %+v, want one order of one POST", c)
	}
}

// SIGTERM lets what is under way finish, and ends with 0.
func TestDrain(t *testing.T) {
	t.Parallel()
	up, dir := startUpstream(t), t.TempDir()
	p := start(t, up, options{dir: dir, settings: patient("300ms")})
	q := request{path: "/v1/payments", key: "drained", body: `{"amount":7}`}
	slow := q
	slow.fields = map[string]string{"X-Demo-Delay": "1s"}
	sent := make(chan reply, 1)
	go func() { sent <- slow.send(p.url) }()
	if !soon(func() bool { return mustCount(t, up, "payments").Received == 1 }) {
		t.Fatal("the request does not reach the upstream")
	}
	if err := p.terminate(); err != nil {
		t.Error(err)
	}
	first := <-sent
	first.want(t, http.StatusCreated, "")
	if r := (request{method: http.MethodGet, path: "/v1/payments"}).send(p.url); r.err == nil {
		t.Errorf("the program has ended, and answers %v", r)
	}
	p = start(t, up, options{dir: dir})
	if r := q.send(p.url); !r.same(first) || !r.replayed() {
		t.Errorf("after a restart the repeat gets %v, the first %v", r, first)
	}
}

// What cannot finish within the drain is recorded as unknown.
func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	up, dir := startUpstream(t), t.TempDir()
	more := "server: {drain: 300ms}\n"
	// The lease outlives the test: only what was recorded can end it.
	p := start(t, up, options{dir: dir, settings: patient("30s"), more: more})
	hung := map[string]string{"X-Demo-Delay": "5s"}
	sent := make(chan reply, 2)
	for _, path := range []string{"/v1/orders", "/v1/payments"} {
		go func() { sent <- request{path: path, key: "k", body: `{"n":1}`, fields: hung}.send(p.url) }()
	}
	if !soon(func() bool {
		return mustCount(t, up, "payments").Received == 1 && mustCount(t, up, "orders").Received == 1
	}) {
		t.Fatal("the requests do not reach the upstream")
	}
	from := time.Now()
	if err := p.terminate(); err != nil {
		t.Error(err)
	}
	if d := time.Since(from); d > 4*time.Second {
		t.Errorf("the drain of 300ms took %v", d)
	}
	for range 2 {
		if r := <-sent; r.err == nil && (r.status < 500 || r.status == http.StatusServiceUnavailable && !strings.Contains(r.body, "unknown")) {
			t.Errorf("what was cut gets %v", r)
		}
	}
	p = start(t, up, options{dir: dir})
	request{path: "/v1/payments", key: "k", body: `{"n":1}`}.send(p.url).want(t, http.StatusConflict, "idempotency-outcome-unknown")
	request{path: "/v1/orders", key: "k", body: `{"n":1}`}.send(p.url).want(t, http.StatusCreated, "")
	if c := mustCount(t, up, "orders"); c.Received != 2 {
		t.Errorf("the upstream says of orders %+v, want two POSTs", c)
	}
}
