package ratelimit

import (
	"math"
	"slices"
	"time"
)

// State is what a store keeps for one rule and one subject. The zero value is
// that of a subject of which nothing is known: it has its whole capacity.
//
// All numbers of a state are below 2^53 in magnitude for times up to the year
// 2155, so that a script that counts in doubles can hold them. Times are in
// microseconds since 1970.
type State struct {
	// Arrival is, for a TokenBucket, when the bucket will be full again, if
	// nothing more is taken (the theoretical arrival time of ITU-T I.371);
	// the debt of a bucket is what is missing until then. For a
	// SlidingWindowLog it is the time of the last admission.
	Arrival int64
	// Rem is the part of Arrival below a microsecond: Rem / Quota µs, with
	// 0 <= Rem < Quota.
	Rem int64
	// Window (in microseconds) and Quota are those of the rule that wrote the
	// state: the past is settled at this rate. A Window of 0 says that nothing
	// was written yet.
	Window, Quota int64
	// Burst is the greatest debt that the state can have had when it was
	// written, in units: the capacity, or the debt itself where a change of
	// the rule left more. An Arrival further ahead than this allows means that
	// the clock has stepped back. It is not used by a SlidingWindowLog.
	Burst int64
	// Since names the stretch of time over which receipts are good: it changes
	// when the subject is seen for the first time, when the rate changes, and
	// when the clock is found to have stepped back. It is the time of that
	// event, or greater. A state that is otherwise zero may carry one: it is
	// then the least Since that the next Take may use.
	Since int64
	// Returned is the sum of what was given back since Since, in microseconds,
	// each part rounded up.
	Returned int64
	// Log has the times of admissions of a SlidingWindowLog, one entry per
	// unit, ascending; equal times are separate entries. The first Head of
	// them are no longer meant. Entries leave by themselves only when there
	// are more of them than the quota, so some may be older than the window.
	Log []int64
	// Head is how many entries at the front of Log are to be passed over.
	Head int
}

// absent reports whether nothing was written to the state.
func (s *State) absent() bool { return s.Window <= 0 || s.Quota <= 0 }

// isLog reports whether a SlidingWindowLog wrote the state.
func (s *State) isLog() bool { return len(s.Log) > s.Head }

// Idle reports whether the state says no more than its absence would at the
// time now, in microseconds since 1970: a store may forget it. It stays so for
// every later time.
func (s *State) Idle(now int64) bool {
	if s.absent() {
		return true
	}
	if s.isLog() {
		return s.Log[len(s.Log)-1] <= now-s.Window
	}
	// Not <=: within one microsecond, a state that was forgotten and made
	// again would have the Since of the forgotten one.
	return s.Arrival < now
}

// renew starts a new stretch for receipts.
func (s *State) renew(now int64) {
	s.Since = max(now, s.Since+1)
	s.Returned = 0
}

// Micros is t in microseconds since 1970, rounded down, as the functions of
// this package count. Times further from 1970 than 70,000 years are taken as
// that far.
func Micros(t time.Time) int64 {
	const far = 1 << 61
	sec := t.Unix()
	if sec > far/1_000_000 {
		return far
	}
	if sec < -far/1_000_000 {
		return -far
	}
	return t.UnixMicro()
}

// micros is the length of d in whole microseconds.
func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

// span is the duration of µs microseconds.
func span(us int64) time.Duration {
	if us > math.MaxInt64/int64(time.Microsecond) {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}

// Take charges cost to the state s at the time now and returns the state that
// follows, and what the rule says. It changes nothing that s points to.
//
// If the cost is refused, the state that follows is s itself, but for two
// repairs, each made once: where the rule's rate has changed since s was
// written, the debt is restated at the new rate; where the clock has stepped
// back further than the capacity, the debt is what an empty bucket owes. A
// store writes them like any other change, else the wait that the Level names
// would never end. A cost of 0 always passes and changes nothing.
//
// The rule must be valid and the cost not negative; otherwise the answer is a
// refusal for ever.
func (r Rule) Take(s State, cost int64, now time.Time) (State, Level) {
	l := Level{Rule: r}
	next := s
	if cost != 0 && r.Algorithm == SlidingWindowLog {
		next.Log, next.Head = slices.Clone(s.Log[s.Head:]), 0
	}
	if !r.TakeAt(&next, cost, Micros(now), &l) {
		return s, l
	}
	return next, l
}

// TakeAt is [Rule.Take] in place, for stores: now is in microseconds since
// 1970, the log's memory is reused, and of l everything but Rule and Subject
// is set. It reports whether s has changed. It allocates only to grow a log.
func (r *Rule) TakeAt(s *State, cost, now int64, l *Level) bool {
	switch {
	case !r.ready(cost, l):
		return false
	case r.Algorithm == SlidingWindowLog:
		return r.takeLog(s, cost, now, true, l)
	}
	return r.takeBucket(s, cost, now, l)
}

// LookAt says in l whether [Rule.TakeAt] would allow the cost, and when, and
// changes nothing else. Remaining and ResetAfter may be those before or after
// the charge.
func (r *Rule) LookAt(s *State, cost, now int64, l *Level) {
	if !r.ready(cost, l) {
		return
	}
	c := *s
	if r.Algorithm != SlidingWindowLog {
		r.takeBucket(&c, cost, now, l)
		return
	}
	if s.isLog() && s.Arrival > now {
		c.Log, c.Head = slices.Clone(s.entries()), 0 // to be brought to the present
	}
	r.takeLog(&c, cost, now, false, l)
}

// ready clears l, and refuses for ever what no valid rule and charge ask.
func (r *Rule) ready(cost int64, l *Level) bool {
	l.Allowed, l.Never = false, false
	l.Remaining, l.RetryAfter, l.ResetAfter = 0, 0, 0
	if cost < 0 || r.Algorithm > SlidingWindowLog || r.Quota < 1 || r.Window < time.Microsecond || r.Capacity() < 1 {
		l.Never = true
		return false
	}
	return true
}

// Receipt is what [Rule.Return] needs to know about a charge that was just
// taken at the time now, in microseconds since 1970, and left the state s.
func (s *State) Receipt(now int64) Receipt {
	return Receipt{At: now, Arrival: s.Arrival, Rem: s.Rem, Since: s.Since, Returned: s.Returned}
}

// Return gives back cost units that a Take of the same rule charged, and
// returns the state that follows. It changes nothing that s points to.
//
// It never gives back more than the charge still weighs, so that the state is
// at no time better than if the charge had never been made, and the bound of
// Q5 holds for what was charged and not given back. In doubt it gives less:
// what the bucket would have regained without the charge counts as regained,
// and after a change of the rate or a step back of the clock nothing is given.
func (r Rule) Return(s State, cost int64, rc Receipt, now time.Time) State {
	next := s
	if s.isLog() {
		next.Log, next.Head = slices.Clone(s.Log[s.Head:]), 0
	}
	if !r.ReturnAt(&next, cost, rc, Micros(now)) {
		return s
	}
	return next
}

// ReturnAt is [Rule.Return] in place, with now in microseconds since 1970. It
// reports whether s has changed.
func (r *Rule) ReturnAt(s *State, cost int64, rc Receipt, now int64) bool {
	if cost <= 0 || s.absent() || s.Since != rc.Since ||
		s.isLog() != (r.Algorithm == SlidingWindowLog) {
		return false
	}
	if s.isLog() {
		return returnLog(s, cost, rc.At, now)
	}
	return r.returnBucket(s, cost, rc, now)
}
