package httpgate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
)

// clock is the stores' time. It stands still until it is moved.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// faulty stands between the Gate and its store of records, like a network.
type faulty struct {
	idempotency.Store
	idempotency.StepStore
	mu      sync.Mutex
	reserve error // what Reserve says instead of asking
	end     error // what End says instead of asking
	extend  error
}

func (f *faulty) set(reserve, end error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reserve, f.end = reserve, end
}

func (f *faulty) away() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.end != nil
}

func (f *faulty) setExtend(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.extend = err
}

func (f *faulty) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	f.mu.Lock()
	err := f.reserve
	f.mu.Unlock()
	if err != nil {
		return idempotency.Answer{}, err
	}
	return f.Store.Reserve(ctx, c)
}

func (f *faulty) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	f.mu.Lock()
	err := f.end
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return f.Store.End(ctx, r, e)
}

func (f *faulty) Extend(ctx context.Context, r idempotency.Reservation, lease time.Duration) (time.Time, error) {
	f.mu.Lock()
	err := f.extend
	f.mu.Unlock()
	if err != nil {
		return time.Time{}, err
	}
	return f.Store.Extend(ctx, r, lease)
}

var errAway = errors.New("the store is away")

// brokenLimits answers nothing.
type brokenLimits struct{ ratelimit.Store }

func (brokenLimits) Take(context.Context, []ratelimit.Charge) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, errAway
}

// rig is a handler behind a Middleware, on a real connection.
type rig struct {
	t       testing.TB
	clock   *clock
	records *faulty
	memory  *memstore.Records
	gate    *escapement.Gate
	m       *Middleware
	srv     *httptest.Server
	client  *http.Client
	logs    *logBuffer
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var testSecret = []byte("a secret of a test, 32 bytes long")

// newRig starts h behind a Middleware with the tenant in X-Tenant, changed by
// change, which may be nil.
func newRig(t testing.TB, h http.HandlerFunc, change func(*Config, *escapement.Options)) *rig {
	t.Helper()
	r := &rig{t: t, clock: &clock{t: time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)}, logs: &logBuffer{}}
	var err error
	if r.memory, err = memstore.NewRecords(memstore.RecordsOptions{Now: r.clock.now}); err != nil {
		t.Fatal(err)
	}
	r.records = &faulty{Store: r.memory, StepStore: r.memory}
	limits, err := memstore.NewLimits(memstore.LimitsOptions{Now: r.clock.now})
	if err != nil {
		t.Fatal(err)
	}
	hasher, err := idempotency.NewHasher(testSecret)
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(r.logs, nil))
	c := Config{Hasher: hasher, Identity: Identity{Tenant: MustSources("header:X-Tenant")}, Logger: logger, SpoolDir: t.TempDir()}
	o := escapement.Options{Records: r.records, Limits: limits, Logger: logger}
	if change != nil {
		change(&c, &o)
	}
	if r.gate, err = escapement.New(o); err != nil {
		t.Fatal(err)
	}
	c.Gate = r.gate
	if r.m, err = New(c); err != nil {
		t.Fatal(err)
	}
	r.srv = httptest.NewUnstartedServer(r.m.Wrap(h))
	r.srv.Config.ErrorLog = slog.NewLogLogger(logger.Handler(), slog.LevelError)
	r.srv.Start()
	tr := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}
	r.client = &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		r.srv.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if r.records.away() {
			cancel() // what is owed to the store will never be taken
		}
		r.gate.Shutdown(ctx)
	})
	return r
}

// reply is an answer that was read as a whole.
type reply struct {
	status  int
	header  http.Header
	body    string
	trailer http.Header
	err     error // of reading the body
}

// do sends a request; fields are name, value, name, value, …
func (r *rig) do(method, path, body string, fields ...string) reply {
	r.t.Helper()
	rep, err := r.try(method, path, strings.NewReader(body), fields...)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	return rep
}

func (r *rig) try(method, path string, body io.Reader, fields ...string) (reply, error) {
	req, err := http.NewRequest(method, r.srv.URL+path, body)
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("X-Tenant", "acme")
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(fields); i += 2 {
		switch {
		case fields[i] == "Host":
			req.Host = fields[i+1]
		case fields[i] == "X-Tenant" && fields[i+1] == "":
			req.Header.Del("X-Tenant")
		case fields[i] == "X-Tenant", fields[i] == "Content-Type":
			req.Header.Set(fields[i], fields[i+1])
		default:
			req.Header.Add(fields[i], fields[i+1])
		}
	}
	res, err := r.client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{status: res.StatusCode, header: res.Header, body: string(b), trailer: res.Trailer, err: err}, nil
}

// post is a POST with a key.
func (r *rig) post(path, key, body string, fields ...string) reply {
	r.t.Helper()
	return r.do("POST", path, body, append([]string{KeyField, key}, fields...)...)
}

// problem checks that rep is a problem of this status and code, and returns
// its members.
func (rep reply) problem(t testing.TB, status int, code string) map[string]any {
	t.Helper()
	var p map[string]any
	if err := json.Unmarshal([]byte(rep.body), &p); err != nil || rep.status != status || p["code"] != code {
		t.Fatalf("want %d %s, have %d %v\n%s", status, code, rep.status, rep.header, rep.body)
	}
	if ct := rep.header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("%s: the content type is %q", code, ct)
	}
	if p["status"] != float64(status) || p["title"] == "" || p["title"] == nil || p["detail"] == nil {
		t.Errorf("%s: members are missing: %v", code, p)
	}
	wantType := "urn:problem-type:escapement:" + code
	if code == "quota-exceeded" || code == "temporary-reduced-capacity" {
		wantType = "https://iana.org/assignments/http-problem-types#" + code
	}
	if p["type"] != wantType {
		t.Errorf("type is %v, want %s", p["type"], wantType)
	}
	if _, ok := p["retryable"].(bool); !ok {
		t.Errorf("%s: no member retryable: %v", code, p)
	}
	return p
}

func (rep reply) want(t testing.TB, status int, body string) {
	t.Helper()
	if rep.status != status || rep.body != body || rep.err != nil {
		t.Fatalf("want %d %q, have %d %q (%v) %v", status, body, rep.status, rep.body, rep.err, rep.header)
	}
}

// replayed checks that rep is a replay of first.
func (rep reply) replayed(t testing.TB, first reply) {
	t.Helper()
	rep.want(t, first.status, first.body)
	if rep.header.Get(ReplayedField) != "true" {
		t.Errorf("no %s: %v", ReplayedField, rep.header)
	}
	if _, err := http.ParseTime(rep.header.Get(ExpiresField)); err != nil {
		t.Errorf("%s: %v", ExpiresField, err)
	}
	if first.header.Get(ReplayedField) != "" {
		t.Errorf("the first answer says that it is a replay: %v", first.header)
	}
}

// record returns the only record in the store.
func (r *rig) record() idempotency.Record {
	r.t.Helper()
	page, err := r.memory.List(r.t.Context(), idempotency.Filter{})
	if err != nil || len(page.Records) != 1 {
		r.t.Fatalf("want one record, have %d (%v)", len(page.Records), err)
	}
	return page.Records[0]
}

// recordCount is how many records there are.
func (r *rig) recordCount() int {
	r.t.Helper()
	page, err := r.memory.List(r.t.Context(), idempotency.Filter{})
	if err != nil {
		r.t.Fatal(err)
	}
	return len(page.Records)
}

// counter is a handler that counts its calls and answers 201 with their number.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.n++
	n := c.n
	c.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	json.NewEncoder(w).Encode(map[string]int{"order_id": n})
}

func (c *counter) calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("this did not come about: %s", what)
		}
		<-tick.C
	}
}

func policyWith(change func(*escapement.Policy)) escapement.Policy {
	p := escapement.DefaultPolicy()
	change(&p)
	return p
}
