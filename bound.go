package escapement

import (
	"context"
	"sync"
	"time"
)

// bound is a context with a deadline that makes its timer only when somebody
// asks for Done: a store in memory never does.
type bound struct {
	context.Context
	deadline time.Time

	mu     sync.Mutex
	inner  context.Context // with the timer; nil until it is needed
	cancel context.CancelFunc
	ended  bool
}

// within returns a context that ends after d at the latest. Its end must be
// called.
func within(parent context.Context, d time.Duration) *bound {
	deadline := time.Now().Add(d)
	if t, ok := parent.Deadline(); ok && t.Before(deadline) {
		deadline = t
	}
	return &bound{Context: parent, deadline: deadline}
}

// end releases what the context holds.
func (b *bound) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if b.cancel != nil {
		b.cancel()
	}
}

func (b *bound) Deadline() (time.Time, bool) { return b.deadline, true }

func (b *bound) Done() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inner == nil {
		b.inner, b.cancel = context.WithDeadline(b.Context, b.deadline)
		if b.ended {
			b.cancel()
		}
	}
	return b.inner.Done()
}

func (b *bound) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.inner != nil:
		return b.inner.Err()
	case b.Context.Err() != nil:
		return b.Context.Err()
	case b.ended:
		return context.Canceled
	case !time.Now().Before(b.deadline):
		return context.DeadlineExceeded
	}
	return nil
}

// Value goes to the inner context where there is one, so that package context
// finds the canceller that belongs to Done, and starts no goroutine to follow
// it.
func (b *bound) Value(key any) any {
	b.mu.Lock()
	inner := b.inner
	b.mu.Unlock()
	if inner != nil {
		return inner.Value(key)
	}
	return b.Context.Value(key)
}
