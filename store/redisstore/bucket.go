package redisstore

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// The forms of a limit's state are described in lua/limits.lua.

const (
	kindBucket = 'B'
	kindLog    = 'L'
	bucketSize = 1 + 9*8
	logSize    = 1 + 6*8
	seenSize   = 1 + 5*8 // of what limits.lua says about a log
)

var errLimitForm = errors.New("redisstore: a limit in Redis has a form that is not known: is it of another version, or is the prefix shared with other programs?")

func appendInts(b []byte, ns ...int64) []byte {
	for _, n := range ns {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return b
}

// usual reports whether the charge is one that bucket.lua and its like do.
func usual(c *ratelimit.Charge) bool {
	return c.Rule.Algorithm == ratelimit.TokenBucket && c.Cost > 0
}

// maxChargeSize is the greatest length of a packed charge.
const maxChargeSize = 8*8 + 1

// appendCharge appends a charge as limits.lua reads it.
func appendCharge(b []byte, c *ratelimit.Charge) []byte {
	r := &c.Rule
	us, rem, ok := r.Increment(c.Cost)
	if !ok {
		us = 1 << 53 // more than any capacity
	}
	fullUs, fullRem, _ := r.Increment(r.Capacity())
	b = appendInts(b, us, rem, r.Quota, fullUs, fullRem, r.Window.Microseconds(), r.Capacity())
	if usual(c) {
		return b
	}
	return append(appendInts(b, c.Cost), byte(r.Algorithm))
}

// readState reads what Redis holds about a limit; "" is nothing.
func readState(packed string) (s ratelimit.State, err error) {
	if packed == "" {
		return s, nil
	}
	r := reader{b: packed[1:]}
	switch {
	case packed[0] == kindBucket && len(packed) == bucketSize:
		s.Arrival, s.Rem, s.Since, s.Returned = r.int(), r.int(), r.int(), r.int()
		s.Quota = r.int()
		r.int() // the time in which the burst comes back
		r.int()
		s.Window, s.Burst = r.int(), r.int()
		return s, nil
	case packed[0] == kindLog && len(packed) >= logSize && (len(packed)-logSize)%8 == 0:
		s.Arrival, s.Window, s.Quota, s.Since, s.Returned = r.int(), r.int(), r.int(), r.int(), r.int()
		head := r.int()
		s.Log = make([]int64, (len(packed)-logSize)/8)
		for i := range s.Log {
			s.Log[i] = r.int()
		}
		if head < 0 || head > int64(len(s.Log)) {
			return s, errLimitForm
		}
		s.Log = s.Log[head:]
		return s, nil
	}
	return s, errLimitForm
}

// packState is the opposite of readState, with how long the state says more
// than its absence would.
func packState(s *ratelimit.State, now int64) (packed string, used time.Duration) {
	if entries := s.Log[s.Head:]; len(entries) > 0 {
		b := make([]byte, 1, logSize+8*len(entries))
		b[0] = kindLog
		b = appendInts(b, s.Arrival, s.Window, s.Quota, s.Since, s.Returned, 0)
		// What is left of a Return may be over long since.
		return string(appendInts(b, entries...)), micro(max(0, entries[len(entries)-1]+s.Window-now))
	}
	// The time in which the burst comes back. A state that was restated at a
	// lower rate may owe more than the rule's capacity: hence a rule of its own.
	rate := ratelimit.Rule{Quota: s.Quota, Window: micro(s.Window), Burst: s.Burst}
	us, rem, _ := rate.Increment(s.Burst)
	b := make([]byte, 1, bucketSize)
	b[0] = kindBucket
	b = appendInts(b, s.Arrival, s.Rem, s.Since, s.Returned, s.Quota, us, rem, s.Window, s.Burst)
	return string(b), micro(max(0, s.Arrival+1-now))
}

// found reads the next state of those that a script found; "" is none.
func (r *reader) found() string {
	if r.b == "" {
		r.bad = true
		return ""
	}
	switch r.b[0] {
	case kindBucket:
		return r.next(bucketSize)
	case kindLog:
		return r.next(seenSize)
	case '-':
		r.next(1)
	default:
		r.bad = true
	}
	return ""
}

func micro(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// logSeen is what limits.lua says about a log.
type logSeen struct{ owed, retry, last, since, returned int64 }

func readLogSeen(packed string) (l logSeen, err error) {
	if len(packed) != seenSize || packed[0] != kindLog {
		return l, errLimitForm
	}
	r := reader{b: packed[1:]}
	l.owed, l.retry, l.last, l.since, l.returned = r.int(), r.int(), r.int(), r.int(), r.int()
	return l, nil
}

// level fills in what the rule says, where charged tells whether the cost was
// taken.
func (s *logSeen) level(r *ratelimit.Rule, cost, now int64, charged bool, l *ratelimit.Level) {
	window := r.Window.Microseconds()
	owed, last := s.owed, s.last
	l.Never = cost > r.Quota
	l.Allowed = !l.Never && owed+cost <= r.Quota || cost == 0
	if charged && cost > 0 {
		owed, last = owed+cost, now
	}
	if !l.Allowed && !l.Never {
		l.RetryAfter = micro(s.retry + window - now)
	}
	l.Remaining = max(0, r.Quota-owed)
	if owed > 0 {
		l.ResetAfter = micro(min(now, last) + window - now)
	}
}

// distinct reports whether no key is there twice.
func distinct(keys []string) bool {
	for i, k := range keys {
		if slices.Contains(keys[:i], k) {
			return false
		}
	}
	return true
}
