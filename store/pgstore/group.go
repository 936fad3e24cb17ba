package pgstore

import (
	"context"
	"sync"
	"sync/atomic"
)

// States of an op.
const (
	waiting int32 = iota
	taken         // it is in a batch
	left          // its caller went away first (F6)
)

// call is one operation's place in a group.
type call struct {
	state atomic.Int32
	done  chan struct{}
	err   error
	ctx   context.Context // of the caller, where the operation is a batch of one
}

func (c *call) place() *call { return c }

// member is an operation of a group.
type member interface{ place() *call }

// group gathers operations into batches: while one batch is under way, the
// next gathers. There are no timers. Its goroutines live only while there is
// something to do; an operation that comes when nothing is under way is run by
// its caller's.
type group[T member] struct {
	limit int // operations per batch
	width int // batches at a time
	more  int // operations that make it worth while to run one beside another
	size  func(T) int
	run   func([]T) // sets each operation's err

	mu      sync.Mutex
	queue   []T
	gone    int // how many of queue have left
	running int // batches under way
	closed  bool
	idle    sync.WaitGroup
}

// batchBytes bounds what one batch stores: nobody waits for the payloads of
// five hundred others.
const batchBytes = 16 << 20

// submit waits until o was in a batch that has ended. The error of a context
// that ended first says nothing of whether o is still applied, unless it had
// not been taken into a batch: then it is not.
func (g *group[T]) submit(ctx context.Context, o T) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c := o.place()
	c.state.Store(waiting)
	c.err, c.done = nil, make(chan struct{})
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return ErrClosed
	}
	if g.running == 0 {
		g.running++
		g.idle.Add(1)
		g.mu.Unlock()
		c.state.Store(taken)
		c.ctx = ctx
		g.run([]T{o})
		c.ctx = nil
		g.pass()
		return c.err
	}
	g.queue = append(g.queue, o)
	if g.running < g.width && len(g.queue)-g.gone >= g.more {
		g.running++
		g.idle.Add(1)
		go g.work()
	}
	g.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		if c.state.CompareAndSwap(waiting, left) {
			g.forget()
		}
		return ctx.Err()
	}
}

// pass hands what has gathered to a goroutine.
func (g *group[T]) pass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queue) > 0 {
		go g.work()
		return
	}
	g.running--
	g.idle.Done()
}

// forget drops the operations that have left, once they are half of the
// queue: it must not grow while the server does not answer.
func (g *group[T]) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone++
	if g.gone < 32 || 2*g.gone < len(g.queue) {
		return
	}
	kept := g.queue[:0]
	for _, o := range g.queue {
		if o.place().state.Load() != left {
			kept = append(kept, o)
		}
	}
	clear(g.queue[len(kept):])
	g.queue, g.gone = kept, 0
}

func (g *group[T]) work() {
	defer g.idle.Done()
	for {
		batch := g.take()
		if batch == nil {
			return
		}
		if len(batch) > 0 {
			g.run(batch)
		}
		for _, o := range batch {
			close(o.place().done)
		}
	}
}

// take returns the next batch, or nil when there is none, or too little for
// one beside others; then the goroutine is over.
func (g *group[T]) take() []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running > 1 && len(g.queue)-g.gone < g.more && !g.closed {
		g.running--
		return nil
	}
	if len(g.queue) == 0 || g.closed {
		for _, o := range g.queue {
			if c := o.place(); c.state.CompareAndSwap(waiting, taken) {
				c.err = ErrClosed
				close(c.done)
			}
		}
		g.queue, g.gone = nil, 0
		g.running--
		return nil
	}
	batch := make([]T, 0, min(len(g.queue), g.limit))
	room, i := batchBytes, 0
	for ; i < len(g.queue) && len(batch) < g.limit && room > 0; i++ {
		o := g.queue[i]
		if o.place().state.CompareAndSwap(waiting, taken) {
			batch = append(batch, o)
			room -= g.size(o)
		}
	}
	n := copy(g.queue, g.queue[i:])
	clear(g.queue[n:])
	g.queue, g.gone = g.queue[:n], 0
	return batch
}

// close lets the batch that is under way end, and fails what waits.
func (g *group[T]) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.idle.Wait()
}
