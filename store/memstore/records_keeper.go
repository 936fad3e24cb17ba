package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// Bounds of lists.
const (
	defaultPage = 100
	maxPage     = 1000
	maxScan     = 20_000 // records that one List looks at
)

// Sweep implements idempotency.Keeper. Consecutive calls begin at different
// places, so that a small limit reaches every record in the end.
func (m *Records) Sweep(ctx context.Context, limit int) (removed int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	first := m.turn.Add(1)
	for i := uint32(0); i < recordShards && removed < limit; i++ {
		removed += m.expire(&m.shards[(first+i)%recordShards], limit-removed, m.time())
	}
	return removed, nil
}

// List implements idempotency.Keeper: in the order of the keys' IDs. A record
// that lives through the whole listing is listed exactly once, whatever else
// changes meanwhile. A faulty limit or cursor is an error.
func (m *Records) List(ctx context.Context, f idempotency.Filter) (idempotency.Page, error) {
	limit := f.Limit
	if limit == 0 {
		limit = defaultPage
	}
	var errs []error
	if limit < 1 || limit > maxPage {
		errs = append(errs, fmt.Errorf("memstore: list with a limit of %d: want 1 to %d, or 0 for %d", f.Limit, maxPage, defaultPage))
	}
	var after idempotency.ID // the zero ID names no key: none comes before it
	if f.Cursor != "" {
		id, err := idempotency.ParseID(f.Cursor)
		if err != nil {
			errs = append(errs, fmt.Errorf("memstore: list with a cursor that no page gave: %w", err))
		}
		after = id
	}
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return idempotency.Page{}, err
	}
	var page idempotency.Page
	scanned := 0
	for i := int(after[0] >> (8 - recordShardBits)); i < recordShards; i++ {
		found, n := m.shards[i].list(f, after, m.time())
		for _, rec := range found {
			if len(page.Records) == limit {
				page.Next = page.Records[limit-1].Key.ID.String()
				return page, nil
			}
			page.Records = append(page.Records, outline(rec))
		}
		if scanned += n; scanned >= maxScan && i < recordShards-1 {
			page.Next = lastID(i).String()
			return page, nil
		}
	}
	return page, nil
}

// list returns the records after the given ID that f selects, in order, and
// how many records it looked at.
func (s *shard) list(f idempotency.Filter, after idempotency.ID, now time.Time) (found []idempotency.Record, scanned int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, e := range s.records {
		if bytes.Compare(id[:], after[:]) <= 0 {
			continue
		}
		rec, ok := idempotency.View(e.rec, now)
		switch {
		case !ok,
			f.Status != "" && f.Status != rec.Status(),
			f.Tenant != "" && f.Tenant != rec.Key.Tenant,
			f.Route != "" && f.Route != rec.Origin.Route,
			f.Older > 0 && now.Sub(rec.Updated) < f.Older:
			continue
		}
		found = append(found, rec)
	}
	slices.SortFunc(found, func(a, b idempotency.Record) int { return bytes.Compare(a.Key.ID[:], b.Key.ID[:]) })
	return found, len(s.records)
}

// lastID is the greatest ID of a shard.
func lastID(shard int) (id idempotency.ID) {
	for i := range id {
		id[i] = 0xff
	}
	id[0] = byte(shard<<(8-recordShardBits) | (1<<(8-recordShardBits) - 1))
	return id
}

// outline is a copy of rec as lists show it: without the payload and the
// steps' answers.
func outline(rec idempotency.Record) idempotency.Record {
	rec.Result.Payload = nil
	rec.Steps = slices.Clone(rec.Steps)
	for i := range rec.Steps {
		rec.Steps[i].Answer = nil
	}
	return clone(rec)
}

// Settle implements idempotency.Keeper. It returns the errors of
// Result.Validate; then nothing changed.
func (m *Records) Settle(ctx context.Context, k idempotency.Key, seen idempotency.Revision, r idempotency.Result) error {
	if err := errors.Join(ctx.Err(), r.Validate()); err != nil {
		return err
	}
	r = kept(r)
	return m.change(k.ID, func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
		return idempotency.SettleBy(prev, seen, r, now)
	})
}

// Forget implements idempotency.Keeper.
func (m *Records) Forget(ctx context.Context, k idempotency.Key, seen idempotency.Revision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return m.change(k.ID, func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
		return idempotency.ForgetBy(prev, seen, now)
	})
}
