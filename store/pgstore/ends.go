package pgstore

import (
	"bytes"
	"slices"
	"sync"

	"github.com/escapement-dev/escapement/idempotency"
)

// finish is an End with a result on its short way: by a statement that takes
// effect only where the record is, by its revision, the one that this process
// wrote last. What the rule makes of that record is known before.
type finish struct {
	rec, next idempotency.Record // next at the time rec.Updated

	ok bool // else it must lock and read its record
}

// finishing returns the short way of an End, or nil if it has none.
func (s *Store) finishing(r idempotency.Reservation, e idempotency.Ending) *finish {
	if e.Kind != idempotency.EndedDone {
		return nil
	}
	rec, ok := s.known.get(r.Key.ID)
	// Marks end at times of their own, and a mark may be added.
	if !ok || len(rec.Marks) > 0 || r.Repeated {
		return nil
	}
	next, err := idempotency.Finish(rec, r, e, rec.Updated)
	if err != nil || next.Revision == rec.Revision {
		return nil
	}
	return &finish{rec: rec, next: next}
}

// ends are a batch's endings.
type ends struct {
	s    *Store
	sent map[idempotency.ID]*finish
	args []any
	done []*finish
}

func (s *Store) newEnds(batch []*finish) *ends {
	sorted := slices.Clone(batch)
	slices.SortFunc(sorted, func(a, b *finish) int { return bytes.Compare(a.rec.Key.ID[:], b.rec.Key.ID[:]) })
	sent := make(map[idempotency.ID]*finish, len(batch))
	var id, owner, payload [][]byte
	var n [9][]int64
	for _, f := range sorted {
		if sent[f.rec.Key.ID] != nil {
			continue // the same End twice: the second finds it done
		}
		sent[f.rec.Key.ID] = f
		id = append(id, f.rec.Key.ID[:])
		owner = append(owner, f.rec.Owner[:])
		p := f.next.Result.Payload
		if len(p) == 0 {
			p = nil
		}
		payload = append(payload, p)
		at := f.rec.Updated
		until, window := int64(0), int64(-1)
		if t, ok := f.rec.Expiry(); ok {
			until = micros(t)
		}
		if !f.next.WindowEnd.IsZero() {
			window = f.next.WindowEnd.Sub(at).Microseconds()
		}
		res := &f.next.Result
		for i, v := range [...]int64{
			int64(f.rec.Revision), until, int64(res.Class), int64(res.Status), number(res.NotKept),
			res.Window.Microseconds(), int64(res.By), window, f.next.Expires.Sub(at).Microseconds(),
		} {
			n[i] = append(n[i], v)
		}
	}
	args := []any{s.now(), id, owner}
	for _, v := range n {
		args = append(args, v)
	}
	return &ends{s: s, sent: sent, args: append(args, payload)}
}

// row reads one result row of the statement.
func (b *ends) row(scan func(...any) error) error {
	var id []byte
	if err := scan(&id); err != nil {
		return err
	}
	b.done = append(b.done, b.sent[idempotency.ID(id)])
	return nil
}

// answer answers those that took effect, once it is committed.
func (b *ends) answer() {
	for _, f := range b.done {
		f.ok = true
		b.s.known.drop(f.rec.Key.ID)
	}
}

// known are the held records as this process wrote them last: those that it
// will end, mostly. A record that somebody else has written since is no longer
// right, which its revision tells.
type known struct {
	mu   sync.Mutex
	recs map[idempotency.ID]idempotency.Record
}

// maxKnown bounds the memory for reservations whose end never comes.
const maxKnown = 1 << 14

func (k *known) get(id idempotency.ID) (idempotency.Record, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, ok := k.recs[id]
	return r, ok
}

// put keeps r if it is held, and else forgets its key.
func (k *known) put(r idempotency.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.State != idempotency.Held || r.Owner.IsZero() {
		delete(k.recs, r.Key.ID)
		return
	}
	if k.recs == nil {
		k.recs = make(map[idempotency.ID]idempotency.Record)
	}
	if len(k.recs) >= maxKnown {
		for id := range k.recs { // any one
			delete(k.recs, id)
			break
		}
	}
	k.recs[r.Key.ID] = r
}

func (k *known) drop(id idempotency.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.recs, id)
}
