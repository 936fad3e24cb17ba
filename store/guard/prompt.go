package guard

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// trusted is how long after a good answer a Take is believed to end with its
// context. A store that is still connecting, or hangs, may not.
const trusted = 250 * time.Millisecond

// pulse is when the store last gave a good answer, in nanoseconds of this
// process's monotonic clock.
type pulse struct {
	base time.Time
	good *atomic.Int64
}

func newPulse() pulse {
	p := pulse{base: time.Now(), good: new(atomic.Int64)}
	p.good.Store(-int64(trusted))
	return p
}

func (p pulse) now() int64 { return int64(time.Since(p.base)) }

// recent reports whether there was a good answer not long before now.
func (p pulse) recent(now int64) bool { return now-p.good.Load() < int64(trusted) }

// felt notes a good answer to a call that began then.
func (p pulse) felt(then int64) {
	if then-p.good.Load() > int64(trusted)/8 { // few writes, since all calls share it
		p.good.Store(then)
	}
}

// promptly makes a call that ends with ctx, though the store's may not: that is
// left behind then, and ends when it does.
func promptly(ctx context.Context, call func() (ratelimit.Decision, error)) (ratelimit.Decision, error) {
	type answer struct {
		d   ratelimit.Decision
		err error
	}
	c := make(chan answer, 1)
	go func() {
		d, err := call()
		c <- answer{d, err}
	}()
	select {
	case a := <-c:
		return a.d, a.err
	case <-ctx.Done():
		return ratelimit.Decision{}, ctx.Err()
	}
}
