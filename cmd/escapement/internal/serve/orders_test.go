package serve

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
)

const key = "Idempotency-Key"

// T1: ten concurrent POSTs with one key have one effect and ten equal answers.
func TestT1OneOrderOfTenRequests(t *testing.T) {
	r := newRig(t, setup{})
	answers := make([]answer, 10)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			answers[i] = r.until("POST", "/v1/orders", `{"item":"tea"}`, key, "one", "X-Demo-Delay", "100ms")
		})
	}
	wg.Wait()
	first := 0
	for _, a := range answers {
		if a.status != 201 || a.body != answers[0].body || a.header.Get("Location") != "/v1/orders/1" || a.header.Get(key) != "one" {
			t.Errorf("got %v %v", a, a.header)
		}
		if !a.replayed() {
			first++
		} else if a.header.Get("Idempotency-Expires") == "" {
			t.Error("a replay without Idempotency-Expires")
		}
	}
	if first != 1 {
		t.Errorf("%d answers are not marked as replays, want 1", first)
	}
	r.wantCounts("/v1/orders", 1, 1)
}

func TestWhatAKeyRefuses(t *testing.T) {
	r := newRig(t, setup{})
	want := func(a answer, status int, code string) {
		t.Helper()
		if a.status != status || a.code() != code {
			t.Errorf("got %v, want %d %s", a, status, code)
		}
	}
	want(r.do("POST", "/v1/orders", "{}"), 400, "idempotency-key-missing")
	want(r.do("POST", "/v1/orders", "{}", key, ""), 400, "idempotency-key-malformed")
	r.wantCounts("/v1/orders", 0, 0)

	// Another body, while the first runs and after it.
	done := make(chan answer)
	go func() {
		done <- r.do("POST", "/v1/orders", `{"item":"tea","n":1}`, key, "a", "Content-Type", "application/json", "X-Demo-Delay", "300ms")
	}()
	r.received("/v1/orders", 1)
	want(r.do("POST", "/v1/orders", `{"item":"coffee"}`, key, "a", "Content-Type", "application/json"), 422, "idempotency-key-reused")
	want(r.do("POST", "/v1/orders", `{"n":1, "item":"tea"}`, key, "a", "Content-Type", "application/json"), 409, "idempotency-request-in-progress")
	if a := <-done; a.status != 201 {
		t.Errorf("got %v", a)
	}
	want(r.do("POST", "/v1/orders", `{"item":"coffee"}`, key, "a", "Content-Type", "application/json"), 422, "idempotency-key-reused")
	if a := r.do("POST", "/v1/orders", `{"n":1.0, "item":"t\u0065a"}`, key, `"a"`, "Content-Type", "application/json"); a.status != 201 || !a.replayed() {
		t.Errorf("the same meaning in other words: got %v", a)
	}
	r.wantCounts("/v1/orders", 1, 1)

	// Another tenant's key is another key.
	if a := r.do("POST", "/v1/orders", `{"item":"coffee"}`, key, "a", "X-Tenant-Id", "other"); a.status != 201 || a.replayed() || a.body != "{\"order_id\":2}\n" {
		t.Errorf("the other tenant: got %v", a)
	}
	r.wantCounts("/v1/orders", 2, 2)
}

// I23: the upstream dies after the effect, over connections that were used
// before, and the request is not sent again.
func TestI23NothingIsSentTwice(t *testing.T) {
	r := newRig(t, setup{})
	for i, path := range []string{"/v1/orders", "/v1/payments", "/v1/notes"} {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { r.do("GET", path, "", "X-Demo-Delay", "20ms") })
		}
		wg.Wait()
		a := r.do("POST", path, "", key, fmt.Sprint("k", i), "X-Demo-Fault", "crash-after-effect")
		if a.status != 502 || a.code() != "upstream-unreachable" || !strings.Contains(a.body, `"executed":"unknown"`) {
			t.Errorf("%s: got %v", path, a)
		}
		r.wantCounts(path, 1, 1)
	}
	// The upstream of orders knows keys: the repeat finds the order.
	if a := r.until("POST", "/v1/orders", "", key, "k0"); a.status != 201 || a.body != "{\"order_id\":1}\n" {
		t.Errorf("the repeat of an order: got %v", a)
	}
	r.wantCounts("/v1/orders", 1, 2)
	// That of payments does not: nobody guesses.
	if a := r.until("POST", "/v1/payments", "", key, "k1"); a.status != 409 || a.code() != "idempotency-outcome-unknown" {
		t.Errorf("the repeat of a payment: got %v", a)
	}
	r.wantCounts("/v1/payments", 1, 1)
}

func TestUpstreamIsAway(t *testing.T) {
	r := newRig(t, setup{upstream: "http://127.0.0.1:1"})
	for range 2 { // the key is free again
		a := r.do("POST", "/v1/payments", "", key, "a")
		if a.status != 502 || !strings.Contains(a.body, `"executed":"no"`) {
			t.Errorf("got %v", a)
		}
	}
}

func TestClientHangsUpWhileSending(t *testing.T) {
	r := newRig(t, setup{})
	c := r.dial()
	fmt.Fprint(c, "POST /v1/orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: cut\r\nContent-Length: 100\r\n\r\nten bytes.")
	c.Close()
	a := r.until("POST", "/v1/orders", "whole", key, "cut")
	if a.status != 201 || a.replayed() {
		t.Errorf("the key is not as if nothing had come: got %v", a)
	}
	if err := r.stopServer(); err != nil { // whatever was under way is over
		t.Error(err)
	}
	r.wantCounts("/v1/orders", 1, 1)
}

func TestClientHangsUpWhileWaiting(t *testing.T) {
	r := newRig(t, setup{})
	c := r.dial()
	fmt.Fprint(c, "POST /v1/orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: gone\r\nX-Demo-Delay: 200ms\r\nContent-Length: 2\r\n\r\n{}")
	r.received("/v1/orders", 1)
	c.Close()
	a := r.until("POST", "/v1/orders", "{}", key, "gone")
	if a.status != 201 || !a.replayed() {
		t.Errorf("got %v", a)
	}
	r.wantCounts("/v1/orders", 1, 1)
}

func TestKeysOutliveARestart(t *testing.T) {
	r := newRig(t, setup{})
	a := r.do("POST", "/v1/orders", "{}", key, "kept")
	if err := r.stopServer(); err != nil {
		t.Fatal(err)
	}
	s := newRig(t, setup{file: r.file})
	b := s.do("POST", "/v1/orders", "{}", key, "kept")
	if b.status != 201 || b.body != a.body || !b.replayed() {
		t.Errorf("got %v, want %v replayed", b, a)
	}
	s.wantCounts("/v1/orders", 0, 0)
}

// Two processes that start at once on one new file have one secret: each finds
// the other's keys.
func TestTwoServersShareAFile(t *testing.T) {
	a := newRig(t, setup{})
	b := newRig(t, setup{file: a.file})
	first := a.do("POST", "/v1/orders", "{}", key, "shared")
	again := b.do("POST", "/v1/orders", "{}", key, "shared")
	if !again.replayed() || again.body != first.body {
		t.Errorf("got %v, want %v replayed", again, first)
	}
	b.wantCounts("/v1/orders", 0, 0)
}

// Another secret finds no earlier key: the start says so, once.
func TestOtherSecretIsSaid(t *testing.T) {
	file := ""
	for i, tt := range []struct {
		secret string
		said   bool
	}{{"", false}, {"", false}, {"another-secret-1", true}, {"another-secret-1", false}, {"another-secret-2", true}} {
		r := newRig(t, setup{file: file, change: func(c *config.Config) { c.Secret = tt.secret }})
		file = r.file
		var out strings.Builder
		if err := r.server.Block(&out); err != nil {
			t.Fatal(err)
		}
		if said := strings.Contains(out.String(), "the secret is not the one"); said != tt.said {
			t.Errorf("start %d: said %v, want %v", i, said, tt.said)
		}
		if err := r.stopServer(); err != nil {
			t.Error(err)
		}
	}
}

func TestMemoryStore(t *testing.T) {
	r := newRig(t, setup{yaml: "\nsecret: a-secret-of-the-test\n", change: memory})
	a := r.do("POST", "/v1/orders", "{}", key, "m")
	b := r.do("POST", "/v1/orders", "{}", key, "m")
	if a.status != 201 || !b.replayed() || a.body != b.body {
		t.Errorf("got %v, then %v", a, b)
	}
	var out strings.Builder
	if err := r.server.Block(&out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "LOST AT A RESTART") {
		t.Error(out.String())
	}
}

func TestStreamedAnswer(t *testing.T) {
	r := newRig(t, setup{})
	for _, k := range []string{"", "stream"} {
		req := r.request("POST", "/_test/events?n=3&every=150ms", "{}", key, k)
		res, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		n, err := res.Body.Read(b)
		if err != nil || !strings.HasPrefix(string(b[:n]), "data: 1\n\n") || strings.Contains(string(b[:n]), "data: 3") {
			t.Errorf("key %q: the first piece is %q, %v", k, b[:n], err)
		}
		rest, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || !strings.HasSuffix(string(rest), "data: 3\n\n") {
			t.Errorf("key %q: the rest is %q, %v", k, rest, err)
		}
	}
	if a := r.until("POST", "/_test/events?n=3&every=150ms", "{}", key, "stream"); !a.replayed() || a.body != "data: 1\n\ndata: 2\n\ndata: 3\n\n" {
		t.Errorf("the replay: got %v", a)
	}
}
