package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// op is one operation that may write.
type op struct {
	// do applies the operation. It may be called more than once: when the
	// transaction of its batch was lost, and again alone.
	do func(ss session, now time.Time) error
	// first is true for what keeps, moves or ends a reservation: within a
	// batch it comes before the claims (F5).
	first bool
	size  int // of what it stores, in bytes, about
	since time.Time
	state atomic.Int32
	err   error
	done  chan struct{}
}

// States of an op.
const (
	waiting int32 = iota
	taken         // it is in a batch
	left          // its caller went away first (F6)
)

// writer is the one writer of a store: a goroutine that commits operations in
// batches. While one batch is being written, the next gathers.
type writer struct {
	conn *sql.Conn
	ss   *direct // on conn
	o    Options

	mu     sync.Mutex
	queue  []*op
	gone   int         // how many of queue have left
	closed atomic.Bool // set with mu held

	// version is SQLite's data_version, which changes when another connection
	// has written, and rival when it last did. Only the goroutine uses them.
	version int64
	rival   time.Time

	wake  chan struct{} // holds at most one signal
	stop  context.CancelFunc
	ended chan struct{}
}

func startWriter(conn *sql.Conn, ss *direct, o Options) *writer {
	ctx, stop := context.WithCancel(context.Background())
	w := &writer{conn: conn, ss: ss, o: o, wake: make(chan struct{}, 1), stop: stop, ended: make(chan struct{})}
	go w.run(ctx)
	return w
}

// submit waits until o has been applied and is durable. The error of a
// context that ended first says nothing of whether o is still applied, unless
// it had not been taken into a batch: then it is not.
func (w *writer) submit(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.since, o.done = time.Now(), make(chan struct{})
	w.mu.Lock()
	if w.closed.Load() {
		w.mu.Unlock()
		return ErrClosed
	}
	w.queue = append(w.queue, o)
	w.mu.Unlock()
	w.signal()
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		if o.state.CompareAndSwap(waiting, left) {
			w.forget()
		}
		return ctx.Err()
	}
}

func (w *writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// forget drops the operations that have left, once they are half of the
// queue: it must not grow while the file is locked.
func (w *writer) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone++
	if w.gone < 32 || 2*w.gone < len(w.queue) {
		return
	}
	kept := w.queue[:0]
	for _, o := range w.queue {
		if o.state.Load() != left {
			kept = append(kept, o)
		}
	}
	clear(w.queue[len(kept):])
	w.queue, w.gone = kept, 0
}

// take moves up to limit operations for which want says yes from the queue
// into a batch, and drops those that have left; a limit of 0 is none.
func (w *writer) take(limit int, want func(*op) bool) []*op {
	w.mu.Lock()
	defer w.mu.Unlock()
	var batch, rest []*op
	for _, o := range w.queue {
		switch {
		case o.state.Load() == left:
		case limit > 0 && len(batch) == limit || !want(o):
			rest = append(rest, o)
		case o.state.CompareAndSwap(waiting, taken):
			batch = append(batch, o)
		}
	}
	w.queue, w.gone = rest, 0
	return batch
}

func all(*op) bool { return true }

func (w *writer) empty() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue) == 0
}

func (w *writer) run(ctx context.Context) {
	defer close(w.ended)
	for {
		if w.empty() {
			select {
			case <-w.wake:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			w.fail(w.take(0, all), ErrClosed)
			return
		}
		if w.empty() {
			continue
		}
		err := w.conn.Raw(func(any) error {
			w.batch(ctx)
			return nil
		})
		if err != nil {
			w.fail(w.take(0, all), err)
		}
		if time.Since(w.rival) < rivalTime {
			w.pause(ctx, rivalPause)
		}
	}
}

// batchBytes bounds what one batch stores: nobody waits for the payloads of
// five hundred others.
const batchBytes = 16 << 20

// batch writes one batch. The operations are taken only when the file's lock
// is held: until then their callers can leave without a trace.
func (w *writer) batch(ctx context.Context) {
	if !w.begin(ctx) {
		return
	}
	w.watch()
	room := batchBytes
	batch := ordered(w.take(w.o.MaxBatch, func(o *op) bool {
		if room <= 0 {
			return false
		}
		room -= o.size
		return true
	}))
	for _, o := range batch {
		if o.err = w.apply(o); isFault(o.err) {
			// The transaction may be lost, and with it what came before.
			w.rollback()
			w.alone(ctx, batch)
			return
		}
	}
	if err := w.end(); err != nil {
		w.fail(batch, err)
		return
	}
	for _, o := range batch {
		close(o.done)
	}
}

// Bounds of the pause between two attempts to get the file's lock.
const (
	minPause = 250 * time.Microsecond
	maxPause = 5 * time.Millisecond
)

// begin gets the file's lock and reports whether there is a transaction. While
// others hold the lock, it fails the operations that have waited for too long,
// and returns false when none is left.
func (w *writer) begin(ctx context.Context) bool {
	err := w.lock(ctx, func(busy error) bool {
		overdue := time.Now().Add(-w.o.BusyTimeout)
		w.fail(w.take(0, func(o *op) bool { return o.since.Before(overdue) }), busy)
		return w.empty()
	})
	if err != nil && !isBusy(err) {
		w.fail(w.take(0, all), err)
	}
	return err == nil
}

// lock begins a transaction. While others hold the file's lock it asks enough
// whether it has waited enough.
//
// SQLite's own waiting (busy_timeout) is not used here: it soon looks only
// every 25 to 100 ms, and misses the moments between the commits of another
// process that is as busy as this one.
func (w *writer) lock(ctx context.Context, enough func(busy error) bool) error {
	for started := time.Now(); ; {
		err := w.ss.run("BEGIN IMMEDIATE")
		switch {
		case err == nil:
			return nil
		case !isBusy(err):
			w.rollback()
			return err
		case enough(err):
			return err
		}
		// Short at first, then an eighth of the time waited so far.
		if !w.pause(ctx, min(max(time.Since(started)/8, minPause), maxPause)) {
			return ErrClosed
		}
	}
}

// SQLite gives its lock to nobody in particular: a process that begins again
// as soon as it has committed starves the others. So where another connection
// has written within rivalTime, each batch is followed by a pause of
// rivalPause, twice the pause in which the others look.
const (
	rivalTime  = time.Second
	rivalPause = 2 * minPause
)

// watch notes whether others write.
func (w *writer) watch() {
	var v int64
	err := w.ss.query(context.Background(), dataVersion, func(row []any) (bool, error) {
		v, _ = row[0].(int64)
		return false, nil
	})
	if err == nil && w.version != 0 && v != w.version {
		w.rival = time.Now()
	}
	w.version = v
}

// pause reports false if the store is closed meanwhile.
func (w *writer) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// alone writes each operation in a transaction of its own, so that a bad one
// fails alone (F6).
func (w *writer) alone(ctx context.Context, batch []*op) {
	for _, o := range batch {
		until := time.Now().Add(w.o.BusyTimeout)
		o.err = w.lock(ctx, func(error) bool { return time.Now().After(until) })
		if o.err == nil {
			if o.err = w.apply(o); isFault(o.err) {
				w.rollback()
			} else if err := w.end(); err != nil {
				o.err = err
			}
		}
		close(o.done)
	}
}

// ordered puts what is first before the rest, each in the order of arrival.
func ordered(batch []*op) []*op {
	out := make([]*op, 0, len(batch))
	for _, first := range []bool{true, false} {
		for _, o := range batch {
			if o.first == first {
				out = append(out, o)
			}
		}
	}
	return out
}

func (w *writer) apply(o *op) error { return o.do(w.ss, now(w.o)) }

// end commits. With an error nothing is assumed about the batch, but that the
// connection is out of the transaction.
func (w *writer) end() error {
	err := w.ss.run("COMMIT")
	if err != nil {
		w.rollback()
	}
	return err
}

// rollback leaves the transaction, if there still is one: SQLite has left it
// already after some errors, and then this one fails.
func (w *writer) rollback() { _ = w.ss.run("ROLLBACK") }

func (w *writer) fail(batch []*op, err error) {
	for _, o := range batch {
		o.err = err
		close(o.done)
	}
}

// close lets the batch that is being written end, fails what waits, and
// returns when the goroutine has ended.
func (w *writer) close() {
	w.mu.Lock()
	w.closed.Store(true)
	w.mu.Unlock()
	w.stop()
	<-w.ended
}

// now is the store's time: whole microseconds, UTC.
func now(o Options) time.Time { return o.Now().UTC().Truncate(time.Microsecond) }

// ErrClosed is the error of every operation after Close; nothing changed.
var ErrClosed = errors.New("sqlitestore: the store is closed")
