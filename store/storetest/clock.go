package storetest

import (
	"sync"
	"time"
)

// Clock is a store's time in a test. It stands still until it is moved, also
// backwards, and gives whole microseconds in UTC. It is safe for concurrent
// use.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock that shows some fixed time of 2026.
func NewClock() *Clock {
	return &Clock{now: time.Date(2026, 3, 1, 12, 0, 0, 123457000, time.UTC)}
}

// Now returns the time that the clock shows.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Set moves the clock to t, cut to whole microseconds.
func (c *Clock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = t.UTC().Truncate(time.Microsecond)
}

// Advance moves the clock by d, which may be negative.
func (c *Clock) Advance(d time.Duration) { c.Set(c.Now().Add(d)) }
