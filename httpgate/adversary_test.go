package httpgate

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// All spellings of one path share the bucket of their route.
func TestSpellingsShareARoutesBucket(t *testing.T) {
	h := &counter{}
	r := newRig(t, h.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Limits = []Limit{{
			Rule:   ratelimit.Rule{Name: "r", Quota: 1, Window: time.Hour},
			Routes: []string{"POST /v1/orders"}, By: []string{"route"},
		}}
	})
	if rep := r.do("POST", "/v1/orders", "{}"); rep.status != http.StatusCreated {
		t.Fatal(rep)
	}
	for _, p := range []string{
		"/v1/orders", "/v1//orders/", "/v1/orders/", "//v1/orders", "/v1/orders;x", "/v1/orders;x/", "/v1%2Forders/", "/v1/x/../orders/",
	} {
		r.do("POST", p, "{}").problem(t, http.StatusTooManyRequests, "quota-exceeded")
	}
}

// A field that says who is calling counts only if there is one of it: what
// stands behind takes the first or the last, and would see another caller than
// the one whose bucket was charged and whose key it was.
func TestCallersFieldTwice(t *testing.T) {
	h := &counter{}
	r := newRig(t, h.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Identity.User = MustSources("hash:Authorization")
		c.Limits = []Limit{{Rule: ratelimit.Rule{Name: "r", Quota: 1, Window: time.Hour}, By: []string{"api_key"}}}
	})
	for _, name := range []string{"X-Tenant", "X-Api-Key", "Authorization"} {
		req, err := http.NewRequest("POST", r.srv.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"X-Tenant": {"a"}, "X-Api-Key": {"a"}, "Authorization": {"a"}, KeyField: {"k"}}
		req.Header[name] = []string{"a", "b"}
		res, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("%s twice: %d", name, res.StatusCode)
		}
	}
	if h.calls() != 0 || r.recordCount() != 0 {
		t.Errorf("%d calls, %d records", h.calls(), r.recordCount())
	}
}

// What Connection names is not passed on, and so decides nothing either.
func TestFieldsOfOneHop(t *testing.T) {
	var seen []http.Header
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) { seen = append(seen, r.Header) }, nil)
	r.post("/", "k", "", "Connection", "close, idempotency-key").problem(t, 400, "idempotency-key-malformed")
	r.post("/", "k", "", "Connection", "x-tenant").problem(t, 400, "caller-unknown")
	if len(seen) != 0 || r.recordCount() != 0 {
		t.Fatalf("%v, %d records", seen, r.recordCount())
	}
	r.post("/", "k", "", "Connection", "X-Hop", "X-Hop", "1", "X-End", "2").want(t, 200, "")
	if len(seen) != 1 || seen[0].Get("X-Hop") != "" || seen[0].Get("X-End") != "2" || seen[0].Get(KeyField) != "k" {
		t.Error(seen)
	}
}

// A replay has no field that the first answer had not: an answer that was
// flushed before its first byte has no content type, and none is guessed later.
func TestReplayGuessesNoContentType(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		w.Write([]byte("hello"))
	}, nil)
	first := r.post("/", "k", "")
	again := r.post("/", "k", "")
	again.replayed(t, first)
	if a, b := first.header["Content-Type"], again.header["Content-Type"]; len(a) != 0 || len(b) != 0 {
		t.Errorf("first %q, then %q", a, b)
	}
}

// What is never replayed as a field is not replayed as a trailer either.
func TestReplayedTrailers(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum, Set-Cookie")
		w.Write([]byte("hello"))
		for _, name := range []string{"Set-Cookie", "X-Sum"} {
			w.Header().Set(name, "1")
		}
	}, nil)
	if rep := r.post("/", "k", ""); rep.trailer.Get("Set-Cookie") != "1" || rep.trailer.Get("X-Sum") != "1" {
		t.Errorf("first: %v", rep.trailer)
	}
	if rep := r.post("/", "k", ""); rep.trailer.Get("Set-Cookie") != "" || rep.trailer.Get("X-Sum") != "1" {
		t.Errorf("replay: %v", rep.trailer)
	}
}

// A client that does not read its answer makes nobody wait for its operation's
// outcome, and does not make it unknown: the answer is whole, and recorded.
func TestClientThatDoesNotRead(t *testing.T) {
	whole := strings.Repeat("0123456789abcdef", 1<<20)
	for _, declared := range []bool{false, true} {
		t.Run(fmt.Sprintf("declared=%v", declared), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
				if declared {
					w.Header().Set("Content-Length", strconv.Itoa(len(whole)))
				}
				for rest := whole; rest != ""; rest = rest[32<<10:] {
					io.WriteString(w, rest[:32<<10])
					if r.Context().Err() != nil { // as a proxy does
						panic(http.ErrAbortHandler)
					}
				}
			}, func(c *Config, _ *escapement.Options) {
				c.Keys.MaxAnswer = LargestMaxAnswer
				c.Keys.Policy = policyWith(func(p *escapement.Policy) { p.Timeout = 8 * time.Second })
			})
			conn, err := net.Dial("tcp", r.srv.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nX-Tenant: acme\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
			eventually(t, "the outcome", func() bool {
				return r.recordCount() == 1 && r.record().State != idempotency.Held
			})
			if rep := r.post("/", "k", ""); rep.status != 200 || rep.body != whole || rep.header.Get(ReplayedField) != "true" {
				t.Errorf("%d, %d bytes", rep.status, len(rep.body))
			}
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(res.Body); err == nil {
				t.Errorf("the cut answer looks whole: %d bytes", len(b))
			}
			res.Body.Close()
		})
	}
}

// A pattern that no request can match is a fault: its limit would silently not
// apply.
func TestPatternsThatNeverMatch(t *testing.T) {
	for _, s := range []string{
		"post /a", "Post /a", "EXAMPLE.com/a", "POST Example.com/a", "example.com:8080/a", "example.com./a", "[::1]:80/a", "/a?x=1", "GET /a#b",
	} {
		if _, err := newPatterns([]string{s}); err == nil {
			t.Errorf("%q is accepted", s)
		}
	}
	for _, s := range []string{"POST /a", "/", "POST  /a", "example.com/", "GET example.com/{x}", "[::1]/a", "127.0.0.1/a", "/a;v=1", "/Ä/{x...}"} {
		if _, err := newPatterns([]string{s}); err != nil {
			t.Error(err)
		}
	}
}

// Of a body that went on as it came, and turned out too large, nobody says that
// nothing was executed.
func TestTooLargeOnItsWay(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	defer up.Close()
	u, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	tr := NewTransport(nil)
	defer tr.CloseIdleConnections()
	p := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(u) }, Transport: tr}
	r := newRig(t, p.ServeHTTP, func(c *Config, _ *escapement.Options) { c.MaxRequest = 1000 })
	p.ErrorHandler = r.m.UpstreamError
	rep, err := r.try("POST", "/", io.MultiReader(strings.NewReader(strings.Repeat("x", 2000)))) // of unknown length
	if err != nil {
		t.Fatal(err)
	}
	if p := rep.problem(t, http.StatusRequestEntityTooLarge, "request-too-large"); strings.Contains(p["detail"].(string), "Nothing was executed") {
		t.Error(p)
	}
}

// F8 counts when the request is written, not when a connection is asked for:
// one that was long in coming is not used if the lease is over by then.
func TestNothingIsSentOverALateConnection(t *testing.T) {
	var received atomic.Int32
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { received.Add(1) }))
	defer up.Close()
	u, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	var r *rig
	slow := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		<-time.After(100 * time.Millisecond) // long after the lease
		r.clock.move(100 * time.Millisecond)
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	for _, unknown := range []idempotency.OnUnknown{idempotency.Retry, idempotency.Hold} {
		tr := NewTransport(slow)
		defer tr.CloseIdleConnections()
		p := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(u) }, Transport: tr}
		r = newRig(t, p.ServeHTTP, func(c *Config, o *escapement.Options) {
			o.RecordsDeadline = 50 * time.Millisecond
			c.Keys.Policy = policyWith(func(p *escapement.Policy) {
				p.Terms.Lease, p.Terms.OnUnknown = 20*time.Millisecond, unknown
			})
		})
		p.ErrorHandler = r.m.UpstreamError
		r.records.setExtend(errAway)
		for _, body := range []string{"", "{}"} {
			r.post("/x"+body, "k", body).problem(t, 503, "store-unavailable")
		}
		r.records.setExtend(nil)
		if n := received.Load(); n != 0 {
			t.Fatalf("sent %d times", n)
		}
		r.post("/x", "k", "").want(t, 200, "")
		received.Store(0)
	}
}
