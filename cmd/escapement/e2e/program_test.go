package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// settings is the tests' configuration: the demo's routes with short times.
const settings = `
listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0}
identity:
  tenant: [header:X-Tenant-Id, const:public]
idempotency:
  lease: 300ms
  timeout: 2s
  routes:
    POST /v1/orders: {key: required, on_unknown: retry}
    POST /v1/payments: {key: required, on_unknown: hold}
    POST /v1/notes: {key: optional}
`

// patient is the tests' configuration with a time-out that no busy machine
// reaches, and the given lease.
func patient(lease string) string {
	return strings.NewReplacer("timeout: 2s", "timeout: 30s", "lease: 300ms", "lease: "+lease).Replace(settings)
}

// program is a running Escapement.
type program struct {
	*process
	url, admin string
}

// options are how a program is started. The zero value is the tests'
// configuration with a store of its own.
type options struct {
	killAt   string // a kill point; "" starts the program as it is shipped
	settings string // in place of the tests' configuration
	more     string // lines at its end
	db       string // the store's file
	store    string // its URL, in place of a file
	dir      string // for configuration, store and temporary files
	unready  bool   // it may not be ready yet
}

// run starts a program in front of upstream.
func run(upstream string, o options) (*program, error) {
	if o.settings == "" {
		o.settings = settings
	}
	if o.db == "" {
		o.db = filepath.Join(o.dir, "escapement.db")
	}
	file := filepath.Join(o.dir, "escapement.yaml")
	if err := os.WriteFile(file, []byte(o.settings+o.more), 0o600); err != nil {
		return nil, err
	}
	binary, env := plainProgram, []string{"TMPDIR=" + o.dir}
	if o.killAt != "" {
		binary, env = killProgram, append(env, "ESCAPEMENT_KILL_AT="+o.killAt)
	}
	store := o.store
	if store == "" {
		store = "sqlite:" + o.db
	}
	return serve(binary, env, o.unready, "-c", file, "--upstream", upstream, "--store", store)
}

// serve starts a program and waits until it listens and, unless it need not be
// ready yet, checks that it is.
func serve(binary string, env []string, unready bool, args ...string) (*program, error) {
	p, found, err := launch(binary, append([]string{"serve"}, args...), env,
		`(?s)\n  listen +(\S+)\n +admin +(\S+) .*\n  keys `)
	if err != nil {
		return nil, err
	}
	s := &program{process: p, url: found[1], admin: found[2]}
	if unready {
		return s, nil
	}
	// A busy machine may keep Redis from answering within its deadline.
	var r reply
	if !soon(func() bool {
		r = request{method: http.MethodGet, path: "/readyz"}.send(s.admin)
		return r.err == nil && r.status == http.StatusOK
	}) {
		p.kill()
		return nil, fmt.Errorf("/readyz: %v\n%s", r, p.stderr)
	}
	return s, nil
}

// start is run for a test: what is started ends with it.
func start(t *testing.T, upstream string, o options) *program {
	t.Helper()
	if o.dir == "" {
		o.dir = t.TempDir()
	}
	p, err := run(upstream, o)
	if err != nil {
		t.Fatal(err)
	}
	p.cleanup(t)
	return p
}

// startDemo starts `serve --demo`, as the README tells.
func startDemo(t *testing.T) *program {
	t.Helper()
	p, err := serve(plainProgram, []string{"TMPDIR=" + t.TempDir()}, false, "--demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.cleanup(t)
	return p
}

// upstream starts the demo's upstream in a process of its own.
func upstream(dir string) (*process, string, error) { return upstreamAt(dir, "127.0.0.1:0") }

func upstreamAt(dir, address string) (*process, string, error) {
	p, found, err := launch(plainProgram,
		[]string{"demo-upstream", "--listen", address, "--data", filepath.Join(dir, "upstream.data")}, nil, `demo upstream on (\S+)\n`)
	if err != nil {
		return nil, "", err
	}
	return p, found[1], nil
}

// startUpstream is upstream for a test; it returns the URL.
func startUpstream(t *testing.T) string {
	t.Helper()
	p, url, err := upstream(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p.cleanup(t)
	return url
}

// request is one that a test sends.
type request struct {
	method string // POST if empty
	path   string // /v1/orders if empty
	key    string
	tenant string
	body   string
	fields map[string]string
}

// reply is the answer to a request. With err it is what came of it.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

func (r reply) String() string {
	if r.err != nil {
		return fmt.Sprintf("%d %q, then %v", r.status, r.body, r.err)
	}
	return fmt.Sprintf("%d %q", r.status, r.body)
}

// code is the slug of a problem, or "".
func (r reply) code() string {
	var p struct{ Code string }
	if r.header.Get("Content-Type") != "application/problem+json" || json.Unmarshal([]byte(r.body), &p) != nil {
		return ""
	}
	return p.Code
}

func (r reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

// retryAfter is what the field says; without one it is an error.
func (r reply) retryAfter() (time.Duration, error) {
	n, err := strconv.Atoi(r.header.Get("Retry-After"))
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%v: Retry-After is %q", r, r.header.Get("Retry-After"))
	}
	return time.Duration(n) * time.Second, nil
}

// same reports whether a replay gives what the first answer gave.
func (r reply) same(first reply) bool {
	for _, name := range []string{"Content-Type", "Location"} {
		if r.header.Get(name) != first.header.Get(name) {
			return false
		}
	}
	return r.err == nil && r.status == first.status && r.body == first.body
}

// client opens a connection for each request: a client that reuses them may
// itself send a keyed request twice.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}, Timeout: patience}

func (q request) send(base string) reply { return q.sendWithin(context.Background(), base) }

func (q request) sendWithin(ctx context.Context, base string) reply {
	method, path := q.method, q.path
	if method == "" {
		method = http.MethodPost
	}
	if path == "" {
		path = "/v1/orders"
	}
	r, err := http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(q.body))
	if err != nil {
		return reply{err: err}
	}
	if q.body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if q.key != "" {
		r.Header.Set("Idempotency-Key", q.key)
	}
	if q.tenant != "" {
		r.Header.Set("X-Tenant-Id", q.tenant)
	}
	for name, v := range q.fields {
		r.Header.Set(name, v)
	}
	resp, err := client.Do(r)
	if err != nil {
		return reply{err: err, header: http.Header{}}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{status: resp.StatusCode, header: resp.Header, body: string(b), err: err}
}

// final repeats a request until its answer is final, as an honest client does:
// after Retry-After, and after a broken connection.
func (q request) final(base string) (reply, error) {
	for range 20 {
		r := q.send(base)
		switch {
		case r.err != nil:
			return r, r.err
		case r.status == http.StatusConflict && r.code() == "idempotency-request-in-progress", r.status == http.StatusServiceUnavailable:
			d, err := r.retryAfter()
			if err != nil {
				return r, err
			}
			pause(d)
		default:
			return r, nil
		}
	}
	return reply{}, fmt.Errorf("key %q: no final answer after 20 repeats", q.key)
}

// counts are what the demo's upstream says of orders or payments.
type counts struct{ Count, Received int64 }

func count(base, kind string) (counts, error) {
	var c counts
	r := request{method: http.MethodGet, path: "/v1/" + kind}.send(base)
	if r.err != nil {
		return c, r.err
	}
	return c, json.Unmarshal([]byte(r.body), &c)
}

func mustCount(t *testing.T, base, kind string) counts {
	t.Helper()
	c, err := count(base, kind)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// want is a test's expectation of an answer: its status and a problem's code.
func (r reply) want(t *testing.T, status int, code string) {
	t.Helper()
	if r.err != nil || r.status != status || r.code() != code {
		t.Fatalf("the answer is %v: want %d %s", r, status, code)
	}
}
