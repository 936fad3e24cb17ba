package sqlitestore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// Bounds of one piece of a sweep: other operations wait no longer than it
// takes, and it may need a page for every 4 KiB of payload.
const (
	sweepRecords = 128
	sweepBytes   = 4 << 20
)

// Sweep implements idempotency.Keeper. It works in pieces of at most 128
// records or about 4 MiB of payloads, each a part of some batch of the writer,
// so that others wait for milliseconds. A limit of 0 or less removes nothing.
// With an error, the count is of what was removed before it.
func (s *Store) Sweep(ctx context.Context, limit int) (removed int, err error) {
	for removed < limit {
		n := 0
		err := s.write(ctx, false, func(ss session, now time.Time) (err error) {
			n, err = sweep(context.Background(), ss, min(limit-removed, sweepRecords), now)
			return err
		})
		if err != nil {
			return removed, err
		}
		if n == 0 {
			return removed, nil
		}
		removed += n
	}
	return removed, nil
}

func sweep(ctx context.Context, ss session, limit int, now time.Time) (int, error) {
	var due []row
	room := int64(sweepBytes)
	err := ss.query(ctx, selectDue, func(v []any) (bool, error) {
		r, err := readRow(v[:resultColumns])
		if err != nil {
			return false, damaged(r.Key.ID, err)
		}
		due = append(due, r)
		size, _ := v[resultColumns].(int64)
		room -= size
		return room > 0, nil
	}, micros(now), int64(limit))
	if err != nil {
		return 0, err
	}
	n := 0
	for _, r := range due {
		next, keep := idempotency.Expire(r.Record, now)
		switch {
		case !keep:
			err = remove(ctx, ss, r)
		case next.Revision != r.Revision: // shrunk: it has no payload
			err = save(ctx, ss, r, next)
		default:
			continue
		}
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

// listScan is how many records one page looks at, at least, where the filter
// says more than the file's indexes can.
const listScan = 1000

// List implements idempotency.Keeper. Records come in the order in which their
// keys were first claimed. A page looks at 1000 records at most (or at its
// limit), and may so have fewer than there are. It returns the errors of
// Filter.Validate, and one for a cursor that no page gave.
func (s *Store) List(ctx context.Context, f idempotency.Filter) (idempotency.Page, error) {
	if err := f.Validate(); err != nil {
		return idempotency.Page{}, err
	}
	limit, err := idempotency.PageSize(f.Limit)
	if err != nil {
		return idempotency.Page{}, err
	}
	after := int64(0)
	if f.Cursor != "" {
		n, err := strconv.ParseInt(f.Cursor, 10, 64)
		if err != nil || n < 0 {
			return idempotency.Page{}, fmt.Errorf("sqlitestore: %q is not a list's cursor", f.Cursor)
		}
		after = n
	}
	var page idempotency.Page
	err = s.read(ctx, func(ss session, now time.Time) (err error) {
		page, err = list(ctx, ss, f, after, limit, now)
		return err
	})
	return page, err
}

func list(ctx context.Context, ss session, f idempotency.Filter, after int64, limit int, now time.Time) (idempotency.Page, error) {
	// Held records are few: their tenant is looked at here.
	st, args := listAll, []any{after}
	switch {
	case f.Status == idempotency.StatusInProgress || f.Status == idempotency.StatusUnknown:
		st = listHeld
	case f.Tenant != "":
		st, args = listTenant, append(args, f.Tenant)
	}
	scan := max(limit, listScan)
	var page idempotency.Page
	seen, last := 0, after
	err := ss.query(ctx, st, func(v []any) (bool, error) {
		r, err := readRow(v)
		if err != nil {
			return false, damaged(r.Key.ID, err)
		}
		seen, last = seen+1, r.seq
		if rec, ok := idempotency.View(r.Record, now); ok && f.Selects(rec) {
			page.Records = append(page.Records, rec)
		}
		return len(page.Records) < limit, nil
	}, append(args, int64(scan))...)
	if err != nil {
		return idempotency.Page{}, err
	}
	if seen == scan || len(page.Records) == limit {
		page.Next = strconv.FormatInt(last, 10)
	}
	return page, nil
}

// Settle implements idempotency.Keeper.
func (s *Store) Settle(ctx context.Context, k idempotency.Key, seen idempotency.Revision, r idempotency.Result) error {
	if err := r.Validate(); err != nil {
		return err
	}
	return s.write(ctx, false, func(ss session, now time.Time) error {
		return change(context.Background(), ss, k.ID, func(prev idempotency.Record) (idempotency.Record, error) {
			return idempotency.SettleBy(prev, seen, r, now)
		})
	})
}

// Forget implements idempotency.Keeper.
func (s *Store) Forget(ctx context.Context, k idempotency.Key, seen idempotency.Revision) error {
	return s.write(ctx, false, func(ss session, now time.Time) error {
		return change(context.Background(), ss, k.ID, func(prev idempotency.Record) (idempotency.Record, error) {
			return idempotency.ForgetBy(prev, seen, now)
		})
	})
}
