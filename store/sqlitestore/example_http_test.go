package sqlitestore_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/httpgate"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/sqlitestore"
)

// makeOrder is an ordinary handler whose work is one transaction. FenceIn comes
// first in it, EndIn last before the Commit, when the answer is written.
func makeOrder(db *sql.DB, store *sqlitestore.Store) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		fail := func(err error) { http.Error(w, err.Error(), http.StatusInternalServerError) }
		ctx := r.Context()
		item, err := io.ReadAll(r.Body)
		if err != nil {
			fail(err)
			return
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			fail(err)
			return
		}
		defer tx.Rollback() // does nothing after Commit
		in := store.In(tx)
		if err := httpgate.FenceIn(ctx, in); err != nil {
			fail(err)
			return
		}
		res, err := tx.ExecContext(ctx, "INSERT INTO orders (item) VALUES (?)", item)
		if err != nil {
			fail(err)
			return
		}
		id, err := res.LastInsertId()
		if err != nil {
			fail(err)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %d", id)
		if err := httpgate.EndIn(ctx, in); err != nil {
			fail(err)
			return
		}
		if err := tx.Commit(); err != nil {
			fail(err) // the client gets this only if nothing was committed
		}
	}
}

// The same over HTTP: the middleware claims the key and answers repeats, the
// handler records its answer in its own transaction.
func Example_overHTTP() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+
		"?_txlock=immediate&_pragma=journal_mode(wal)&_pragma=synchronous(full)&_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)"); err != nil {
		log.Fatal(err)
	}
	store, err := sqlitestore.New(ctx, db, sqlitestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	gate, err := escapement.New(escapement.Options{Records: store})
	if err != nil {
		log.Fatal(err)
	}
	ran := make(chan struct{})
	go func() { defer close(ran); gate.Run(ctx) }() // sweeps, and retries what could not be recorded
	defer func() { stop(); <-ran }()

	hasher, err := idempotency.NewHasher([]byte("a secret of 16 bytes or more"))
	if err != nil {
		log.Fatal(err)
	}
	mw, err := httpgate.New(httpgate.Config{
		Gate: gate, Hasher: hasher,
		Identity: httpgate.Identity{Tenant: httpgate.MustSources("header:X-Tenant-Id")},
		Routes:   map[string]httpgate.KeyPolicy{"POST /orders": {Mode: httpgate.Required}},
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", makeOrder(db, store))
	api := mw.Wrap(mux)

	for _, body := range []string{"tea", "tea", "coffee"} {
		r := httptest.NewRequest("POST", "/orders", strings.NewReader(body))
		r.Header.Set("X-Tenant-Id", "acme")
		r.Header.Set("Idempotency-Key", "client-key-1")
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		fmt.Println(w.Code, "replayed:", w.Header().Get("Idempotent-Replayed") == "true")
	}
	var n int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM orders").Scan(&n); err != nil {
		log.Fatal(err)
	}
	fmt.Println("orders:", n)
	// Output:
	// 201 replayed: false
	// 201 replayed: true
	// 422 replayed: false
	// orders: 1
}
