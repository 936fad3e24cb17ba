package redisstore

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/escapement-dev/escapement/idempotency"
)

// Bounds of lists and sweeps.
const (
	maxScan   = 10_000 // keys that one call asks SCAN to look at, about
	sweepScan = 500
)

// Settle implements idempotency.Keeper. It is sent once: after an error that
// is ErrUnavailable, Lookup says what the record is.
func (s *Store) Settle(ctx context.Context, k idempotency.Key, seen idempotency.Revision, r idempotency.Result) error {
	if err := errors.Join(ctx.Err(), r.Validate(), fitSpan("window", &r.Window)); err != nil {
		return err
	}
	return s.operate(ctx, settleScript, k, strconv.FormatInt(int64(seen), 10), packResult(r), string(r.Payload))
}

// Forget implements idempotency.Keeper. It is sent once, like Settle.
func (s *Store) Forget(ctx context.Context, k idempotency.Key, seen idempotency.Revision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.operate(ctx, forgetScript, k, strconv.FormatInt(int64(seen), 10))
}

func (s *Store) operate(ctx context.Context, sc *script, k idempotency.Key, args ...string) error {
	msg, err := s.once(ctx, sc, []string{s.recordKey(k)}, append([]string{""}, args...))
	if err != nil {
		return explain(sc.name, err)
	}
	n, err := msg.AsInt64()
	switch {
	case err != nil:
		return errForm
	case n == 0:
		return idempotency.ErrNotFound
	case n == 2:
		return idempotency.ErrConflict
	case n == 3:
		return idempotency.ErrLive
	}
	return nil
}

// Sweep implements idempotency.Keeper. Redis removes by itself what has
// expired, somewhat later; what is left to do is to shrink records that are to
// be remembered, and to remove what a test's clock lets expire.
//
// It walks through the whole key space with SCAN, some 10,000 keys per call,
// and goes on where the last call of this Store stopped. So it may return 0
// though there is something to do further on.
func (s *Store) Sweep(ctx context.Context, limit int) (removed int, err error) {
	if err := ctx.Err(); err != nil || limit <= 0 {
		return 0, err
	}
	nodes, err := s.masters(ctx)
	if err != nil {
		return 0, err
	}
	var at place
	if last := s.sweep.cursor.Load(); last != nil {
		at = *last
	}
	pattern := s.recordPattern("")
	for scanned, ends := 0, 0; scanned < maxScan && ends < 2; scanned += sweepScan {
		n := nodeAt(nodes, at.node)
		if n == len(nodes) {
			at, ends = place{}, ends+1
			continue
		}
		if nodes[n].addr != at.node {
			at = place{node: nodes[n].addr}
		}
		keys, next, err := nodes[n].scan(ctx, at.cursor, pattern, sweepScan)
		if err != nil {
			return removed, err
		}
		for len(keys) > 0 {
			some := keys[:min(len(keys), limit-removed)]
			keys = keys[len(some):]
			got, err := s.expire(ctx, some)
			if removed += got; err != nil {
				return removed, err
			}
			if removed == limit {
				s.sweep.stay(at) // the same keys again: some may be left
				return removed, nil
			}
		}
		if at.cursor = next; next == 0 {
			at = place{node: nodes[n].addr + "\x00"} // the next one
		}
		s.sweep.stay(at)
	}
	return removed, nil
}

// expire applies the rule of Sweep to records.
func (s *Store) expire(ctx context.Context, keys []string) (removed int, err error) {
	calls := make([]call, len(keys))
	for i, k := range keys {
		calls[i] = call{keys: []string{k}, args: []string{s.clock()}}
	}
	for _, res := range s.runAll(ctx, expireScript, calls) {
		n, err := res.AsInt64()
		if err != nil {
			return removed, explain(expireScript.name, err)
		}
		removed += int(n)
	}
	return removed, nil
}

// List implements idempotency.Keeper. It walks through the whole key space
// with SCAN, some 10,000 keys per call at most, so a page may be empty though
// there is a next one. A record that lives through the whole listing is listed
// once; if Redis makes its table smaller meanwhile, perhaps twice or not at
// all. The errors are those of Filter.Validate, and one for a cursor that no
// page gave.
func (s *Store) List(ctx context.Context, f idempotency.Filter) (idempotency.Page, error) {
	if err := f.Validate(); err != nil {
		return idempotency.Page{}, err
	}
	limit, err := idempotency.PageSize(f.Limit)
	if err != nil {
		return idempotency.Page{}, err
	}
	var at place
	if f.Cursor != "" {
		if at, err = parsePlace(f.Cursor); err != nil {
			return idempotency.Page{}, err
		}
	}
	if err := ctx.Err(); err != nil {
		return idempotency.Page{}, err
	}
	nodes, err := s.masters(ctx)
	if err != nil {
		return idempotency.Page{}, err
	}
	pattern := s.recordPattern(f.Tenant)
	count := min(max(limit, 10), sweepScan)
	var page idempotency.Page
	for scanned := 0; scanned < maxScan; {
		n := nodeAt(nodes, at.node)
		if n == len(nodes) {
			return page, nil
		}
		if nodes[n].addr != at.node {
			at = place{node: nodes[n].addr}
		}
		keys, next, err := nodes[n].scan(ctx, at.cursor, pattern, count)
		if err != nil {
			return idempotency.Page{}, err
		}
		scanned += count
		if at.beyond(next) && count > 1 {
			count /= 2 // the table has changed: come to the end of the part that was begun
			continue
		}
		ids := at.left(keys, next)
		cut, err := s.fill(ctx, &page, ids, f, limit)
		if err != nil {
			return idempotency.Page{}, err
		}
		if cut != nil {
			at.interrupt(next, *cut)
			break
		}
		at.pass(next)
		if next == 0 {
			at = place{node: nodes[n].addr + "\x00"} // the next one
		}
		if len(page.Records) == limit {
			break
		}
	}
	if nodeAt(nodes, at.node) < len(nodes) {
		page.Next = at.String()
	}
	return page, nil
}

// fill adds to the page what the filter selects of the given records, in
// order. If the page is full before they are over, it returns the ID of the
// last one that was looked at.
func (s *Store) fill(ctx context.Context, page *idempotency.Page, found []foundRecord, f idempotency.Filter, limit int) (cut *idempotency.ID, err error) {
	calls := make([]call, len(found))
	for i, r := range found {
		calls[i] = call{keys: []string{r.key}, args: []string{s.clock(), ""}}
	}
	if len(calls) == 0 {
		return nil, nil
	}
	for i, res := range s.runAll(ctx, lookupScript, calls) {
		if len(page.Records) == limit {
			return &found[i-1].id, nil
		}
		msgs, err := res.ToArray()
		if err != nil {
			return nil, explain("list", err)
		}
		if len(msgs) < 3 {
			return nil, errForm
		}
		d, now, ok, err := readRecord(found[i].id, msgs[1:])
		if err != nil {
			return nil, err
		}
		rec, live := idempotency.View(d.rec, now)
		if ok && live && f.Selects(rec) {
			page.Records = append(page.Records, rec)
		}
	}
	return nil, nil
}

// foundRecord is the name of a record and the ID in it.
type foundRecord struct {
	id  idempotency.ID
	key string
}

// recordsIn returns the records that the names are of, in order, each once.
func recordsIn(keys []string) []foundRecord {
	found := make([]foundRecord, 0, len(keys))
	for _, k := range keys {
		if id, ok := recordID(k); ok {
			found = append(found, foundRecord{id, k})
		}
	}
	slices.SortFunc(found, func(a, b foundRecord) int { return cmpID(a.id, b.id) })
	return slices.CompactFunc(found, func(a, b foundRecord) bool { return a.id == b.id })
}
