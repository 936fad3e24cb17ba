// Package demo is a small orders API, the upstream of `serve --demo` and of
// trials and tests. It counts what reaches it and what it makes of it, so that
// one can see from outside whether an operation took effect once.
//
// Orders know keys: a POST with a key that was seen before gives the same order
// again. Payments do not: every POST is a payment.
package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Options are what a demo API is made of. The zero value keeps everything in
// memory.
type Options struct {
	// Data is the file that keeps orders, payments and notes over a restart,
	// also one by force. Empty: memory only.
	Data string
}

// API is the demo's HTTP API. It is safe for concurrent use. See [New].
type API struct {
	ledger *ledger
	mux    *http.ServeMux
	done   chan struct{}
}

// New opens the data file, if one is named, and returns the API. The error says
// why the file could not be opened or read.
func New(o Options) (*API, error) {
	l, err := openLedger(o.Data)
	if err != nil {
		return nil, err
	}
	a := &API{ledger: l, mux: http.NewServeMux(), done: make(chan struct{})}
	a.mux.HandleFunc("POST /v1/orders", a.post(orders))
	a.mux.HandleFunc("GET /v1/orders", a.counts(orders))
	a.mux.HandleFunc("POST /v1/payments", a.post(payments))
	a.mux.HandleFunc("GET /v1/payments", a.counts(payments))
	a.mux.HandleFunc("GET /v1/payments/by-key/{key}", a.paymentByKey)
	a.mux.HandleFunc("POST /v1/notes", a.post(notes))
	a.mux.HandleFunc("GET /v1/notes", a.counts(notes))
	a.mux.HandleFunc("GET /export", a.export)
	a.mux.HandleFunc("GET /search", a.search)
	a.mux.HandleFunc("GET /v1/limited", a.limited)
	a.trials()
	return a, nil
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

// Close ends delays that are under way and closes the data file. Requests that
// come later get a 500.
func (a *API) Close() error {
	close(a.done)
	return a.ledger.close()
}

// kind is a sort of thing that the API makes.
type kind struct {
	name      string // as the path and the ledger write it
	id        string // the member that holds the number
	knowsKeys bool   // a key that was seen gives the same thing again
}

var (
	orders   = kind{name: "orders", id: "order_id", knowsKeys: true}
	payments = kind{name: "payments", id: "payment_id"}
	notes    = kind{name: "notes", id: "note_id"}
)

// post makes one thing of the kind k.
func (a *API) post(k kind) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// A body that is cut is a request that did not arrive.
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			writeJSON(w, http.StatusBadRequest, map[string]any{"error": "the body is cut"})
			return
		}
		if err := a.ledger.received(k.name); err != nil {
			writeJSON(w, http.StatusInternalServerError, map[string]any{"error": err.Error()})
			return
		}
		s, err := steeringOf(r)
		if err != nil {
			writeJSON(w, http.StatusBadRequest, map[string]any{"error": err.Error()})
			return
		}
		// From here on the client's going away changes nothing, as in a real API.
		a.pause(s.delay)
		if s.fault == faultBefore {
			hangUp(w)
			return
		}
		if s.status >= 400 {
			writeJSON(w, s.status, map[string]any{"error": "as X-Demo-Status says; nothing was done"})
			return
		}
		n, err := a.ledger.make(k, subjectOf(r), keyOf(r.Header.Get("Idempotency-Key")))
		if err != nil {
			writeJSON(w, http.StatusInternalServerError, map[string]any{"error": err.Error()})
			return
		}
		if s.fault == faultAfter {
			hangUp(w)
			return
		}
		status := http.StatusCreated
		if s.status != 0 {
			status = s.status
		}
		w.Header().Set("Location", fmt.Sprintf("/v1/%s/%d", k.name, n))
		a.answer(w, s, status, map[string]any{k.id: n})
	}
}

// counts says how many things were made, and how many POSTs came.
func (a *API) counts(k kind) http.HandlerFunc {
	return a.steered(func(http.ResponseWriter, *http.Request) (int, any) {
		made, received := a.ledger.count(k.name)
		return http.StatusOK, struct {
			Count    int64 `json:"count"`
			Received int64 `json:"received"`
		}{made, received}
	})
}

func (a *API) paymentByKey(w http.ResponseWriter, r *http.Request) {
	a.steered(func(_ http.ResponseWriter, r *http.Request) (int, any) {
		n, ok := a.ledger.byKey(payments, subjectOf(r), keyOf(r.PathValue("key")))
		if !ok {
			return http.StatusNotFound, map[string]any{"error": "no payment with this key"}
		}
		return http.StatusOK, map[string]any{payments.id: n}
	})(w, r)
}

func (a *API) export(w http.ResponseWriter, r *http.Request) {
	a.steered(func(http.ResponseWriter, *http.Request) (int, any) {
		all := map[string]int64{}
		for _, k := range []kind{orders, payments, notes} {
			all[k.name], _ = a.ledger.count(k.name)
		}
		return http.StatusOK, all
	})(w, r)
}

func (a *API) search(w http.ResponseWriter, r *http.Request) {
	a.steered(func(_ http.ResponseWriter, r *http.Request) (int, any) {
		return http.StatusOK, map[string]any{"query": r.URL.Query().Get("q"), "found": []string{}}
	})(w, r)
}

func (a *API) limited(w http.ResponseWriter, r *http.Request) {
	a.steered(func(http.ResponseWriter, *http.Request) (int, any) {
		return http.StatusOK, map[string]any{"ok": true}
	})(w, r)
}

// steered answers a request that has no effect, as its X-Demo fields say.
func (a *API) steered(f func(http.ResponseWriter, *http.Request) (int, any)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s, err := steeringOf(r)
		if err != nil {
			writeJSON(w, http.StatusBadRequest, map[string]any{"error": err.Error()})
			return
		}
		a.pause(s.delay)
		if s.fault == faultBefore || s.fault == faultAfter {
			hangUp(w)
			return
		}
		status, v := f(w, r)
		if s.status != 0 {
			status = s.status
		}
		a.answer(w, s, status, v)
	}
}

// subjectOf says whose thing it is: two tenants' equal keys are two keys.
func subjectOf(r *http.Request) string {
	if t := r.Header.Get("X-Tenant-Id"); t != "" {
		return t
	}
	return "public"
}

// keyOf reads a key in both of its forms: "abc" (a structured field's string)
// and abc name the same.
func keyOf(field string) string {
	f := strings.TrimSpace(field)
	if len(f) >= 2 && f[0] == '"' && f[len(f)-1] == '"' {
		f = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(f[1 : len(f)-1])
	}
	return f
}

// pause waits for d, or until the API is closed.
func (a *API) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-a.done:
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}
