package pgstore

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/escapement-dev/escapement/ratelimit"
)

// limitOp is a Take or a Return in a batch.
type limitOp struct {
	call
	charges  []ratelimit.Charge
	ids      []string // of the charges' buckets
	receipts []ratelimit.Receipt
	back     bool // it is a Return

	d       ratelimit.Decision
	decided bool
}

func (o *limitOp) bytes() int { return 0 }

// contention remembers that others write the same buckets: then it is quicker
// to lock them than to try without.
type contention struct{ left atomic.Int32 }

// contended is for how many batches that is believed.
const contended = 32

func (c *contention) met()       { c.left.Store(contended) }
func (c *contention) lock() bool { return c.left.Load() > 0 && c.left.Add(-1) >= 0 }

// limitTries is how often a batch is tried that others are in the way of.
const limitTries = 5

// run decides a batch. Where a lock is not to be had, each operation runs
// alone, since somebody may hold one bucket for long (F6).
func (l *Limits) run(batch []*limitOp) {
	for try := 1; ; {
		again, err := l.try(batch, try > 1)
		left := undecided(batch)
		switch {
		case len(left) == 0:
			return
		case !again || try == limitTries:
			fail(left, err)
			return
		case try > 1 && len(left) > 1 && transient(err):
			l.runEach(left)
			return
		case err != nil || len(left) == len(batch):
			try++
		}
		batch = left
	}
}

// runEach runs operations alone. What one of them could not lock, the others do
// not wait for.
func (l *Limits) runEach(batch []*limitOp) {
	held := make(map[string]bool)
	for _, o := range batch {
		one := []*limitOp{o}
		if slices.ContainsFunc(o.ids, func(id string) bool { return held[id] }) {
			fail(one, ErrLocked)
			continue
		}
		_, err := l.try(one, true)
		if one = undecided(one); len(one) > 0 {
			fail(one, err)
			for _, id := range o.ids {
				held[id] = true
			}
		}
	}
}

func undecided(batch []*limitOp) []*limitOp {
	return slices.DeleteFunc(slices.Clone(batch), func(o *limitOp) bool { return o.decided })
}

// fail ends operations with an error. Where others were in the way, nothing
// changed.
func fail(batch []*limitOp, err error) {
	if err == nil || transient(err) {
		err = errors.Join(ErrLocked, err)
	}
	for _, o := range batch {
		o.err = err
	}
}

// try decides what it can of a batch. Again says that nothing changed for the
// others, and that they may be tried again.
func (l *Limits) try(batch []*limitOp, lock bool) (again bool, err error) {
	var lone context.Context
	if len(batch) == 1 {
		lone = batch[0].ctx
	}
	w, err := l.s.wire(lone)
	if err != nil {
		return false, err
	}
	defer w.release()
	u := l.unit(w, batch)
	if !lock {
		if err := u.read(); err != nil {
			return repeatable(err), w.fault(err)
		}
		if batch = u.decide(batch); len(batch) == 0 {
			return true, nil
		}
		if !l.busy.lock() {
			done, err := u.write()
			if err != nil {
				return transient(err), w.fault(err)
			}
			if done {
				settle(batch)
			} else {
				l.busy.met()
			}
			return true, nil
		}
		u = l.unit(w, batch)
	}
	if err := u.lock(); err != nil {
		return repeatable(err), w.fault(err)
	}
	for _, r := range u.rows {
		r.held = true
	}
	batch = u.decide(batch)
	done, err := u.end()
	if err != nil {
		return transient(err), w.fault(err)
	}
	if done {
		settle(batch)
	}
	return true, nil
}

// repeatable reports whether what failed before anything was written may
// succeed on another connection, or when others are out of the way.
func repeatable(err error) bool {
	c := code(err)
	return transient(err) || c == "" && !errors.Is(err, os.ErrDeadlineExceeded) || strings.HasPrefix(c, "57")
}

func settle(batch []*limitOp) {
	for _, o := range batch {
		o.decided = true
	}
}
