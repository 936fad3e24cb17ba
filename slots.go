package escapement

import (
	"context"
	"sync"
	"sync/atomic"
)

// slots counts the keyed operations whose fate is open.
type slots struct {
	shut atomic.Bool // written under mu
	mu   sync.Mutex
	max  int
	n    int
	idle chan struct{} // closed when shut and n is 0

	kill   context.Context // ends when what still runs is to be cancelled
	cancel context.CancelFunc
}

func (s *slots) init(limit int) {
	s.max = limit
	s.idle = make(chan struct{})
	s.kill, s.cancel = context.WithCancel(context.Background())
}

func (s *slots) closed() bool { return s.shut.Load() }

// enter takes a slot, or returns ErrClosed or ErrBusy.
func (s *slots) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.shut.Load():
		return ErrClosed
	case s.n >= s.max:
		return ErrBusy
	}
	s.n++
	return nil
}

func (s *slots) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n--
	if s.n == 0 && s.shut.Load() {
		close(s.idle)
	}
}

// open returns how many slots are taken.
func (s *slots) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// close lets nobody in any more.
func (s *slots) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut.Swap(true) {
		return
	}
	if s.n == 0 {
		close(s.idle)
	}
}
