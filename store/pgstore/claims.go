package pgstore

import (
	"bytes"
	"context"
	"slices"
	"time"

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

func (s *Store) tryClaims(batch []*claim) error {
	// Several claims of one key: the first is sent; the others meet what
	// becomes of it.
	first := make(map[idempotency.ID]*claim, len(batch))
	sent := make([]*claim, 0, len(batch))
	for _, c := range batch {
		if first[c.c.Key.ID] == nil {
			first[c.c.Key.ID] = c
			sent = append(sent, c)
		}
	}
	slices.SortFunc(sent, func(a, b *claim) int { return bytes.Compare(a.c.Key.ID[:], b.c.Key.ID[:]) })
	cols := newColumns(len(sent))
	for _, c := range sent {
		rec, _ := idempotency.Decide(idempotency.Record{}, c.c, claimBase)
		cols.addFirst(&rec, claimBase)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.o.Timeout)
	defer cancel()
	found := make(map[idempotency.ID]idempotency.Record, len(sent))
	inserted := make(map[idempotency.ID]bool, len(sent))
	var now time.Time
	err := pooled{s.pool}.query(ctx, s.q.claim, func(scan func(...any) error) error {
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
			first[id].err = err // its key's alone
			return nil
		}
		found[id] = rec
		return nil
	}, cols.args([]any{s.now()})...)
	if err != nil {
		return s.saw(err)
	}
	for _, c := range batch {
		id := c.c.Key.ID
		f := first[id]
		rec, ok := found[id]
		switch {
		case f.err != nil:
			c.err = f.err
			continue
		case c == f && inserted[id]:
			found[id], c.answer = idempotency.Decide(idempotency.Record{}, c.c, now)
			c.answered = true
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
