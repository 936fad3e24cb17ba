package redisstore

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// trusted is how long after a good reply a call is believed to find a
// connection. On a connection it ends with its context; while the client
// connects it would not: all wait for the one that connects.
const trusted = 250 * time.Millisecond

// pulse is when Redis last gave a good reply, in nanoseconds of this process's
// monotonic clock.
type pulse struct {
	base time.Time
	good atomic.Int64
}

func newPulse() *pulse {
	p := &pulse{base: time.Now()}
	p.good.Store(-int64(trusted))
	return p
}

func (p *pulse) now() int64 { return int64(time.Since(p.base)) }

// recent reports whether there was a good reply not long before now.
func (p *pulse) recent(now int64) bool { return now-p.good.Load() < int64(trusted) }

// felt notes a good reply to a call that began then.
func (p *pulse) felt(then int64) {
	if then-p.good.Load() > int64(trusted)/8 { // few writes, since all calls share it
		p.good.Store(then)
	}
}

// promptly makes a call that ends with ctx, though the client may still be
// connecting: then the call is left behind, and ends when that does.
func promptly(ctx context.Context, call func() (rueidis.RedisMessage, error)) (rueidis.RedisMessage, error) {
	type reply struct {
		msg rueidis.RedisMessage
		err error
	}
	c := make(chan reply, 1)
	go func() {
		msg, err := call()
		c <- reply{msg, err}
	}()
	select {
	case r := <-c:
		return r.msg, r.err
	case <-ctx.Done():
		return rueidis.RedisMessage{}, ctx.Err()
	}
}
