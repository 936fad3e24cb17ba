package ratelimit

// The arithmetic of the token bucket. A unit takes Window/Quota µs to come
// back. Debts are counted in parts of a microsecond, 1/Quota µs each: a unit is
// then exactly Window parts, and a microsecond exactly Quota parts. Every value
// is a whole number of parts; there is nothing to round while the rate stays.

// Increment is by how much a cost moves the arrival time of a token bucket:
// us + rem/Quota microseconds, with 0 <= rem < Quota. It is exact, and below
// 2^53, for every cost from 0 to the rule's capacity; ok is false for others,
// which can never be taken. A script that holds Arrival and Rem needs only to
// add, with a carry at Quota, and to compare with the Increment of the whole
// capacity, which is the time from empty to full.
func (r Rule) Increment(cost int64) (us, rem int64, ok bool) {
	if cost < 0 || r.Quota < 1 || cost > r.Capacity() {
		return 0, 0, false
	}
	us, rem = mul(cost, micros(r.Window)).div(r.Quota)
	return us, rem, true
}

// bucketDebt is the debt of a state at the time now in parts of 1/s.Quota µs,
// and whether the clock has stepped back so far that it had to be cut to the
// whole of what could have been owed.
func (s *State) bucketDebt(now int64) (debt u128, cut bool) {
	d := s.Arrival - now
	if d < 0 {
		return u128{}, false
	}
	debt = mul(d, s.Quota).add(u128{0, uint64(s.Rem)})
	if most := mul(s.Burst, s.Window); debt.greater(most) {
		return most, true
	}
	return debt, false
}

// restate is the debt of a state that another rate or algorithm wrote, in parts
// of the rule r. fits is false if the most that the state can owe would take
// longer than MaxFull to come back at the rate of r: it cannot be written then,
// and goes on at the rate at which it was made. That depends on nothing that
// changes with time, so a wait that was named stays true.
func (r *Rule) restate(s *State, now int64) (debt u128, fits bool) {
	window := micros(r.Window)
	if s.isLog() {
		debt = mul(int64(s.live(now, s.Window)), window)
		if us, _ := debt.div(r.Quota); us >= micros(MaxFull) {
			debt = mul(r.Capacity(), window)
		}
		return debt, true
	}
	old, _ := s.bucketDebt(now)
	whole, part := old.div(s.Window) // units, and parts of one
	// INVARIANT: rounded up, so no switch of rules makes a token.
	debt = mul(whole, window).add(u128{0, uint64(mul(part, window).ceil(s.Window))})
	us, _ := mul(s.Burst, window).div(r.Quota)
	return debt, us <= micros(MaxFull)
}

func (r *Rule) takeBucket(s *State, cost, now int64, l *Level) (changed bool) {
	window, capacity := micros(r.Window), r.Capacity()
	full := mul(capacity, window)
	var debt u128
	repair, fits := false, true
	switch {
	case s.absent():
	case s.Window == window && s.Quota == r.Quota && !s.isLog():
		debt, repair = s.bucketDebt(now)
	default:
		debt, fits = r.restate(s, now)
		repair = true
	}

	if after := debt.add(mul(min(cost, capacity), window)); cost > capacity {
		l.Never = true
	} else if cost == 0 {
		l.Allowed = true
	} else if !after.greater(full) {
		l.Allowed = true
		if s.absent() {
			s.Since, s.Returned = max(now, s.Since), 0
		} else if repair {
			s.renew(now)
		}
		s.Burst = capacity
		l.ResetAfter = span(s.owe(r, after, now, window))
		l.Remaining, _ = full.sub(after).div(window)
		return true
	} else {
		l.RetryAfter = span(after.sub(full).ceil(r.Quota))
	}

	if !debt.greater(full) {
		l.Remaining, _ = full.sub(debt).div(window)
	}
	l.ResetAfter = span(debt.ceil(r.Quota))
	if !fits {
		return r.waitAtOldRate(s, cost, now, l)
	}
	if cost == 0 || l.Never || !repair {
		return false
	}
	s.renew(now)
	s.Burst = max(capacity, debt.ceil(window))
	s.owe(r, debt, now, window)
	return true
}

// owe writes a debt in parts of the rule r, and returns the time until it is
// paid, in microseconds, rounded up.
func (s *State) owe(r *Rule, debt u128, now, window int64) int64 {
	us, rem := debt.div(r.Quota)
	s.Arrival, s.Rem = now+us, rem
	s.Window, s.Quota = window, r.Quota
	s.Log, s.Head = nil, 0
	if rem > 0 {
		us++
	}
	return us
}

// waitAtOldRate sets the waits where a debt goes on at the rate at which it
// was made.
func (r *Rule) waitAtOldRate(s *State, cost, now int64, l *Level) (changed bool) {
	debt, cut := s.bucketDebt(now)
	l.ResetAfter = span(debt.ceil(s.Quota))
	if cost == 0 || l.Never {
		return false
	}
	if free := mul(r.Capacity()-cost, s.Window); debt.greater(free) {
		l.RetryAfter = span(debt.sub(free).ceil(s.Quota))
	}
	if cut {
		us, rem := debt.div(s.Quota)
		s.renew(now)
		s.Arrival, s.Rem = now+us, rem
	}
	return cut
}

// returnBucket takes back at most what the charge still weighs.
//
// Let T be the arrival time that the charge left, and R what was given back to
// the bucket since. Had the charge never been made, the bucket would be full at
// T - R - Increment(cost) or later, so min(Increment, T - R - now) can go and
// the debt stays at or above the debt of a bucket without the charge:
// Arrival >= T - R + what was taken since, hence the rest of the debt covers
// all later charges, and all earlier ones that are still owed.
func (r *Rule) returnBucket(s *State, cost int64, rc Receipt, now int64) bool {
	us, rem, ok := r.Increment(cost)
	if !ok || s.Window != micros(r.Window) || s.Quota != r.Quota {
		return false
	}
	if _, cut := s.bucketDebt(now); cut {
		return false
	}
	leftUs, leftRem := rc.Arrival-(s.Returned-rc.Returned)-now, rc.Rem
	if leftUs < 0 {
		return false
	}
	if leftUs < us || leftUs == us && leftRem < rem {
		us, rem = leftUs, leftRem
	}
	if us == 0 && rem == 0 {
		return false
	}
	s.Arrival -= us
	if s.Rem -= rem; s.Rem < 0 {
		s.Rem += s.Quota
		s.Arrival--
	}
	s.Returned += us
	if rem > 0 {
		s.Returned++
	}
	return true
}
