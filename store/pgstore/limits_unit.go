package pgstore

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/escapement-dev/escapement/ratelimit"
)

// limitUnit is the buckets of a batch of operations, on one connection.
type limitUnit struct {
	l    *Limits
	w    *wire
	rows map[string]*limitRow
	ids  [][]byte // in order
	now  int64
}

func (l *Limits) unit(w *wire, batch []*limitOp) *limitUnit {
	u := &limitUnit{l: l, w: w, rows: make(map[string]*limitRow, len(batch))}
	var ids []string
	for _, o := range batch {
		for _, id := range o.ids {
			if u.rows[id] == nil {
				u.rows[id] = &limitRow{id: id}
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		u.ids = append(u.ids, []byte(id))
	}
	return u
}

// read reads the buckets, without a lock, and then the time.
func (u *limitUnit) read() error {
	if len(u.ids) == 1 && !u.l.size.due() {
		return u.readOne(u.w.conn.QueryRow(context.Background(), u.l.q.readOne, u.l.s.now(), u.ids[0]))
	}
	var b pgx.Batch
	b.Queue(u.l.q.settings)
	if len(u.ids) == 1 {
		b.Queue(u.l.q.readOne, u.l.s.now(), u.ids[0])
	} else {
		b.Queue(u.l.q.read, u.ids)
		b.Queue(u.l.q.now, u.l.s.now())
	}
	return u.send(&b, func(br pgx.BatchResults) error {
		if err := u.settings(br); err != nil {
			return err
		}
		if len(u.ids) == 1 {
			return u.readOne(br.QueryRow())
		}
		return u.readAll(br)
	})
}

func (u *limitUnit) settings(br pgx.BatchResults) error {
	var bytes int64
	err := br.QueryRow().Scan(&bytes)
	if err == nil {
		u.l.size.saw(bytes)
	}
	return err
}

func (u *limitUnit) readOne(row pgx.Row) error {
	var state []byte
	var keep *int64
	if err := row.Scan(&state, &keep, &u.now); err != nil {
		return err
	}
	if keep != nil {
		u.rows[string(u.ids[0])].found(state, *keep)
	}
	return nil
}

func (u *limitUnit) readAll(br pgx.BatchResults) error {
	rows, err := br.Query()
	if err != nil {
		return err
	}
	err = drain(rows, func(scan func(...any) error) error {
		var id, state []byte
		var keep int64
		if err := scan(&id, &state, &keep); err != nil {
			return err
		}
		u.rows[string(id)].found(state, keep)
		return nil
	})
	if err != nil {
		return err
	}
	return br.QueryRow().Scan(&u.now)
}

// decide decides the operations, one after the other. What changes nothing,
// as the buckets were read, is decided so. It returns those whose answer counts
// only once what has moved is written; others may be left for the next time.
func (u *limitUnit) decide(batch []*limitOp) (open []*limitOp) {
	var refused []*limitOp
	for _, o := range batch {
		rows := make([]*limitRow, len(o.ids))
		moved := false
		var fault error
		for i, id := range o.ids {
			rows[i] = u.rows[id]
			moved = moved || rows[i].moved
			fault = errors.Join(fault, rows[i].err)
		}
		switch {
		case fault != nil:
			o.err, o.decided = fault, true
		case u.apply(o, rows, false):
			for _, r := range rows {
				r.held = true
			}
			open = append(open, o)
		case !moved:
			o.decided = true
		default: // as if it had come before the others
			d := o.d
			if o.decided = !u.apply(o, rows, true); !o.decided {
				o.d = d
				refused = append(refused, o)
			}
		}
	}
	// What is refused because of the others is answered with them, if all that
	// it looked at is sure to be as it was.
	for _, o := range refused {
		if !slices.ContainsFunc(o.ids, func(id string) bool { return !u.rows[id].held }) {
			open = append(open, o)
		}
	}
	return open
}

// apply applies the rule, and reports whether it changed a bucket. Where first
// is set it does so to copies of what was read.
func (u *limitUnit) apply(o *limitOp, rows []*limitRow, first bool) (changed bool) {
	states := make([]*ratelimit.State, len(rows))
	before := make([]ratelimit.State, len(rows))
	for i, r := range rows {
		if states[i] = &r.state; !first {
			before[i] = r.state
			continue
		}
		before[i] = r.first()
		states[i] = &ratelimit.State{}
		*states[i] = before[i]
		if j := slices.Index(rows, r); j < i {
			states[i] = states[j]
		}
	}
	if o.back {
		for i := range o.charges {
			o.charges[i].Rule.ReturnAt(states[i], o.charges[i].Cost, o.receipts[i], u.now)
		}
	} else {
		o.d = ratelimit.TakeAll(o.charges, states, u.now)
	}
	for i, r := range rows {
		if !sameBucket(&before[i], states[i]) {
			changed = true
			r.moved = r.moved || !first
		}
	}
	return changed
}

func sameBucket(a, b *ratelimit.State) bool {
	return a.Arrival == b.Arrival && a.Rem == b.Rem && a.Window == b.Window && a.Quota == b.Quota &&
		a.Burst == b.Burst && a.Since == b.Since && a.Returned == b.Returned
}

// chosen are the buckets that yes says yes to, in order.
func (u *limitUnit) chosen(yes func(*limitRow) bool) []*limitRow {
	var list []*limitRow
	for _, id := range u.ids {
		if r := u.rows[string(id)]; yes(r) {
			list = append(list, r)
		}
	}
	return list
}

func (r *limitRow) isMoved() bool   { return r.moved }
func (r *limitRow) isHeld() bool    { return r.held }
func (r *limitRow) isMissing() bool { return r.held && r.old == nil }

// write writes what has moved, all or, if anything that it was decided by is
// not as it was read, nothing.
func (u *limitUnit) write() (done bool, err error) {
	held := u.chosen((*limitRow).isHeld)
	if len(held) == 1 {
		var tag pgconn.CommandTag
		ctx, r := context.Background(), held[0]
		fresh, keep := packLimit(&r.state), rowUntil(r.keep, r.state.Arrival)
		if r.old == nil {
			tag, err = u.w.conn.Exec(ctx, u.l.q.insertOne, []byte(r.id), fresh, keep)
		} else {
			tag, err = u.w.conn.Exec(ctx, u.l.q.updateOne, []byte(r.id), r.old, fresh, keep)
		}
		return tag.RowsAffected() == 1, err
	}
	var b pgx.Batch
	b.Queue(u.l.q.settings)
	// INVARIANT: rows are inserted first, then locked, both in the order of
	// their keys: so no two transactions wait for each other.
	if missing := u.chosen((*limitRow).isMissing); len(missing) > 0 {
		ids := make([][]byte, len(missing))
		for i, r := range missing {
			ids[i], r.old = []byte(r.id), fullState
		}
		b.Queue(u.l.q.insert, ids, fullState, int64(0))
	}
	n := b.Len() - 1
	b.Queue(u.l.q.update, update(held)...)
	err = u.send(&b, func(br pgx.BatchResults) error {
		if err := u.settings(br); err != nil {
			return err
		}
		for range n {
			if _, err := br.Exec(); err != nil {
				return err
			}
		}
		tag, err := br.Exec()
		done = tag.RowsAffected() > 0 // then it is all
		return err
	})
	return done && err == nil, err
}

// update are the arguments of the update of rows.
func update(held []*limitRow) []any {
	var ids, old, fresh [][]byte
	var keep []int64
	for _, r := range held {
		var state []byte // nil: it was only looked at
		if r.moved {
			state = packLimit(&r.state)
		}
		ids, old, fresh = append(ids, []byte(r.id)), append(old, r.old), append(fresh, state)
		keep = append(keep, rowUntil(r.keep, r.state.Arrival))
	}
	return []any{ids, old, fresh, keep, len(held)}
}

// lock begins a transaction, in which all buckets are there and locked.
func (u *limitUnit) lock() error {
	var b pgx.Batch
	b.Queue(u.l.q.begin)
	b.Queue(u.l.q.settings)
	b.Queue(u.l.q.insert, u.ids, fullState, int64(0))
	b.Queue(u.l.q.lock, u.ids)
	b.Queue(u.l.q.now, u.l.s.now())
	return u.send(&b, func(br pgx.BatchResults) error {
		if _, err := br.Exec(); err != nil {
			return err
		}
		if err := u.settings(br); err != nil {
			return err
		}
		if _, err := br.Exec(); err != nil {
			return err
		}
		return u.readAll(br)
	})
}

// end ends the transaction of lock. It is not done where a bucket was removed
// between its insert and its lock.
func (u *limitUnit) end() (done bool, err error) {
	moved := u.chosen((*limitRow).isMoved)
	if len(moved) == 0 || slices.ContainsFunc(moved, func(r *limitRow) bool { return r.old == nil }) {
		_, err := u.w.conn.Exec(context.Background(), u.l.q.rollback)
		return len(moved) == 0, err
	}
	var b pgx.Batch
	b.Queue(u.l.q.update, update(moved)...)
	b.Queue(u.l.q.commit)
	err = u.send(&b, func(br pgx.BatchResults) error {
		if _, err := br.Exec(); err != nil {
			return err
		}
		_, err := br.Exec()
		return err
	})
	return err == nil, err
}

// send runs a batch of statements in one round trip.
func (u *limitUnit) send(b *pgx.Batch, read func(pgx.BatchResults) error) error {
	br := u.w.conn.SendBatch(context.Background(), b)
	err := read(br)
	if cerr := br.Close(); err == nil {
		err = cerr
	}
	return err
}
