package httpgate

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/ratelimit"
)

func TestSpool(t *testing.T) {
	for _, n := range []int{0, 1, 15, 16, 17, 100, 100_000} {
		for _, expect := range []int64{-1, int64(n), int64(n) + 5} {
			want := bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n]
			for name, r := range map[string]io.Reader{
				"whole": bytes.NewReader(want), "bytes": iotest.OneByteReader(bytes.NewReader(want)), "with EOF": iotest.DataErrReader(bytes.NewReader(want)),
			} {
				dir := t.TempDir()
				s, err := readSpool(r, expect, 16, dir)
				if err != nil {
					t.Fatal(err)
				}
				for range 2 { // it can be read again
					have, err := io.ReadAll(s.body())
					if err != nil || !bytes.Equal(have, want) || s.size != int64(n) {
						t.Fatalf("%s, %d bytes: have %d, %v", name, n, len(have), err)
					}
				}
				var seen bytes.Buffer
				if err := s.copyTo(&seen); err != nil || !bytes.Equal(seen.Bytes(), want) {
					t.Errorf("%s, %d bytes: %d were hashed, %v", name, n, seen.Len(), err)
				}
				if (s.file != nil) != (n > 16) {
					t.Errorf("%d bytes of 16: file %v", n, s.file)
				}
				s.close()
				if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
					t.Errorf("left behind: %v, %v", left, err)
				}
			}
		}
	}
	if _, err := readSpool(strings.NewReader(strings.Repeat("x", 100)), -1, 16, "/does/not/exist"); !errors.Is(err, errSpoolFile) {
		t.Error(err)
	}
	if _, err := readSpool(io.MultiReader(strings.NewReader(strings.Repeat("x", 100)), iotest.ErrReader(io.ErrUnexpectedEOF)), -1, 16, t.TempDir()); !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errSpoolFile) {
		t.Error(err)
	}
}

func TestHandlerGetsTheWholeBody(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, err := io.Copy(sum, r.Body)
		if err != nil {
			t.Error(err)
		}
		if err := r.Body.Close(); err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, "%d %d %v %v %x %q %q", r.ContentLength, n, r.GetBody == nil, r.TransferEncoding, sum.Sum(nil), r.Trailer.Get("X-Sum"), r.Header.Get("Expect"))
	}, nil)
	for _, n := range []int{0, 10, 64 << 10, 64<<10 + 1, 3_000_000} {
		body := strings.Repeat("abcdefg", n/7+1)[:n]
		want := fmt.Sprintf("%d %d true [] %x %q %q", n, n, sha256.Sum256([]byte(body)), "", "")
		for i, send := range []func(key string) reply{
			func(key string) reply { return r.post("/x", key, body) },
			func(key string) reply { // of unknown length
				rep, err := r.try("POST", "/x", io.MultiReader(strings.NewReader(body)), KeyField, key)
				if err != nil {
					t.Fatal(err)
				}
				return rep
			},
			func(key string) reply { return r.post("/x", key, body, "Expect", "100-continue") },
		} {
			key := fmt.Sprintf("k-%d-%d", n, i)
			first := send(key)
			first.want(t, 200, want)
			send(key).replayed(t, first)
		}
	}
	if left, err := os.ReadDir(r.m.c.SpoolDir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// Trailers of the request are passed on, with the length unknown.
	req, err := http.NewRequest("POST", r.srv.URL+"/x", io.MultiReader(strings.NewReader("abc")))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(KeyField, "trailer")
	req.Header.Set("X-Tenant", "acme")
	req.Trailer = http.Header{"X-Sum": {"77"}}
	res, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if want := fmt.Sprintf("-1 3 true [chunked] %x %q %q", sha256.Sum256([]byte("abc")), "77", ""); err != nil || string(b) != want {
		t.Errorf("have %s, want %s, %v", b, want, err)
	}
}

func TestRequestTooLarge(t *testing.T) {
	var c counter
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			var tooLarge *http.MaxBytesError
			if !errors.As(err, &tooLarge) {
				t.Error(err)
			}
			c2 := w
			c2.WriteHeader(413)
			return
		}
		c.ServeHTTP(w, req)
	}, func(c *Config, _ *escapement.Options) { c.MaxRequest = 100_000 })
	fits, over := strings.Repeat("x", 100_000), strings.Repeat("x", 100_001)
	chunked := func(body, key string) reply {
		t.Helper()
		fields := []string{KeyField, key}
		if key == "" {
			fields = nil
		}
		rep, err := r.try("POST", "/x", io.MultiReader(strings.NewReader(body)), fields...)
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	r.post("/x", "k1", over).problem(t, 413, "request-too-large")
	chunked(over, "k2").problem(t, 413, "request-too-large")
	r.do("POST", "/x", over).problem(t, 413, "request-too-large")
	if rep := chunked(over, ""); rep.status != 413 {
		t.Error(rep)
	}
	if c.calls() != 0 || r.recordCount() != 0 {
		t.Fatalf("%d calls, %d records", c.calls(), r.recordCount())
	}
	for _, rep := range []reply{r.post("/x", "k3", fits), chunked(fits, "k4"), r.do("POST", "/x", fits), chunked(fits, "")} {
		if rep.status != 201 {
			t.Errorf("%d %s", rep.status, rep.body)
		}
	}
}

// The limits on requests are asked before a large body, or one that waits for
// 100 Continue, is read.
func TestLimitsBeforeTheBody(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Limits = []Limit{
			{Rule: ratelimit.Rule{Name: "exec", Quota: 5, Window: time.Hour}, Kind: ratelimit.Executions},
			{Rule: ratelimit.Rule{Name: "req", Quota: 1, Window: time.Hour}},
		}
	})
	first := r.post("/x", "k", strings.Repeat("x", 100_000))
	first.want(t, 201, "{\"order_id\":1}\n")
	if have := first.header.Get("RateLimit"); !strings.HasPrefix(have, `"req";r=0;`) || !strings.Contains(have, `"exec";r=4;`) {
		t.Errorf("RateLimit: %s", have)
	}
	for _, head := range []string{"Content-Length: 70000\r\n", "Transfer-Encoding: chunked\r\n", "Content-Length: 5\r\nExpect: 100-continue\r\n"} {
		conn, err := net.Dial("tcp", r.srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		// No byte of the body is sent: the refusal cannot wait for one.
		fmt.Fprintf(conn, "POST /x HTTP/1.1\r\nHost: h\r\nX-Tenant: acme\r\nIdempotency-Key: k2\r\n%s\r\n", head)
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.Contains(line, "429") {
			t.Errorf("%q: %q, %v", head, line, err)
		}
	}
}

func TestBodyCutInTheMiddle(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, nil)
	for _, c := range []struct{ head, body, want string }{
		{"Content-Length: 10\r\n", "12345", "400"},
		{"Content-Length: 100000\r\n", strings.Repeat("x", 90000), "400"},
		{"Transfer-Encoding: chunked\r\n", "5\r\n12345\r\n", "400"},
		{"Transfer-Encoding: chunked\r\n", "5\r\n123", "400"},
		{"Transfer-Encoding: chunked\r\n", "nonsense\r\n", "400"},
	} {
		conn, err := net.Dial("tcp", r.srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /x HTTP/1.1\r\nHost: h\r\nX-Tenant: acme\r\nIdempotency-Key: k\r\n%s\r\n%s", c.head, c.body)
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil { // it still listens
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%q: %v", c.head, err)
		}
		b, err := io.ReadAll(res.Body)
		if res.StatusCode != 400 || err != nil || !strings.Contains(string(b), "request-incomplete") {
			t.Errorf("%q: %d %s %v", c.head, res.StatusCode, b, err)
		}
	}
	if c.calls() != 0 || r.recordCount() != 0 {
		t.Fatalf("%d calls, %d records", c.calls(), r.recordCount())
	}
	r.post("/x", "k", "12345").want(t, 201, "{\"order_id\":1}\n")
}

func TestSpoolDiskIsAway(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, nil)
	if err := os.Remove(r.m.c.SpoolDir); err != nil {
		t.Fatal(err)
	}
	if p := r.post("/x", "k", strings.Repeat("x", 70_000)).problem(t, 503, "temporary-reduced-capacity"); p["retryable"] != true {
		t.Error(p)
	}
	r.post("/x", "k", strings.Repeat("x", 64<<10)).want(t, 201, "{\"order_id\":1}\n")
}

func TestBodyTooSlow(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, nil)
	inner := r.srv.Config.Handler
	r.srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Error(err)
		}
		inner.ServeHTTP(w, req)
	})
	conn, err := net.Dial("tcp", r.srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /x HTTP/1.1\r\nHost: h\r\nX-Tenant: acme\r\nIdempotency-Key: k\r\nContent-Length: 10\r\n\r\n12345")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if res.StatusCode != 408 || err != nil || !strings.Contains(string(b), "request-incomplete") || c.calls() != 0 {
		t.Errorf("%d %s %v, %d calls", res.StatusCode, b, err, c.calls())
	}
}

// A handler that was left behind after its time-out still has its body.
func TestBodyOfALeftBehindHandler(t *testing.T) {
	leave := make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		<-leave
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	}, func(c *Config, _ *escapement.Options) {
		c.Keys.Policy = policyWith(func(p *escapement.Policy) { p.Timeout = 50 * time.Millisecond })
	})
	body := strings.Repeat("x", 200_000)
	r.post("/x", "k", body).problem(t, 504, "upstream-timeout")
	close(leave)
	var rep reply
	eventually(t, "the late answer is recorded", func() bool {
		rep = r.post("/x", "k", body)
		return rep.status == 200
	})
	rep.want(t, 200, "200000 <nil>")
}

func TestRequestWithoutServer(t *testing.T) { // no body at all, and a recorder
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") }, nil)
	for range 2 {
		req, err := http.NewRequest("POST", "/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Tenant", "acme")
		req.Header.Set(KeyField, "k")
		w := httptest.NewRecorder()
		r.srv.Config.Handler.ServeHTTP(w, req)
		if w.Code != 200 || w.Body.String() != "ok" {
			t.Error(w)
		}
	}
}
