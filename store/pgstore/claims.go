package pgstore

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/escapement-dev/escapement/idempotency"
)

// claim is a Reserve on its first way: by a statement that reads, and inserts
// what is missing. It locks no row that is there.
type claim struct {
	call
	c idempotency.Claim

	answered bool // else it must lock its record
	answer   idempotency.Answer
}

func (c *claim) size() int { return 0 }

// claimBase is the time from which the times of a first claim's record count
// until the statement adds its own. Any time will do.
var claimBase = time.UnixMicro(1 << 50).UTC()

// runClaims answers a batch of claims by one statement, which is a transaction
// of its own.
func (s *Store) runClaims(batch []*claim) {
	var err error
	for range batchTries {
		if err = s.tryClaims(batch); !transient(err) {
			break
		}
	}
	if err == nil {
		return
	}
	if len(batch) > 1 && code(err) != "" { // one of them may be bad (F6)
		for _, c := range batch {
			s.runClaims([]*claim{c})
		}
		return
	}
	for _, c := range batch {
		c.err = err
	}
}

// batchTries is how often a batch is run that fails because of others.
const batchTries = 4

// send runs a batch of two statements in one round trip, and calls each for
// every row of the second.
func (s *Store) send(ctx context.Context, b *pgx.Batch, each func(func(...any) error) error) error {
	br := s.pool.SendBatch(ctx, b)
	_, err := br.Exec()
	if err == nil {
		var rows pgx.Rows
		if rows, err = br.Query(); err == nil {
			err = drain(rows, each)
		}
	}
	return errors.Join(err, br.Close()) // which commits
}

func (s *Store) tryClaims(batch []*claim) error {
	// Several claims of one key: the first is sent; the others meet what
	// becomes of it.
	leader := make(map[idempotency.ID]*claim, len(batch))
	sent := make([]*claim, 0, len(batch))
	for _, c := range batch {
		if leader[c.c.Key.ID] == nil {
			leader[c.c.Key.ID] = c
			sent = append(sent, c)
		}
	}
	slices.SortFunc(sent, func(a, b *claim) int { return bytes.Compare(a.c.Key.ID[:], b.c.Key.ID[:]) })
	var cols first
	for _, c := range sent {
		rec, _ := idempotency.Decide(idempotency.Record{}, c.c, claimBase)
		cols.add(&rec)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.o.Timeout)
	defer cancel()
	found := make(map[idempotency.ID]idempotency.Record, len(sent))
	inserted := make(map[idempotency.ID]bool, len(sent))
	var now time.Time
	// Both statements are one transaction: there is no COMMIT between them.
	var b pgx.Batch
	b.Queue(s.q.settings)
	b.Queue(s.q.claim, cols.args(s.now())...)
	err := s.send(ctx, &b, func(scan func(...any) error) error {
		var v stored
		var at int64
		if err := scan(append([]any{&at}, v.into()...)...); err != nil {
			return err
		}
		now = timeOf(at)
		id := idempotency.ID(v.id)
		if len(v.n) == 0 {
			inserted[id] = true
			return nil
		}
		rec, err := v.record()
		if err != nil {
			leader[id].err = err // its key's alone
			return nil
		}
		found[id] = rec
		return nil
	})
	if err != nil {
		return s.saw(err)
	}
	for _, c := range batch {
		id := c.c.Key.ID
		f := leader[id]
		rec, ok := found[id]
		switch {
		case f.err != nil:
			c.err = f.err
			continue
		case c == f && inserted[id]:
			found[id], c.answer = idempotency.Decide(idempotency.Record{}, c.c, now)
			c.answered = true
			s.known.put(found[id])
			continue
		case !ok: // inserted by others at this moment
			continue
		}
		next, a := idempotency.Decide(rec, c.c, now)
		if next.Revision == rec.Revision {
			c.answer, c.answered = a, true
		}
	}
	return nil
}

// first are the arguments of queries.claim, in the order of firstColumns.
type first struct {
	id, owner                            [][]byte
	tenant, prints, method, route, trace []string
	n                                    [7][]int64
}

// add appends the record of a first claim at the time claimBase.
func (f *first) add(r *idempotency.Record) {
	f.id = append(f.id, bytes.Clone(r.Key.ID[:]))
	f.owner = append(f.owner, bytes.Clone(r.Owner[:]))
	f.tenant = append(f.tenant, escape(r.Key.Tenant))
	f.prints = append(f.prints, writePrints(r.Prints))
	f.method = append(f.method, escape(r.Origin.Method))
	f.route = append(f.route, escape(r.Origin.Route))
	f.trace = append(f.trace, escape(r.Origin.Trace))
	keep := int64(0)
	if t, ok := r.Keep(); ok {
		keep = t.Sub(claimBase).Microseconds()
	}
	for i, n := range [...]int64{
		r.Terms.Lease.Microseconds(), r.Terms.Retention.Microseconds(), r.Terms.Remember.Microseconds(),
		r.Terms.Quiet.Microseconds(), int64(r.Terms.OnUnknown), r.LeaseEnd.Sub(claimBase).Microseconds(), keep,
	} {
		f.n[i] = append(f.n[i], n)
	}
}

func (f *first) args(dst ...any) []any {
	dst = append(dst, f.id, f.tenant, f.prints, f.owner, f.method, f.route, f.trace)
	for _, n := range f.n {
		dst = append(dst, n)
	}
	return dst
}
