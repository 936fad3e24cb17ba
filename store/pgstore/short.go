package pgstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// short is an operation on its short way, in one round trip and one
// transaction with others: a claim, or the end of a record that is known. What
// is not decided there goes the long way, as a change.
type short struct {
	call
	claim  *claim
	finish *finish
}

func (o *short) size() int {
	if o.finish != nil {
		return len(o.finish.next.Result.Payload)
	}
	return 0
}

// Two batches of short operations are under way at a time where enough have
// gathered for a second one: while the server flushes one, it works at the
// other. Smaller batches cost more than that gains.
const (
	shortWidth = 2
	shortMore  = 64
)

// batchTries is how often a batch is run that fails because of others.
const batchTries = 4

func (s *Store) runShort(batch []*short) {
	runBatch(batch, s.tryShort, s.lookAgain, func(o *short, err error) { o.err = err })
}

// lookAgain reads the records of claims that only tried to insert theirs.
func (s *Store) lookAgain(batch []*short) {
	var rest []*short
	for _, o := range batch {
		if c := o.claim; c != nil && o.err == nil && !c.answered && !c.looked {
			c.looked = true
			rest = append(rest, o)
		}
	}
	if len(rest) > 0 {
		s.runShort(rest)
	}
}

// tryShort runs a batch: its ends come before its claims (F5).
func (s *Store) tryShort(batch []*short) error {
	var lone context.Context
	if len(batch) == 1 {
		lone = batch[0].ctx
	}
	w, err := s.wire(lone)
	if err != nil {
		return err
	}
	defer w.release()
	var endings []*finish
	var reserves []*claim
	for _, o := range batch {
		if o.finish != nil {
			endings = append(endings, o.finish)
		} else {
			o.claim.err = nil
			reserves = append(reserves, o.claim)
		}
	}
	var list []shortStatement
	if len(endings) > 0 {
		e := s.newEnds(endings)
		st := shortStatement{text: s.q.finish, args: e.args, row: e.row, answer: e.answer}
		if len(e.sent) == 1 {
			st.text, st.args = s.q.finishOne, scalars(e.args)
		}
		list = append(list, st)
	}
	if len(reserves) > 0 {
		c := s.newClaims(reserves)
		st := shortStatement{text: s.q.claim, args: c.args, row: c.row, answer: c.answer}
		if c.one() {
			st.text, st.args, st.row = s.q.claimOne, scalars(c.args), c.rowOfOne
		}
		list = append(list, st)
	}
	if check := len(batch) > 1 || s.size.due(); check || len(list) > 1 {
		err = s.runTogether(w.conn, list, check)
	} else {
		err = list[0].read(w.conn.Query(context.Background(), list[0].text, list[0].args...))
	}
	if err != nil {
		return w.fault(err)
	}
	for _, st := range list {
		st.answer()
	}
	for _, o := range batch {
		if o.claim != nil {
			o.err = o.claim.err
		}
	}
	return nil
}

// shortStatement is one statement of a batch: row is called for each of its
// rows, and answer once all is committed.
type shortStatement struct {
	text   string
	args   []any
	row    func(scan func(...any) error) error
	answer func()
}

func (st *shortStatement) read(rows pgx.Rows, err error) error {
	if err != nil {
		return err
	}
	return drain(rows, st.row)
}

// runTogether runs statements in one round trip. They are one transaction:
// there is no COMMIT between them. Where check is set, plans that scan are
// forbidden before, and the size of the table is read.
func (s *Store) runTogether(conn *pgxpool.Conn, list []shortStatement, check bool) error {
	var b pgx.Batch
	if check {
		b.Queue(s.q.settings)
	}
	for _, st := range list {
		b.Queue(st.text, st.args...)
	}
	br := conn.SendBatch(context.Background(), &b)
	var err error
	if check {
		var bytes int64
		if err = br.QueryRow().Scan(nil, nil, nil, nil, &bytes); err == nil {
			s.size.saw(bytes)
		}
	}
	for i := range list {
		if err == nil {
			err = list[i].read(br.Query())
		}
	}
	return errors.Join(err, br.Close()) // Close commits
}

// size knows whether the table is so large that the server makes no plan that
// scans it for one key; while it is not, a batch of one forbids such plans. It is
// looked at again from time to time. Larger batches always forbid them: they
// join, and where most of a large table was deleted, and it was analyzed then, a
// join may seem cheapest that reads the whole index for each batch.
type size struct {
	mu    sync.Mutex
	large bool
	at    time.Time
}

const (
	largeTable = 512 << 10 // bytes
	sizeEvery  = 10 * time.Second
)

func (z *size) due() bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	return !z.large || time.Since(z.at) > sizeEvery
}

func (z *size) saw(bytes int64) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.large, z.at = bytes >= largeTable, time.Now()
}
