package serve

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
)

func memory(c *config.Config) { c.Store = config.StoreURL{Kind: "memory"} }

// request makes a request; an empty value leaves its field out.
func (r *rig) request(method, path, body string, fields ...string) *http.Request {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i+1] != "" {
			req.Header.Set(fields[i], fields[i+1])
		}
	}
	return req
}

// zeros is a body of n bytes that is not in memory.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func (r *rig) upload(n int64, known bool, k string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), "POST", r.url+"/_test/upload", io.LimitReader(zeros{}, n))
	if err != nil {
		r.t.Fatal(err)
	}
	if known {
		req.ContentLength = n
	}
	if k != "" {
		req.Header.Set(key, k)
	}
	res, err := r.client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(b), err}
}

func TestUpload(t *testing.T) {
	r := newRig(t, setup{change: memory})
	const most = 100 << 20
	for _, known := range []bool{true, false} {
		if a := r.upload(most, known, ""); a.status != 200 || a.body != fmt.Sprintf("{\"bytes\":%d}\n", most) {
			t.Errorf("without a key: got %v", a)
		}
	}
	if a := r.upload(20<<20, true, "file"); a.status != 200 || a.body != fmt.Sprintf("{\"bytes\":%d}\n", 20<<20) {
		t.Errorf("with a key: got %v", a)
	}
	if a := r.upload(20<<20, false, "file"); a.status != 200 || !a.replayed() {
		t.Errorf("again: got %v", a)
	}
	if a := r.upload(most+1, false, ""); a.status != 413 || a.code() != "request-too-large" {
		t.Errorf("too large, of unknown length: got %v", a)
	}
	if a := r.upload(most+1, true, ""); a.status != 413 || a.code() != "request-too-large" {
		t.Errorf("too large: got %v", a)
	}
}

func TestLargeAnswer(t *testing.T) {
	r := newRig(t, setup{change: memory})
	const n = 5 << 20
	if a := r.do("GET", "/_test/big?bytes="+strconv.Itoa(n), ""); a.status != 200 || len(a.body) != n {
		t.Errorf("got %d, %d bytes, %v", a.status, len(a.body), a.err)
	}
	path := "/_test/big?bytes=" + strconv.Itoa(n)
	if a := r.do("POST", path, "", key, "big"); a.status != 200 || len(a.body) != n {
		t.Errorf("with a key: got %d, %d bytes, %v", a.status, len(a.body), a.err)
	}
	if a := r.do("POST", path, "", key, "big"); a.status != 409 || a.code() != "idempotency-response-not-kept" || !strings.Contains(a.body, `"original_status":200`) {
		t.Errorf("again: got %v", a)
	}
}

func TestWebSocket(t *testing.T) {
	r := newRig(t, setup{change: memory})
	c := r.dial()
	// The example of RFC 6455, section 1.3. A key has no meaning here.
	fmt.Fprint(c, "GET /_test/socket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nIdempotency-Key: ignored\r\n\r\n")
	b := bufio.NewReader(c)
	res, err := http.ReadResponse(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != 101 || res.Header.Get("Sec-Websocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Fatalf("got %s %v", res.Status, res.Header)
	}
	for _, msg := range []string{"hello", strings.Repeat("long", 100)} {
		mask := [4]byte{1, 2, 3, 4}
		frame := []byte{0x81}
		if len(msg) < 126 {
			frame = append(frame, 0x80|byte(len(msg)))
		} else {
			frame = append(frame, 0x80|126, byte(len(msg)>>8), byte(len(msg)))
		}
		frame = append(frame, mask[:]...)
		for i := range len(msg) {
			frame = append(frame, msg[i]^mask[i%4])
		}
		if _, err := c.Write(frame); err != nil {
			t.Fatal(err)
		}
		want := append([]byte{0x81}, frame[1:len(frame)-4-len(msg)]...)
		want[1] &= 0x7f
		want = append(want, msg...)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
}

// T5: rate 10/s, burst 20: at once 20, then 10 per second on average, and each
// Retry-After is enough and less than a second too much.
func TestT5BurstThenRate(t *testing.T) {
	r := newRig(t, setup{change: memory})
	const rate, burst = 10, 20
	get := func() answer { return r.do("GET", "/v1/limited", "", "X-Api-Key", "t5") }
	begin := time.Now()
	passed, first := 0, -1
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for time.Since(begin) < 1500*time.Millisecond {
		sent := time.Now()
		a := get()
		switch a.status {
		case 200:
			passed++
			if most := burst + int(rate*time.Since(begin).Seconds()); passed > most {
				t.Fatalf("%d passed in %v, at most %d may", passed, time.Since(begin), most)
			}
		case 429:
			if first < 0 {
				first = passed
			}
			// The next token is there in at most 100 ms: the whole second,
			// rounded up, is 1.
			if a.code() != "quota-exceeded" || a.header.Get("Retry-After") != "1" || a.header.Get("RateLimit-Policy") != `"limited";q=20;w=2` || a.header.Get("RateLimit") != `"limited";r=0;t=1` {
				t.Fatalf("got %v %v", a, a.header)
			}
			var p struct {
				Retryable bool
				Violated  []string `json:"violated-policies"`
			}
			if err := json.Unmarshal([]byte(a.body), &p); err != nil || !p.Retryable || len(p.Violated) != 1 || p.Violated[0] != "limited" {
				t.Fatalf("got %v", a)
			}
		default:
			t.Fatalf("got %v after %v", a, time.Since(sent))
		}
		<-tick.C
	}
	if first < burst {
		t.Errorf("%d passed at once, want %d", first, burst)
	}
	if least := burst + int(rate*1.5) - 2; passed < least {
		t.Errorf("%d passed, at least %d should", passed, least)
	}
	for get().status != 429 { // spend what is left
	}
	r.wait(time.Second)
	if a := get(); a.status != 200 {
		t.Errorf("after Retry-After: got %v", a)
	}
	// Another caller has a bucket of its own.
	if a := r.do("GET", "/v1/limited", "", "X-Api-Key", "other"); a.status != 200 {
		t.Errorf("another caller: got %v", a)
	}
}

func TestSearchIsLimitedByTenant(t *testing.T) {
	r := newRig(t, setup{change: memory})
	for i := range 11 {
		a := r.do("GET", "/search?q=x", "", "X-Tenant-Id", "a")
		if want := map[bool]int{true: 200, false: 429}[i < 10]; a.status != want {
			t.Errorf("request %d: got %v, want %d", i+1, a, want)
		}
	}
	if a := r.do("GET", "/search?q=x", "", "X-Tenant-Id", "b"); a.status != 200 {
		t.Errorf("another tenant: got %v", a)
	}
}

// A replay costs nothing where a limit counts executions.
func TestExecutionsAreCharged(t *testing.T) {
	r := newRig(t, setup{change: memory, yaml: "  - {name: new, routes: [POST /v1/orders], by: [tenant], rate: 1/h, charge: executions}\n"})
	for i := range 3 {
		if a := r.do("POST", "/v1/orders", "", key, "a"); a.status != 201 || a.replayed() != (i > 0) {
			t.Errorf("got %v", a)
		}
	}
	a := r.do("POST", "/v1/orders", "", key, "b")
	if a.status != 429 {
		t.Errorf("a second execution: got %v", a)
	}
	r.wantCounts("/v1/orders", 1, 1)
}
