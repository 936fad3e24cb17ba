package externalid

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/httpgate"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/pgserver"
	"github.com/escapement-dev/escapement/store/pgstore"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := pgserver.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// service is the operation, bare, and behind a Middleware whose records are in
// the same database. Its handler is broken off after as many calls as dies says.
type service struct {
	pool       *pgxpool.Pool
	bare, kept http.Handler
	mu         sync.Mutex
	dies       int
	calls      int
}

func newService(t *testing.T) *service {
	t.Helper()
	ctx := t.Context()
	pool, err := pgxpool.New(ctx, pgserver.Shared(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for _, sql := range []string{"DROP TABLE IF EXISTS invoices", Schema} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := pgstore.Migrate(ctx, pool, ""); err != nil {
		t.Fatal(err)
	}
	store, err := pgstore.New(ctx, pool, pgstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	gate, err := escapement.New(escapement.Options{Records: store, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	secret := make([]byte, 32) // the database outlives the test
	rand.Read(secret)
	hasher, err := idempotency.NewHasher(secret)
	if err != nil {
		t.Fatal(err)
	}
	policy := escapement.DefaultPolicy()
	policy.Terms.OnUnknown, policy.Terms.Quiet = idempotency.Retry, 0
	mw, err := httpgate.New(httpgate.Config{
		Gate: gate, Hasher: hasher, Logger: slog.New(slog.DiscardHandler),
		Identity: httpgate.Identity{Tenant: httpgate.MustSources("header:X-Customer")},
		Keys:     httpgate.KeyPolicy{Policy: policy},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{pool: pool}
	s.bare = mw.Handler(Invoices{pool}.Create)
	s.kept = mw.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.bare.ServeHTTP(w, r)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.calls++; s.calls <= s.dies {
			panic(http.ErrAbortHandler) // as a process that dies: it was done, and nobody has heard
		}
	}))
	return s
}

func (s *service) post(h http.Handler, key, customer, body string) (w *httptest.ResponseRecorder, broken bool) {
	r := httptest.NewRequest("POST", "/invoices", strings.NewReader(body))
	r.Header.Set("X-Customer", customer)
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	w = httptest.NewRecorder()
	defer func() { broken = recover() != nil }()
	h.ServeHTTP(w, r)
	return w, false
}

func (s *service) count(t *testing.T) (n int) {
	t.Helper()
	if err := s.pool.QueryRow(context.Background(), "SELECT count(*) FROM invoices").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// I20: attempts that die after the row is written leave one row, and every
// answer, from the record or not, has the same bytes.
func TestI20ExistingResource(t *testing.T) {
	s := newService(t)
	s.dies = 3
	const body = `{"external_id": "A-17", "amount": 1999}`
	for range s.dies {
		if w, broken := s.post(s.kept, "k", "acme", body); !broken {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	first, _ := s.post(s.kept, "k", "acme", body) // the fourth attempt
	if first.Code != http.StatusCreated || s.calls != 4 || s.count(t) != 1 {
		t.Fatalf("%d %s after %d calls, %d rows", first.Code, first.Body, s.calls, s.count(t))
	}
	for _, again := range []struct {
		name string
		h    http.Handler
		key  string
	}{{"from the record", s.kept, "k"}, {"with another key", s.kept, "k2"}, {"without one", s.kept, ""}, {"past the Middleware", s.bare, ""}} {
		w, _ := s.post(again.h, again.key, "acme", body)
		if w.Code != first.Code || w.Body.String() != first.Body.String() || w.Header().Get("Content-Type") != first.Header().Get("Content-Type") {
			t.Errorf("%s: %d %s, want %d %s", again.name, w.Code, w.Body, first.Code, first.Body)
		}
	}
	if w, _ := s.post(s.bare, "", "acme", `{"external_id": "A-17", "amount": 2000}`); w.Code != http.StatusConflict {
		t.Errorf("another content: %d %s", w.Code, w.Body)
	}
	if w, _ := s.post(s.bare, "", "umbrella", body); w.Code != http.StatusCreated || w.Body.String() == first.Body.String() {
		t.Errorf("another customer's: %d %s", w.Code, w.Body)
	}
	if n := s.count(t); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}

// I20: any number of first requests at once, with no key to put them in order.
func TestI20ManyAtOnce(t *testing.T) {
	s := newService(t)
	var wg sync.WaitGroup
	answers := make([]string, 50)
	for i := range answers {
		wg.Go(func() {
			w, _ := s.post(s.bare, "", "acme", `{"external_id": "B-1", "amount": 5}`)
			answers[i] = fmt.Sprint(w.Code, w.Body)
		})
	}
	// Another transaction inserts the same id, and takes its time about it.
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "INSERT INTO invoices (customer, external_id, amount) VALUES ('acme', 'B-2', 5)"); err != nil {
		t.Fatal(err)
	}
	slow := make(chan string, 1)
	go func() {
		w, _ := s.post(s.bare, "", "acme", `{"external_id": "B-2", "amount": 5}`)
		slow <- fmt.Sprint(w.Code, w.Body)
	}()
	select {
	case a := <-slow:
		t.Errorf("answered before the other transaction was over: %s", a)
	case <-time.After(50 * time.Millisecond):
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-slow; !strings.Contains(a, "B-2") || !strings.HasPrefix(a, "201") {
		t.Errorf("after the other transaction: %s", a)
	}
	wg.Wait()
	for _, a := range answers {
		if a != answers[0] || !strings.HasPrefix(a, "201") {
			t.Errorf("%s, want %s", a, answers[0])
		}
	}
	if n := s.count(t); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}
