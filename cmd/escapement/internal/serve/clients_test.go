package serve

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
)

// quick is a pace that loses patience soon.
var quick = pace{grace: 150 * time.Millisecond, stall: 150 * time.Millisecond, rate: 1 << 20}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// closed waits until the other side closes.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, c)
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		t.Error("the connection is still open")
	}
}

func TestPace(t *testing.T) {
	p := pace{grace: 20 * time.Second, stall: 30 * time.Second, rate: 1000}
	for _, tt := range []struct {
		n     int64
		spent time.Duration
		want  time.Duration
	}{
		{0, 0, 20 * time.Second},
		{0, 15 * time.Second, 5 * time.Second},
		{5000, 15 * time.Second, 10 * time.Second},
		{1 << 40, time.Hour, 30 * time.Second},
		{0, time.Minute, -40 * time.Second},
	} {
		if got := p.left(tt.n, tt.spent); got != tt.want {
			t.Errorf("%d bytes in %v: got %v, want %v", tt.n, tt.spent, got, tt.want)
		}
	}
}

func TestSlowHeader(t *testing.T) {
	r := newRig(t, setup{change: func(c *config.Config) { memory(c); c.Server.ReadHeader = 200 * time.Millisecond }})
	c := r.dial()
	fmt.Fprint(c, "GET /v1/orders HTTP/1.1\r\nHost: x\r\nX-Slow: ")
	closed(t, c)
}

func TestLargeHeader(t *testing.T) {
	r := newRig(t, setup{change: func(c *config.Config) { memory(c); c.Server.MaxHeader = 8 << 10 }})
	a := r.do("GET", "/v1/orders", "", "X-Large", string(make([]byte, 0))+fmt.Sprintf("%040000d", 1))
	if a.status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("got %v", a)
	}
}

func TestNoForwardProxy(t *testing.T) {
	r := newRig(t, setup{change: memory})
	c := r.dial()
	fmt.Fprint(c, "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || res.StatusCode != 405 {
		t.Errorf("got %v, %v", res, err)
	}
}

// A body that drips loses its connection; the handler sees an error.
func TestSlowBody(t *testing.T) {
	read := make(chan error, 1)
	s := httptest.NewServer(clients(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		read <- err
	}), quick, quick))
	defer s.Close()
	c := dial(t, s.Listener.Addr().String())
	fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx")
	if err := <-read; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	closed(t, c)
}

// A body that nobody reads does not hold the connection.
func TestUnreadBody(t *testing.T) {
	s := httptest.NewServer(clients(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(204)
	}), quick, quick))
	defer s.Close()
	c := dial(t, s.Listener.Addr().String())
	fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx")
	closed(t, c)
}

// A client that does not read its answer does not hold it.
func TestSlowReader(t *testing.T) {
	wrote := make(chan error, 1)
	s := httptest.NewServer(clients(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.Copy(w, io.LimitReader(zeros{}, 1<<30))
		wrote <- err
	}), quick, quick))
	defer s.Close()
	c := dial(t, s.Listener.Addr().String())
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := <-wrote; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// A connection is as good as new for the request that follows a pause longer
// than any deadline, and a silent stream is not cut.
func TestPausesAreNotSlowness(t *testing.T) {
	for _, two := range []bool{false, true} {
		s := httptest.NewUnstartedServer(clients(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			fmt.Fprintf(w, "%s %d", r.Proto, len(b))
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			select {
			case <-time.After(2 * quick.stall):
			case <-r.Context().Done():
				t.Errorf("%s: the request was given up: %v", r.Proto, r.Context().Err())
			}
			fmt.Fprint(w, " end")
		}), quick, quick))
		s.EnableHTTP2 = two
		s.StartTLS()
		for range 2 {
			res, err := s.Client().Post(s.URL, "text/plain", io.LimitReader(zeros{}, 100_000))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			want := map[bool]string{false: "HTTP/1.1 100000 end", true: "HTTP/2.0 100000 end"}[two]
			if string(b) != want || err != nil {
				t.Errorf("got %q, %v, want %q", b, err, want)
			}
		}
		s.Client().CloseIdleConnections()
		s.Close()
	}
}

// The deadlines of a request do not reach the next one on its connection.
func TestContinueAfterAPause(t *testing.T) {
	s := httptest.NewServer(clients(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		fmt.Fprint(w, len(b), err)
	}), quick, quick))
	defer s.Close()
	c := dial(t, s.Listener.Addr().String())
	b := bufio.NewReader(c)
	for range 2 {
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
		line, err := b.ReadString('\n')
		if err != nil || line != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("got %q, %v", line, err)
		}
		if line, err = b.ReadString('\n'); err != nil || line != "\r\n" {
			t.Fatalf("got %q, %v", line, err)
		}
		fmt.Fprint(c, "abc")
		res, err := http.ReadResponse(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if string(body) != "3 <nil>" || err != nil {
			t.Errorf("got %q, %v", body, err)
		}
		<-time.After(2 * quick.stall)
	}
}

func TestTLS(t *testing.T) {
	cert, keyFile, pool := certificate(t)
	r := newRig(t, setup{change: func(c *config.Config) { memory(c); c.TLS = config.TLS{Cert: cert, Key: keyFile} }})
	r.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	for i := range 2 {
		if a := r.do("POST", "/v1/orders", "{}", key, "a"); a.status != 201 || a.replayed() != (i > 0) {
			t.Errorf("got %v", a)
		}
	}
	res, err := r.client.Get(r.url + "/_test/fields")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || res.ProtoMajor != 2 || !contains(b, `"X-Forwarded-Proto":["https"]`) {
		t.Errorf("got %s %s %v", res.Proto, b, err)
	}
}
