package redisstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/escapement-dev/escapement/idempotency"
)

// confirmation is how many replicas must have a write, and for how long to wait
// for them.
type confirmation struct {
	replicas int
	wait     time.Duration
	short    *atomic.Int64
}

// Confirmed is the same store, for claims that more than one server must know:
// Reserve, SaveStep and End each write and then WAIT, on a connection of their
// own, until so many replicas have the write. Replicas must be at least 1, and
// wait at least 1 ms.
//
// A Reserve that is not confirmed in time is given back and returns
// ErrUnconfirmed. A SaveStep returns ErrUnconfirmed, and the step is saved; it
// may be repeated. An End that is not confirmed returns nil, for the operation
// has run: it is counted in [Store.Unconfirmed], and told to
// Options.OnUnconfirmed.
//
// Admit makes its parts separate calls. This narrows what a failover can lose
// and does not close it: Redis may make a replica the master that has not the
// write.
func (s *Store) Confirmed(replicas int, wait time.Duration) (*Store, error) {
	if replicas < 1 || wait < time.Millisecond {
		return nil, fmt.Errorf("redisstore: confirm by %d replicas within %v: want at least 1, and at least 1ms", replicas, wait)
	}
	c := *s
	c.owned = false
	c.confirm = confirmation{replicas: replicas, wait: wait, short: new(atomic.Int64)}
	return &c, nil
}

// Unconfirmed is how many writes of a Confirmed store too few replicas had in
// time.
func (s *Store) Unconfirmed() int64 {
	if s.confirm.short == nil {
		return 0
	}
	return s.confirm.short.Load()
}

func init() {
	claimScript.wrote = wroteClaim
	endScript.wrote = wroteNumber(endScript)
	stepScript.wrote = wroteNumber(stepScript)
}

// wroteClaim reports whether the claim started. What the reply to a repeated
// one did not write may have been written by the first; see runConfirmed.
func wroteClaim(m rueidis.RedisMessage) bool {
	msgs, err := m.ToArray()
	if err != nil || len(msgs) < 2 {
		return false
	}
	code, err := msgs[1].AsInt64() // behind what it says about charges
	return err == nil && idempotency.Outcome(code&codeOutcome) == idempotency.Started
}

// wroteNumber reports whether the reply is one of success.
func wroteNumber(sc *script) func(rueidis.RedisMessage) bool {
	return func(m rueidis.RedisMessage) bool {
		n, err := m.AsInt64()
		return err == nil && n != 0 && (sc != stepScript || n != 2)
	}
}

// fresh reports whether the call itself wrote, and did not find that an
// earlier copy of it had: WAIT knows only what its own connection wrote.
func fresh(sc *script, m rueidis.RedisMessage) bool {
	if sc != claimScript {
		n, _ := m.AsInt64()
		return n == 1
	}
	msgs, err := m.ToArray()
	if err != nil || len(msgs) < 4 {
		return false
	}
	now, _ := msgs[2].AsInt64()
	d, _, err := readHead(text(msgs[3]))
	return err == nil && d.rec.Updated.Equal(fromMicros(now))
}

// runConfirmed is once, and then WAIT on the same connection.
func (s *Store) runConfirmed(ctx context.Context, sc *script, keys, args []string) (msg rueidis.RedisMessage, err error) {
	confirmed := true
	err = s.client.Dedicated(func(c rueidis.DedicatedClient) error {
		if msg, err = run(ctx, c, sc, keys, args).ToMessage(); err != nil || !sc.wrote(msg) {
			return err
		}
		if confirmed = fresh(sc, msg); !confirmed {
			return nil
		}
		n, err := c.Do(ctx, c.B().Wait().Numreplicas(int64(s.confirm.replicas)).Timeout(s.confirm.wait.Milliseconds()).Build()).AsInt64()
		confirmed = err == nil && n >= int64(s.confirm.replicas)
		return nil
	})
	if err != nil || confirmed {
		return msg, err
	}
	s.confirm.short.Add(1)
	if s.onUnconfirmed != nil {
		s.onUnconfirmed(sc.name)
	}
	if sc == endScript {
		return msg, nil
	}
	return msg, fmt.Errorf("%w: want %d within %v", ErrUnconfirmed, s.confirm.replicas, s.confirm.wait)
}
