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

// decide decides the operations, one after the other, and returns those whose
// answer counts only if what has moved is written.
func (u *limitUnit) decide(batch []*limitOp) (open []*limitOp) {
	for _, o := range batch {
		states, befores := make([]*ratelimit.State, len(o.ids)), make([]ratelimit.State, len(o.ids))
		var fault error
		for i, id := range o.ids {
			r := u.rows[id]
			states[i], befores[i] = &r.state, r.state
			fault = errors.Join(fault, r.err)
		}
		if fault != nil {
			o.err, o.decided = fault, true
			continue
		}
		if o.back {
			for i := range o.charges {
				o.charges[i].Rule.ReturnAt(states[i], o.charges[i].Cost, o.receipts[i], u.now)
			}
		} else {
			o.d = ratelimit.TakeAll(o.charges, states, u.now)
		}
		sure := true
		for i, id := range o.ids {
			r := u.rows[id]
			r.moved = r.moved || !sameBucket(&befores[i], states[i])
			sure = sure && !r.moved
		}
		if o.decided = sure; !sure {
			open = append(open, o)
		}
	}
	return open
}

func sameBucket(a, b *ratelimit.State) bool {
	return a.Arrival == b.Arrival && a.Rem == b.Rem && a.Window == b.Window && a.Quota == b.Quota &&
		a.Burst == b.Burst && a.Since == b.Since && a.Returned == b.Returned
}

// moved are the buckets to be written, in order.
func (u *limitUnit) moved() []*limitRow {
	var list []*limitRow
	for _, id := range u.ids {
		if r := u.rows[string(id)]; r.moved {
			list = append(list, r)
		}
	}
	return list
}

// write writes what has moved, all or, if any of it is not as it was read,
// none.
func (u *limitUnit) write() (done bool, err error) {
	moved := u.moved()
	if len(moved) == 1 {
		var tag pgconn.CommandTag
		ctx, r := context.Background(), moved[0]
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
	if missing := slices.DeleteFunc(slices.Clone(moved), func(r *limitRow) bool { return r.old != nil }); len(missing) > 0 {
		ids := make([][]byte, len(missing))
		for i, r := range missing {
			ids[i], r.old = []byte(r.id), fullState
		}
		b.Queue(u.l.q.insert, ids, fullState, u.now+keepSlack)
	}
	n := b.Len() - 1
	b.Queue(u.l.q.update, update(moved)...)
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
		done = tag.RowsAffected() == int64(len(moved))
		return err
	})
	return done && err == nil, err
}

// update are the arguments of the update of rows.
func update(moved []*limitRow) []any {
	var ids, old, fresh [][]byte
	var keep []int64
	for _, r := range moved {
		ids, old, fresh = append(ids, []byte(r.id)), append(old, r.old), append(fresh, packLimit(&r.state))
		keep = append(keep, rowUntil(r.keep, r.state.Arrival))
	}
	return []any{ids, old, fresh, keep, len(moved)}
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
	moved := u.moved()
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
