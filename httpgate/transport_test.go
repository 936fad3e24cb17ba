package httpgate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// dying is an upstream that answers GETs, keeps its connections, and executes a
// POST and then closes the connection without an answer.
type dying struct {
	l        net.Listener
	executed atomic.Int32
	mu       sync.Mutex
	heads    []string
}

func newDying(t *testing.T) *dying {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &dying{l: l}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { d.serve(conn) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return d
}

func (d *dying) serve(conn net.Conn) {
	defer conn.Close()
	b := bufio.NewReader(conn)
	for {
		var head strings.Builder
		for {
			line, err := b.ReadString('\n')
			if err != nil {
				return
			}
			head.WriteString(line)
			if line == "\r\n" {
				break
			}
		}
		if strings.HasPrefix(head.String(), "POST") {
			d.mu.Lock()
			d.heads = append(d.heads, head.String())
			d.mu.Unlock()
			d.executed.Add(1)
			return
		}
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
}

func (d *dying) url() *url.URL { return &url.URL{Scheme: "http", Host: d.l.Addr().String()} }

// warm makes n idle connections.
func warm(t *testing.T, h http.Handler, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			if w.Code != 200 {
				t.Errorf("warming up: %d", w.Code)
			}
		})
	}
	wg.Wait()
}

// I23: a keyed request whose upstream executes it and then closes the
// connection is sent once, though net/http would send it again on each
// connection that it had used before.
func TestI23KeyedRequestsAreSentOnce(t *testing.T) {
	newProxy := func(u *url.URL, tr http.RoundTripper) *httputil.ReverseProxy {
		return &httputil.ReverseProxy{
			Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(u) },
			Transport: tr,
			ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
				w.WriteHeader(502)
			},
		}
	}
	t.Run("the plain proxy repeats", func(t *testing.T) { // else this test could not fail
		up := newDying(t)
		tr := &http.Transport{MaxIdleConnsPerHost: 8}
		defer tr.CloseIdleConnections()
		p := newProxy(up.url(), tr)
		warm(t, p, 3)
		req := httptest.NewRequest("POST", "/v1/orders", nil)
		req.Header.Set(KeyField, "k")
		p.ServeHTTP(httptest.NewRecorder(), req)
		if n := up.executed.Load(); n < 2 {
			t.Errorf("executed %d times", n)
		}
	})
	for _, unknown := range []idempotency.OnUnknown{idempotency.Hold, idempotency.Retry, idempotency.Probe} {
		for _, body := range []string{"", "{}"} {
			t.Run(fmt.Sprintf("%v %q", unknown, body), func(t *testing.T) {
				up := newDying(t)
				tr := NewTransport(&http.Transport{MaxIdleConnsPerHost: 8})
				defer tr.CloseIdleConnections()
				p := newProxy(up.url(), tr)
				r := newRig(t, p.ServeHTTP, func(c *Config, _ *escapement.Options) {
					c.Keys.Policy = policyWith(func(p *escapement.Policy) { p.Terms.OnUnknown = unknown })
				})
				p.ErrorHandler = r.m.UpstreamError
				warm(t, p, 3)
				rep := r.post("/v1/orders", "k", body)
				if p := rep.problem(t, 502, "upstream-unreachable"); p["executed"] != "unknown" {
					t.Error(p)
				}
				if n := up.executed.Load(); n != 1 {
					t.Errorf("executed %d times", n)
				}
				if unknown == idempotency.Hold {
					r.post("/v1/orders", "k", body).problem(t, 409, "idempotency-outcome-unknown")
				} else {
					r.post("/v1/orders", "k", body).problem(t, 409, "idempotency-request-in-progress") // quiet time
				}
				if n := up.executed.Load(); n != 1 {
					t.Errorf("executed %d times by the repeat", n)
				}
				head := up.heads[0]
				if !strings.Contains(strings.ToLower(head), "\r\nidempotency-key: k\r\n") || !strings.Contains(head, "Accept-Encoding: identity") {
					t.Errorf("the upstream was sent\n%s", head)
				}
				if strings.Contains(head, "Connection: close") != (unknown != idempotency.Retry) {
					t.Errorf("the upstream was sent\n%s", head)
				}
			})
		}
	}
	t.Run("a key without a record", func(t *testing.T) { // mode off, or no Middleware
		up := newDying(t)
		tr := NewTransport(&http.Transport{MaxIdleConnsPerHost: 8})
		defer tr.CloseIdleConnections()
		p := newProxy(up.url(), tr)
		warm(t, p, 3)
		for _, name := range []string{KeyField, "X-Idempotency-Key"} {
			up.executed.Store(0)
			req := httptest.NewRequest("POST", "/v1/orders", nil)
			req.Header.Set(name, "k")
			p.ServeHTTP(httptest.NewRecorder(), req)
			if n := up.executed.Load(); n != 1 || req.Header.Get(name) != "k" {
				t.Errorf("%s: executed %d times, the caller's header is %v", name, n, req.Header)
			}
		}
	})
}

// proxyTo returns a proxy to the upstream, through a Transport of its own.
func proxyTo(t *testing.T, upstream string) *httputil.ReverseProxy {
	t.Helper()
	u, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	tr := NewTransport(nil)
	t.Cleanup(tr.CloseIdleConnections)
	return &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(u) }, Transport: tr}
}

func TestUpstreamUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close() // nobody listens there any more
	p := proxyTo(t, "http://"+addr)
	r := newRig(t, p.ServeHTTP, nil)
	p.ErrorHandler = r.m.UpstreamError
	for range 2 {
		rep := r.post("/x", "k", "{}")
		if p := rep.problem(t, 502, "upstream-unreachable"); p["executed"] != "no" {
			t.Error(p)
		}
		if r.recordCount() != 0 {
			t.Error("the key is not free again")
		}
	}
	if p := r.do("GET", "/x", "").problem(t, 502, "upstream-unreachable"); p["executed"] != "no" {
		t.Error(p)
	}
}

func TestUpstreamTimeout(t *testing.T) {
	hang := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer up.Close()
	defer close(hang)
	p := proxyTo(t, up.URL)
	r := newRig(t, p.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Keys.Policy = policyWith(func(p *escapement.Policy) { p.Timeout = 100 * time.Millisecond })
	})
	p.ErrorHandler = r.m.UpstreamError
	if p := r.post("/x", "k", "{}").problem(t, 504, "upstream-timeout"); p["executed"] != "unknown" {
		t.Error(p)
	}
	r.post("/x", "k", "{}").problem(t, 409, "idempotency-outcome-unknown")
}

// F8: an attempt that does not own its key any more sends nothing.
func TestNothingIsSentWithoutTheKey(t *testing.T) {
	var received atomic.Int32
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { received.Add(1) }))
	defer up.Close()
	p := proxyTo(t, up.URL)
	var r *rig
	r = newRig(t, func(w http.ResponseWriter, req *http.Request) {
		<-time.After(100 * time.Millisecond) // long after the lease
		r.clock.move(100 * time.Millisecond)
		p.ServeHTTP(w, req)
	}, func(c *Config, o *escapement.Options) {
		o.RecordsDeadline = 50 * time.Millisecond
		c.Keys.Policy = policyWith(func(p *escapement.Policy) { p.Terms.Lease = 20 * time.Millisecond })
	})
	p.ErrorHandler = r.m.UpstreamError
	r.records.setExtend(errAway)
	r.post("/x", "k", "{}").problem(t, 503, "store-unavailable")
	r.records.setExtend(nil)
	if n := received.Load(); n != 0 {
		t.Errorf("sent %d times", n)
	}
	r.post("/x", "k", "{}").want(t, 200, "")
	if n := received.Load(); n != 1 {
		t.Errorf("sent %d times", n)
	}
}

// The program's whole path: proxy, key passed on, answers byte by byte.
func TestProxyPassesOn(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Seen-Key", strings.Join(r.Header[KeyField], "|"))
		w.Header().Set("X-Seen-Encoding", r.Header.Get("Accept-Encoding"))
		w.Header().Set("X-Seen-Upgrade", r.Header.Get("Upgrade"))
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprintf(w, "%d %s", r.ContentLength, body)
		w.Header().Set("X-Sum", "7")
	}))
	defer up.Close()
	p := proxyTo(t, up.URL)
	r := newRig(t, p.ServeHTTP, nil)
	p.ErrorHandler = r.m.UpstreamError
	first := r.post("/x", `"k";a=1`, "hello", "Accept-Encoding", "gzip", "Connection", "Upgrade", "Upgrade", "h2c")
	first.want(t, 200, "5 hello")
	if first.header.Get("X-Seen-Key") != `"k";a=1` || first.header.Get("X-Seen-Encoding") != "identity" || first.header.Get("X-Seen-Upgrade") != "" || first.trailer.Get("X-Sum") != "7" {
		t.Error(first.header, first.trailer)
	}
	again := r.post("/x", "k", "hello")
	again.replayed(t, first)
	if again.trailer.Get("X-Sum") != "7" {
		t.Error(again.trailer)
	}
	if rep := r.do("POST", "/x", "", "Accept-Encoding", "br"); rep.header.Get("X-Seen-Encoding") != "br" {
		t.Error(rep.header)
	}
}

// A broken answer of the upstream is never final, and breaks the client's too.
func TestProxyBrokenUpstreamAnswer(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer up.Close()
	p := proxyTo(t, up.URL)
	r := newRig(t, p.ServeHTTP, nil)
	if rep, err := r.try("POST", "/x", nil, KeyField, "k"); err == nil && rep.err == nil {
		t.Errorf("the client has an answer: %d %q", rep.status, rep.body)
	}
	r.post("/x", "k", "").problem(t, 409, "idempotency-outcome-unknown")
}

func TestUpstreamErrorOfAnUnkeyedBody(t *testing.T) {
	r := newRig(t, func(http.ResponseWriter, *http.Request) {}, nil)
	for err, want := range map[error]int{
		&http.MaxBytesError{Limit: 10}: 413, context.DeadlineExceeded: 504, errors.New("x"): 502, ErrNotSent: 502,
	} {
		w := httptest.NewRecorder()
		r.m.UpstreamError(w, httptest.NewRequest("POST", "/", nil), fmt.Errorf("wrapped: %w", err))
		if w.Code != want {
			t.Errorf("%v: %d, want %d", err, w.Code, want)
		}
	}
}

// closedAtItsEnd gives all its bytes and the end at once, and is closed then, as
// the body of a server's request is when the answer begins.
type closedAtItsEnd struct{ left string }

func (b *closedAtItsEnd) Read(p []byte) (int, error) {
	if b.left == "" {
		return 0, http.ErrBodyReadAfterClose
	}
	n := copy(p, b.left)
	if b.left = b.left[n:]; b.left == "" {
		return n, io.EOF
	}
	return n, nil
}

func (b *closedAtItsEnd) Close() error { return nil }

// The upstream streams; the body was closed right after its last byte.
func TestAnswerIsNotCutByTheBodysEnd(t *testing.T) {
	goOn := make(chan struct{}, 2)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "one")
		http.NewResponseController(w).Flush()
		select {
		case <-goOn:
			io.WriteString(w, " two")
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	tr := NewTransport(nil)
	defer tr.CloseIdleConnections()
	for _, length := range []int64{2, -1} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL, &closedAtItsEnd{"{}"})
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		wrote := make(chan error, 1)
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			WroteRequest: func(i httptrace.WroteRequestInfo) { wrote <- i.Err },
		}))
		res, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-wrote; err != nil {
			t.Errorf("length %d: the request was not sent whole: %v", length, err)
		}
		goOn <- struct{}{}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(b) != "one two" {
			t.Errorf("length %d: got %q, %v", length, b, err)
		}
	}
}
