package crash

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/httpgate"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/pgstore"
)

// programVar names the variable that makes the test binary a program under
// test, and configures it.
const programVar = "ESCAPEMENT_CRASH_PROGRAM"

// config is what a program is told.
type config struct {
	URL, Schema string
	Provider    string // its URL
	Strike      *strike
}

// lease is short, so that a campaign need not wait long for a takeover; and
// long enough that a busy machine seldom keeps a program from renewing it.
const lease = 600 * time.Millisecond

// storeTimeout bounds for how long a program that is stopped in the middle of a
// transaction of the store's locks its records.
const storeTimeout = 2 * time.Second

// service is the program: an API that makes orders, once for each key.
type service struct {
	strike   *strike
	pool     *pgxpool.Pool // of the business
	db       *sql.DB
	store    *pgstore.Store
	gate     *escapement.Gate
	orders   string       // the table
	client   *http.Client // of the providers
	provider string
	server   http.Server
	url      string
	stop     context.CancelFunc
	work     sync.WaitGroup
}

// program runs until its standard input ends, and returns its exit code.
func program(text string) int {
	var c config
	err := json.Unmarshal([]byte(text), &c)
	var s *service
	if err == nil {
		s, err = serve(c)
	}
	if err == nil {
		fmt.Println(s.url)
		_, err = io.Copy(io.Discard, os.Stdin)
		err = errors.Join(err, s.close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serve(c config) (*service, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &service{strike: c.Strike, orders: c.Schema + ".orders", provider: c.Provider, stop: cancel}
	s.client = &http.Client{Transport: struckTransport{httpgate.NewTransport(&http.Transport{DisableKeepAlives: true}), c.Strike}}
	business, err := struckPool(c.URL, c.Strike, false)
	if err != nil {
		return nil, err
	}
	business.MaxConns = 8
	if s.pool, err = pgxpool.NewWithConfig(ctx, business); err != nil {
		return nil, err
	}
	s.db = stdlib.OpenDBFromPool(s.pool)
	records, err := struckPool(c.URL, c.Strike, true)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, records)
	if err != nil {
		return nil, err
	}
	defer pool.Close() // the store makes its own of it
	if s.store, err = pgstore.New(ctx, pool, pgstore.Options{Schema: c.Schema, Timeout: storeTimeout}); err != nil {
		return nil, err
	}
	h, err := s.handler()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.url, s.server.Handler = "http://"+l.Addr().String(), h
	c.Strike.serving.Store(true)
	s.work.Go(func() { _ = s.gate.Run(ctx) })   // nil
	s.work.Go(func() { _ = s.server.Serve(l) }) // ErrServerClosed
	return s, nil
}

// close ends the service. It is an error if an operation is left over: if an
// ending, or the withdrawal of a claim, cannot be told to the store.
func (s *service) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	err := errors.Join(s.server.Shutdown(ctx), s.gate.Shutdown(ctx))
	s.stop()
	s.work.Wait()
	err = errors.Join(err, s.db.Close(), s.store.Close())
	s.pool.Close()
	return err
}

func (s *service) handler() (http.Handler, error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var err error
	s.gate, err = escapement.New(escapement.Options{
		Records: struckStore{s.store, s.store, s.strike}, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	hasher, err := idempotency.NewHasher([]byte("a secret that all programs share"))
	if err != nil {
		return nil, err
	}
	policy := escapement.Policy{
		Terms:   idempotency.Terms{Lease: lease, Retention: time.Hour, OnUnknown: idempotency.Retry},
		Timeout: patience,
	}
	// A provider is asked only when the call can no longer be under way.
	paying := policy
	paying.Timeout, paying.Terms.Quiet = 2*time.Second, 2*time.Second
	mw, err := httpgate.New(httpgate.Config{
		Gate: s.gate, Hasher: hasher, Logger: log,
		Identity: httpgate.Identity{Tenant: httpgate.MustSources("header:X-Tenant-Id")},
		Keys:     httpgate.KeyPolicy{Mode: httpgate.Required, Policy: policy},
		Routes:   map[string]httpgate.KeyPolicy{"POST /payments": {Mode: httpgate.Required, Policy: paying}},
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", s.order)
	mux.HandleFunc("POST /payments", s.pay)
	inner := mw.Wrap(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(&struckWriter{ResponseWriter: w, s: s.strike}, r)
	}), nil
}

// struckWriter has the point before an answer that says 201.
type struckWriter struct {
	http.ResponseWriter
	s *strike
}

func (w *struckWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *struckWriter) WriteHeader(status int) {
	if status == http.StatusCreated {
		w.s.at(answering)
	}
	w.ResponseWriter.WriteHeader(status)
}

// order is what is asked for, and what is answered.
type order struct {
	Name string `json:"name"`
	// Way is the driver and the isolation level of the transaction, such as
	// "pgx serializable".
	Way   string `json:"way"`
	ID    int64  `json:"id,omitempty"`
	Nonce string `json:"nonce,omitempty"` // of the attempt
}

func (s *service) order(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.strike.at(called)
	var err error
	for range 5 {
		if err = s.orderIn(w, r, o); !pgstore.Again(err) {
			break
		}
	}
	if err != nil { // nothing was done, unless COMMIT's fate is not known: the Gate finds out
		httpgate.Report(r.Context(), httpgate.NotExecuted)
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// transaction is a business transaction, of either driver.
type transaction struct {
	store            idempotency.Store
	insert           func(ctx context.Context, text string, args ...any) (id int64, err error)
	commit, rollback func(context.Context) error
}

func (s *service) begin(ctx context.Context, way string) (*transaction, error) {
	driver, level, _ := strings.Cut(way, " ")
	if driver == "pgx" {
		tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(level)})
		if err != nil {
			return nil, err
		}
		return &transaction{s.store.In(tx), func(ctx context.Context, text string, args ...any) (id int64, err error) {
			return id, tx.QueryRow(ctx, text, args...).Scan(&id)
		}, tx.Commit, tx.Rollback}, nil
	}
	levels := map[string]sql.IsolationLevel{
		"read committed": sql.LevelReadCommitted, "repeatable read": sql.LevelRepeatableRead, "serializable": sql.LevelSerializable,
	}
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: levels[level]})
	if err != nil {
		return nil, err
	}
	return &transaction{s.store.InSQL(tx), func(ctx context.Context, text string, args ...any) (id int64, err error) {
		return id, tx.QueryRowContext(ctx, text, args...).Scan(&id)
	}, func(context.Context) error { return tx.Commit() }, func(context.Context) error { return tx.Rollback() }}, nil
}

// orderIn is one transaction.
func (s *service) orderIn(w http.ResponseWriter, r *http.Request, o order) error {
	ctx := r.Context()
	tx, err := s.begin(ctx, o.Way)
	if err != nil {
		return err
	}
	defer func() { _ = tx.rollback(context.WithoutCancel(ctx)) }() // no effect after commit
	s.strike.at(begun)
	if err := httpgate.FenceIn(ctx, tx.store); err != nil {
		return err
	}
	s.strike.at(fenced)
	o.Nonce = rand.Text()
	if o.ID, err = tx.insert(ctx, "INSERT INTO "+s.orders+" (name, nonce) VALUES ($1, $2) RETURNING id", o.Name, o.Nonce); err != nil {
		return err
	}
	s.strike.at(written)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", fmt.Sprintf("/orders/%d", o.ID))
	w.WriteHeader(http.StatusCreated)
	if err := json.NewEncoder(w).Encode(o); err != nil {
		return err
	}
	if err := httpgate.EndIn(ctx, tx.store); err != nil {
		return err
	}
	s.strike.at(ended)
	if err := tx.commit(ctx); err != nil {
		return err
	}
	s.strike.at(committed)
	return nil
}
