package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/escapement-dev/escapement/idempotency"
)

// Ranks of changes: within a batch, what keeps, moves or ends a reservation
// comes first, and claims last (F5).
const (
	rankOwner = iota
	rankOther
	rankClaim
)

// change is an operation that locks a record, applies a rule to it, and writes
// what becomes of it.
type change struct {
	call
	id   idempotency.ID
	rank int
	// away is set for what may take the key from its owner. Such changes lock
	// FOR UPDATE, all others FOR NO KEY UPDATE; so share can tell who has
	// locked a record.
	away bool
	size int // of what it stores, in bytes, about

	// apply is the rule. It may be called more than once; the last call counts.
	apply func(prev idempotency.Record, now time.Time) (next idempotency.Record, err error)
	// held is called, where it is set, if somebody else has locked the record
	// and the rule wants to write. It reports whether that is an answer.
	// shared is true if share is set and FOR KEY SHARE was granted.
	held  func(prev idempotency.Record, now time.Time, tries int, shared bool) bool
	share bool
	tries int // before this one

	again  bool // others were faster: run it again
	locked bool // somebody has locked the record
}

func (c *change) bytes() int { return c.size }

// Bounds of the pause between two tries to lock a record.
const (
	minPause = time.Millisecond
	maxPause = 50 * time.Millisecond
)

// change runs c until it is decided.
func (s *Store) change(ctx context.Context, c *change) error {
	started := time.Now()
	for {
		c.again, c.locked = false, false
		if err := s.changes.submit(ctx, c); err != nil {
			return err
		}
		c.tries++
		switch {
		case c.again:
			continue
		case !c.locked:
			return nil
		case time.Since(started) > s.o.LockWait:
			return ErrLocked
		}
		if err := pause(ctx, c.tries); err != nil {
			return err
		}
	}
}

// pause waits before the next try.
func pause(ctx context.Context, tries int) error {
	d := min(minPause<<min(tries, 10), maxPause)
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// runChanges applies a batch in one transaction.
func (s *Store) runChanges(batch []*change) {
	runBatch(batch, s.tryChanges, nil, func(c *change, err error) { c.err = err })
}

// runBatch tries a batch as a whole, and again where the failure may pass. If
// the server refuses it, each member runs alone, since one of them may be bad
// (F6); else fail is told of each. After a success, done is called, if it is
// not nil, with what succeeded.
func runBatch[T any](batch []T, try func([]T) error, done func([]T), fail func(T, error)) {
	var err error
	for range batchTries {
		if err = try(batch); !transient(err) {
			break
		}
	}
	switch {
	case err == nil:
		if done != nil {
			done(batch)
		}
	case len(batch) > 1 && code(err) != "":
		for i := range batch {
			runBatch(batch[i:i+1:i+1], try, done, fail)
		}
	default:
		for _, m := range batch {
			fail(m, err)
		}
	}
}

// entry is a record in a batch.
type entry struct {
	id         idempotency.ID
	prev, next idempotency.Record
	found      bool // in the table
	locked     bool // by somebody else
	shared     bool
	freed      bool  // it was locked a moment ago, and is ours now
	err        error // it cannot be read
}

func (s *Store) tryChanges(batch []*change) error {
	var lone context.Context
	if len(batch) == 1 {
		lone = batch[0].ctx
	}
	w, err := s.wire(lone)
	if err != nil {
		return err
	}
	defer w.release()
	u := &unit{s: s, conn: w.conn, entries: make(map[idempotency.ID]*entry, len(batch))}
	if err := u.lock(batch); err != nil {
		return w.fault(err)
	}
	u.apply(batch)
	if err := u.write(batch); err != nil {
		return w.fault(err)
	}
	return nil
}

// unit is one transaction of the store's.
type unit struct {
	s       *Store
	conn    *pgxpool.Conn
	entries map[idempotency.ID]*entry
	now     time.Time
}

// lock begins the transaction, locks the batch's records in the order of their
// keys, and reads them.
func (u *unit) lock(batch []*change) error {
	away := make(map[idempotency.ID]bool)
	share := make(map[idempotency.ID]bool)
	for _, c := range batch {
		u.entries[c.id] = &entry{id: c.id}
		away[c.id] = away[c.id] || c.away
		share[c.id] = share[c.id] || c.share
	}
	var own, other [][]byte
	for _, id := range u.ids(nil) {
		if away[idempotency.ID(id)] {
			other = append(other, id)
		} else {
			own = append(own, id)
		}
	}
	var b pgx.Batch
	b.Queue(u.s.q.begin)
	b.Queue(u.s.q.now, u.s.now(), u.s.idle())
	if len(own) > 0 {
		b.Queue(u.s.q.lock, own)
	}
	if len(other) > 0 {
		b.Queue(u.s.q.lockAway, other)
	}
	err := u.send(&b, func(br pgx.BatchResults) error {
		if _, err := br.Exec(); err != nil {
			return err
		}
		var at int64
		if err := br.QueryRow().Scan(&at, nil, nil, nil, nil, nil, nil); err != nil {
			return err
		}
		u.now = timeOf(at)
		for range b.Len() - 2 {
			if err := u.rows(br, false); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}

	// What was not locked is missing, or locked by others: the committed
	// record is read. Steps are read now that their records are locked.
	missing := u.ids(func(e *entry) bool { return !e.found })
	steps := u.ids(func(e *entry) bool { return len(e.prev.Steps) > 0 })
	var shared [][]byte
	for _, id := range missing {
		if share[idempotency.ID(id)] {
			shared = append(shared, id)
		}
	}
	b = pgx.Batch{}
	if len(steps) > 0 {
		b.Queue(u.s.q.stepsOf, steps)
	}
	if len(shared) > 0 { // before the reading: nobody takes over what is shared until we end
		b.Queue(u.s.q.share, shared)
		b.Queue(u.s.q.relock, shared)
	}
	if len(missing) > 0 {
		b.Queue(u.s.q.read, missing)
	}
	if b.Len() == 0 {
		return nil
	}
	return u.send(&b, func(br pgx.BatchResults) error {
		if len(steps) > 0 {
			if err := u.steps(br); err != nil {
				return err
			}
		}
		if len(shared) > 0 {
			if err := keys(br, func(id idempotency.ID) { u.entries[id].shared = true }); err != nil {
				return err
			}
			if err := keys(br, func(id idempotency.ID) { u.entries[id].freed = true }); err != nil {
				return err
			}
		}
		if len(missing) > 0 {
			return u.rows(br, true)
		}
		return nil
	})
}

// ids returns the keys of the entries that want says yes to, in order.
func (u *unit) ids(want func(*entry) bool) [][]byte {
	out := make([][]byte, 0, len(u.entries))
	for _, e := range u.entries {
		if want == nil || want(e) {
			out = append(out, e.id[:])
		}
	}
	slices.SortFunc(out, bytes.Compare)
	return out
}

// send runs a batch of statements in one round trip.
func (u *unit) send(b *pgx.Batch, read func(pgx.BatchResults) error) error {
	br := u.conn.SendBatch(context.Background(), b)
	err := read(br)
	if cerr := br.Close(); err == nil {
		err = cerr
	}
	return err
}

func (u *unit) rows(br pgx.BatchResults, locked bool) error {
	rows, err := br.Query()
	if err != nil {
		return err
	}
	return drain(rows, func(scan func(...any) error) error {
		var v stored
		if err := scan(v.into()...); err != nil {
			return err
		}
		e := u.entries[idempotency.ID(v.id)]
		e.prev, e.err = v.record()
		e.found, e.locked = true, locked
		return nil
	})
}

// keys reads a result of keys only.
func keys(br pgx.BatchResults, each func(idempotency.ID)) error {
	rows, err := br.Query()
	if err != nil {
		return err
	}
	return drain(rows, func(scan func(...any) error) error {
		var id []byte
		if err := scan(&id); err != nil {
			return err
		}
		each(idempotency.ID(id))
		return nil
	})
}

func (u *unit) steps(br pgx.BatchResults) error {
	rows, err := br.Query()
	if err != nil {
		return err
	}
	return drain(rows, func(scan func(...any) error) error {
		var id []byte
		var text string
		if err := scan(&id, &text); err != nil {
			return err
		}
		e := u.entries[idempotency.ID(id)]
		e.prev.Steps, e.err = readSteps(text)
		return nil
	})
}

// apply applies the rules, in the order of F5.
func (u *unit) apply(batch []*change) {
	for _, e := range u.entries {
		e.next = e.prev
	}
	sorted := slices.Clone(batch)
	slices.SortStableFunc(sorted, func(a, b *change) int { return cmp.Compare(a.rank, b.rank) })
	for _, c := range sorted {
		e := u.entries[c.id]
		if c.err = e.err; c.err != nil {
			continue
		}
		if c.again = e.freed; c.again {
			continue
		}
		next, err := c.apply(e.next, u.now)
		switch {
		case err != nil:
			c.err = err
		case !e.locked:
			e.next = next
		case next.Revision != e.prev.Revision:
			c.locked = c.held == nil || !c.held(e.prev, u.now, c.tries, e.shared)
		}
	}
}

// write writes what has changed, and commits.
func (u *unit) write(batch []*change) error {
	w := newWrites()
	for _, id := range slices.SortedFunc(maps.Keys(u.entries), func(a, b idempotency.ID) int { return bytes.Compare(a[:], b[:]) }) {
		w.add(u.entries[id])
	}
	var b pgx.Batch
	list := w.statements(u.s.q)
	for _, st := range list {
		b.Queue(st.text, st.args...)
	}
	b.Queue("COMMIT")
	inserted := make(map[idempotency.ID]bool)
	err := u.send(&b, func(br pgx.BatchResults) error {
		for _, st := range list {
			if !st.inserts {
				if _, err := br.Exec(); err != nil {
					return err
				}
				continue
			}
			if err := keys(br, func(id idempotency.ID) { inserted[id] = true }); err != nil {
				return err
			}
		}
		_, err := br.Exec()
		return err
	})
	if err != nil {
		return err
	}
	for _, e := range u.entries {
		if !e.locked && e.err == nil {
			u.s.known.put(e.next)
		}
	}
	for _, c := range batch {
		if e := u.entries[c.id]; w.inserts(e) && !inserted[c.id] {
			c.again, c.err = true, nil
		}
	}
	return nil
}
