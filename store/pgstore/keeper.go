package pgstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/escapement-dev/escapement/idempotency"
)

// sweepRecords is how many records one transaction of a sweep locks at most.
const sweepRecords = 250

// Sweep implements idempotency.Keeper. It works in transactions of at most 250
// records, and passes over those that others have locked: nobody waits for it,
// and several nodes may sweep at once. A limit of 0 or less removes nothing.
// With an error, the count is of what was removed before it.
func (s *Store) Sweep(ctx context.Context, limit int) (removed int, err error) {
	for removed < limit {
		if err := s.usable(ctx); err != nil {
			return removed, err
		}
		want := min(limit-removed, sweepRecords)
		seen, n, err := s.sweep(ctx, want)
		removed += n
		if err != nil {
			return removed, s.explain(s.saw(err))
		}
		if seen < want || n == 0 {
			break
		}
	}
	return removed, nil
}

// sweep is one transaction: it looks at seen records and removes or shrinks n.
func (s *Store) sweep(ctx context.Context, limit int) (seen, n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // no effect after Commit
	var at int64
	if err := tx.QueryRow(ctx, s.q.now, s.now(), s.idle()).Scan(&at, nil, nil, nil, nil, nil, nil); err != nil {
		return 0, 0, err
	}
	if err := tx.QueryRow(ctx, s.q.sweep, at, limit).Scan(&seen, &n); err != nil {
		return 0, 0, err
	}
	if n < seen { // the rule says what becomes of the rest
		more, err := s.expire(ctx, tx, at, seen-n)
		if err != nil {
			return seen, 0, err
		}
		n += more
	}
	if err := tx.Commit(ctx); err != nil {
		return seen, 0, err
	}
	return seen, n, nil
}

// expire applies the rule to what is due, and returns how many records it has
// removed or shrunk.
func (s *Store) expire(ctx context.Context, tx pgx.Tx, at int64, limit int) (n int, err error) {
	ss := pooled{tx}
	now := timeOf(at)
	w := newWrites()
	err = ss.query(ctx, s.q.due, func(scan func(...any) error) error {
		var v stored
		if err := scan(v.into()...); err != nil {
			return err
		}
		rec, err := v.record()
		if err != nil {
			return err
		}
		next, keep := idempotency.Expire(rec, now)
		e := &entry{id: rec.Key.ID, prev: rec, next: next, found: true}
		switch {
		case !keep:
			e.next = idempotency.Record{Revision: rec.Revision + 1}
		case next.Revision == rec.Revision:
			return nil
		case next.State == idempotency.Shrunk: // its payload was not read, and goes
			e.prev.Result.Payload = []byte{0}
		}
		w.add(e)
		n++
		return nil
	}, at, limit)
	if err != nil {
		return 0, err
	}
	for _, st := range w.statements(s.q) {
		if _, err := ss.exec(ctx, st.text, st.args...); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// listScan is how many records one page looks at, at least, where the filter
// says more than the indexes can.
const listScan = 1000

var statuses = []idempotency.Status{
	"", idempotency.StatusFree, idempotency.StatusInProgress, idempotency.StatusUnknown, idempotency.StatusSucceeded,
	idempotency.StatusFailedFinal, idempotency.StatusFailedRetryable, idempotency.StatusArchived,
}

// List implements idempotency.Keeper. Records come in the order of their keys'
// ids. A page looks at 1000 records, and may so have fewer than there are.
func (s *Store) List(ctx context.Context, f idempotency.Filter) (idempotency.Page, error) {
	limit := f.Limit
	if limit == 0 {
		limit = 100
	}
	if limit < 0 || limit > 1000 {
		return idempotency.Page{}, fmt.Errorf("pgstore: a list's limit is %d: want 1 to 1000, or 0 for 100", f.Limit)
	}
	if !slices.Contains(statuses, f.Status) {
		return idempotency.Page{}, fmt.Errorf("pgstore: there is no status %q: want one of %q", f.Status, statuses[1:])
	}
	after := []byte{}
	if f.Cursor != "" {
		id, err := idempotency.ParseID(f.Cursor)
		if err != nil {
			return idempotency.Page{}, fmt.Errorf("pgstore: %q is not a list's cursor", f.Cursor)
		}
		after = id[:]
	}
	if err := s.usable(ctx); err != nil {
		return idempotency.Page{}, err
	}
	page, err := s.list(ctx, f, after, limit)
	return page, s.explain(s.sawOf(err))
}

func (s *Store) list(ctx context.Context, f idempotency.Filter, after []byte, limit int) (idempotency.Page, error) {
	text := s.q.list
	if f.Status == idempotency.StatusInProgress || f.Status == idempotency.StatusUnknown {
		text = s.q.listHeld
	}
	var page idempotency.Page
	seen := 0
	full := false
	err := pooled{s.pool}.query(ctx, text, func(scan func(...any) error) error {
		if full {
			return nil
		}
		var v stored
		var at int64
		if err := scan(append([]any{&at}, v.into()...)...); err != nil {
			return err
		}
		seen++
		after = v.id
		r, err := v.record()
		if err != nil {
			return err
		}
		now := timeOf(at)
		rec, ok := idempotency.View(r, now)
		if ok && (f.Status == "" || rec.Status() == f.Status) && (f.Tenant == "" || rec.Key.Tenant == f.Tenant) &&
			(f.Route == "" || rec.Origin.Route == f.Route) && (f.Older <= 0 || now.Sub(rec.Updated) >= f.Older) {
			page.Records = append(page.Records, rec)
			full = len(page.Records) == limit
		}
		return nil
	}, s.now(), after, listScan)
	if err != nil {
		return idempotency.Page{}, err
	}
	if seen == listScan || full {
		page.Next = hex.EncodeToString(after)
	}
	return page, nil
}

// Settle implements idempotency.Keeper.
func (s *Store) Settle(ctx context.Context, k idempotency.Key, seen idempotency.Revision, r idempotency.Result) error {
	if err := r.Validate(); err != nil {
		return err
	}
	r = wholeResult(r)
	return s.explain(s.change(ctx, &change{
		id: k.ID, rank: rankOther, away: true, size: len(r.Payload),
		apply: func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
			return idempotency.SettleBy(prev, seen, r, now)
		},
	}))
}

// Forget implements idempotency.Keeper.
func (s *Store) Forget(ctx context.Context, k idempotency.Key, seen idempotency.Revision) error {
	return s.explain(s.change(ctx, &change{
		id: k.ID, rank: rankOther, away: true,
		apply: func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
			return idempotency.ForgetBy(prev, seen, now)
		},
	}))
}
