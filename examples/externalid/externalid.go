// Package externalid shows an operation that may run as often as it likes,
// because it says the same each time: it makes a resource with an id that its
// client has chosen, or returns the one that is there.
//
// The table has the rule: external_id is unique. Who comes first inserts the
// row, and everybody reads it and renders what it says. So a repeat is harmless
// even where no record of it is left: after its retention, from another system
// without an Idempotency-Key, or in an attempt that takes over from one that
// died. Such a route says on_unknown: retry.
//
// What is worth copying:
//
//   - INSERT … ON CONFLICT DO NOTHING, then SELECT. The insert waits for another
//     transaction that is about to insert the same id; the select sees what that
//     one has committed (READ COMMITTED, the default of PostgreSQL).
//   - The answer is rendered from the row alone: no clock, no counter, no "made
//     just now". So all answers have the same bytes, and the same status.
//   - The row also says what was asked for. The same id with another content is
//     a fault of the client (409), and changes nothing.
package externalid

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Schema is the business's table.
const Schema = `CREATE TABLE IF NOT EXISTS invoices (
	id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	customer    text NOT NULL,
	external_id text NOT NULL,
	amount      bigint NOT NULL,
	created     timestamptz NOT NULL DEFAULT now(),
	UNIQUE (customer, external_id)
)`

// Invoices makes invoices in a database.
type Invoices struct{ Pool *pgxpool.Pool }

// Invoice is what a client sends, and what it is answered with.
type Invoice struct {
	ID         int64     `json:"id,omitempty"`
	ExternalID string    `json:"external_id"`
	Amount     int64     `json:"amount"`
	Created    time.Time `json:"created,omitzero"`
}

// Create makes an invoice, or returns the one that is there. It has the form
// that httpgate.Middleware.Handler takes, which makes a temporary failure of
// SQLSTATEs 40001 and 40P01.
func (v Invoices) Create(w http.ResponseWriter, r *http.Request) error {
	var want Invoice
	if err := json.NewDecoder(r.Body).Decode(&want); err != nil || want.ExternalID == "" || want.Amount <= 0 {
		http.Error(w, "want an external_id and an amount", http.StatusBadRequest)
		return nil
	}
	got, err := v.ensure(r.Context(), r.Header.Get("X-Customer"), want)
	if err != nil {
		return err
	}
	if got.Amount != want.Amount {
		http.Error(w, "there is another invoice with this external_id", http.StatusConflict)
		return nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	return json.NewEncoder(w).Encode(got)
}

// ensure returns the invoice with that external id, which it makes if there is
// none.
func (v Invoices) ensure(ctx context.Context, customer string, want Invoice) (got Invoice, err error) {
	for {
		_, err := v.Pool.Exec(ctx,
			"INSERT INTO invoices (customer, external_id, amount) VALUES ($1, $2, $3) ON CONFLICT (customer, external_id) DO NOTHING",
			customer, want.ExternalID, want.Amount)
		if err != nil {
			return got, err
		}
		err = v.Pool.QueryRow(ctx,
			"SELECT id, external_id, amount, created FROM invoices WHERE customer = $1 AND external_id = $2",
			customer, want.ExternalID).Scan(&got.ID, &got.ExternalID, &got.Amount, &got.Created)
		if !errors.Is(err, pgx.ErrNoRows) { // else it was deleted in between
			got.Created = got.Created.UTC()
			return got, err
		}
	}
}
