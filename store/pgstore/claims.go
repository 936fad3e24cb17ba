package pgstore

import (
	"bytes"
	"slices"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/rowtext"
)

// claim is a Reserve on its first way: by a statement that reads, and inserts
// what is missing. It locks no row that is there.
type claim struct {
	err error
	c   idempotency.Claim

	looked   bool // its record was read, if there was one
	answered bool // else it must lock its record
	answer   idempotency.Answer
}

// claimBase is the time from which the times of a first claim's record count
// until the statement adds its own. Any time will do.
var claimBase = time.UnixMicro(1 << 50).UTC()

// claims are a batch's claims.
type claims struct {
	s      *Store
	all    []*claim
	leader map[idempotency.ID]*claim // whose claim is sent
	args   []any
	at     time.Time
	found  map[idempotency.ID]idempotency.Record
	added  map[idempotency.ID]bool
}

func (s *Store) newClaims(batch []*claim) *claims {
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
	return &claims{
		s: s, all: batch, leader: leader, args: cols.args(s.now()),
		found: make(map[idempotency.ID]idempotency.Record), added: make(map[idempotency.ID]bool, len(sent)),
	}
}

// row reads one result row of the statement.
func (b *claims) row(scan func(...any) error) error {
	var v stored
	var at int64
	if err := scan(append([]any{&at}, v.into()...)...); err != nil {
		return err
	}
	b.at = timeOf(at)
	id := idempotency.ID(v.id)
	if len(v.n) == 0 {
		b.added[id] = true
		return nil
	}
	rec, err := v.record()
	if err != nil {
		b.leader[id].err = err // its key's alone
		return nil
	}
	b.found[id] = rec
	return nil
}

// one reports whether the batch is of one key, that was not looked for before:
// most such claims are the first of their key, and are only inserted.
func (b *claims) one() bool { return len(b.leader) == 1 && !b.all[0].looked }

// rowOfOne reads the result row of a claim that was inserted alone.
func (b *claims) rowOfOne(scan func(...any) error) error {
	var at int64
	if err := scan(&at); err != nil {
		return err
	}
	b.at = timeOf(at)
	b.added[b.all[0].c.Key.ID] = true
	return nil
}

// answer answers the claims, once what was inserted is committed.
func (b *claims) answer() {
	one := b.one()
	for _, c := range b.all {
		c.looked = !one
		id := c.c.Key.ID
		lead := b.leader[id]
		rec, ok := b.found[id]
		switch {
		case lead.err != nil:
			c.err = lead.err
		case c == lead && b.added[id]:
			b.found[id], c.answer = idempotency.Decide(idempotency.Record{}, c.c, b.at)
			c.answered = true
			b.s.known.put(b.found[id])
		case !ok: // inserted by others at this moment
		default:
			next, a := idempotency.Decide(rec, c.c, b.at)
			if next.Revision == rec.Revision {
				c.answer, c.answered = a, true
			}
		}
	}
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
	f.prints = append(f.prints, rowtext.Prints(r.Prints))
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
