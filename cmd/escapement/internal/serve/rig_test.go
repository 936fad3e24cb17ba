package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
	"github.com/escapement-dev/escapement/cmd/escapement/internal/demo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a server in front of the demo's API, both on loopback.
type rig struct {
	t      *testing.T
	api    *demo.API
	server *Server
	client *http.Client
	url    string
	admin  string
	file   string // of the records

	stopServer func() error
	stopDemo   func()
}

// setup is what a rig may differ in.
type setup struct {
	yaml     string // added to the demo's configuration
	file     string // of the records; empty: a fresh one
	upstream string // instead of the demo's
	change   func(*config.Config)
}

const patience = 20 * time.Second

func newRig(t *testing.T, s setup) *rig {
	t.Helper()
	r := &rig{t: t, file: s.file}
	if r.file == "" {
		r.file = filepath.Join(t.TempDir(), "escapement.db")
	}
	r.startDemo(&s)
	c, err := config.Parse("test.yaml", append(append([]byte{}, config.Demo...), s.yaml...), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Override(config.Overrides{
		Upstream: s.upstream, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Store: "sqlite:" + r.file,
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.change != nil {
		s.change(c)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	if r.server, err = Open(t.Context(), c, "test", log); err != nil {
		t.Fatal(err)
	}
	scheme := "http://"
	if c.TLS.Cert != "" {
		scheme = "https://"
	}
	r.url, r.admin = scheme+r.server.Addr().String(), "http://"+r.server.AdminAddr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.server.Run(ctx) }()
	stopped := false
	r.stopServer = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			t.Fatal("the server did not stop")
			return nil
		}
	}
	r.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 50, DisableCompression: true}}
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		if err := r.stopServer(); err != nil {
			t.Error(err)
		}
		r.stopDemo()
	})
	return r
}

func (r *rig) startDemo(s *setup) {
	api, err := demo.New(demo.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- demo.Serve(ctx, l, api) }()
	r.api = api
	r.stopDemo = func() {
		cancel()
		<-done
	}
	if s.upstream == "" {
		s.upstream = "http://" + l.Addr().String()
	}
}

// answer is a response that was read to its end.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

// code is the slug of a problem.
func (a answer) code() string {
	var p struct{ Code string }
	if a.header.Get("Content-Type") != "application/problem+json" || json.Unmarshal([]byte(a.body), &p) != nil {
		return ""
	}
	return p.Code
}

func (a answer) String() string { return fmt.Sprintf("%d %s %v", a.status, a.body, a.err) }

func (r *rig) do(method, path, body string, fields ...string) answer {
	r.t.Helper()
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, rd)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(fields); i += 2 {
		name := fields[i]
		if name == "Idempotency-Key" {
			name = "idempotency-key" // the client must not repeat by itself
		}
		req.Header[name] = []string{fields[i+1]}
	}
	res, err := r.client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(b), err}
}

// until repeats a request, and obeys Retry-After, until it is not in progress.
func (r *rig) until(method, path, body string, fields ...string) answer {
	r.t.Helper()
	for end := time.Now().Add(patience); ; {
		a := r.do(method, path, body, fields...)
		if a.code() != "idempotency-request-in-progress" || time.Now().After(end) {
			return a
		}
		n, err := strconv.Atoi(a.header.Get("Retry-After"))
		if err != nil {
			r.t.Errorf("in progress without Retry-After: %v", a.header)
			return a
		}
		r.wait(time.Duration(n) * time.Second)
	}
}

// wait lets real time pass, as a client that obeys Retry-After does.
func (r *rig) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.t.Context().Done():
	}
}

// counts asks the demo itself, not through the server.
func (r *rig) counts(path string) (count, received int) {
	r.t.Helper()
	w := recorder{header: http.Header{}}
	req, err := http.NewRequest("GET", path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.api.ServeHTTP(&w, req)
	var v struct{ Count, Received int }
	if err := json.Unmarshal(w.Bytes(), &v); err != nil {
		r.t.Fatal(err)
	}
	return v.Count, v.Received
}

func (r *rig) wantCounts(path string, count, received int) {
	r.t.Helper()
	if c, n := r.counts(path); c != count || n != received {
		r.t.Errorf("%s: %d made of %d received, want %d of %d", path, c, n, count, received)
	}
}

// received waits until n POSTs have reached the demo.
func (r *rig) received(path string, n int) {
	r.t.Helper()
	r.eventually(func() bool { _, got := r.counts(path); return got >= n })
}

func (r *rig) eventually(ok func() bool) {
	r.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			r.t.Fatal("it did not come to pass")
		}
	}
}

type recorder struct {
	bytes.Buffer
	header http.Header
	status int
}

func (w *recorder) Header() http.Header { return w.header }
func (w *recorder) WriteHeader(s int)   { w.status = s }

// dial opens a connection to the server.
func (r *rig) dial() net.Conn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.server.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}
