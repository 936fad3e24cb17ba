package ratelimit

import (
	"slices"
	"sort"
)

// entries are the times of a log that are meant.
func (s *State) entries() []int64 { return s.Log[s.Head:] }

// live is the number of entries of a log that a window still holds at the time
// now. The window is half-open: an entry made at t is in it until, but not at,
// t + window. Entries after now count.
func (s *State) live(now, window int64) int {
	e := s.entries()
	return len(e) - sort.Search(len(e), func(i int) bool { return e[i] > now-window })
}

// takeLog is TakeAt for a log. Without commit, an allowed charge is not added.
func (r *Rule) takeLog(s *State, cost, now int64, commit bool, l *Level) (changed bool) {
	window := micros(r.Window)
	l.Never = cost > r.Quota
	if cost > 0 && !l.Never {
		changed = r.readyLog(s, now)
	}
	owed := int64(s.live(now, window))
	if !s.absent() && !s.isLog() { // a look at what a bucket wrote
		owed = min(s.unitsOwed(now), r.Quota)
	}
	switch {
	case l.Never:
	case cost == 0:
		l.Allowed = true
	case owed+cost <= r.Quota:
		l.Allowed = true
		if !commit {
			break
		}
		changed = true
		if s.absent() {
			s.Since = max(now, s.Since)
		}
		s.append(cost, now, int(r.Quota), int(owed))
		s.Arrival, s.Window, s.Quota = now, window, r.Quota
		owed += cost
	default:
		// Of the entries in the window, as many must leave it as the cost
		// exceeds the room by.
		e := s.entries()
		last := e[len(e)-int(owed)+int(owed+cost-r.Quota)-1]
		l.RetryAfter = span(last + window - now)
	}
	l.Remaining = max(0, r.Quota-owed)
	if owed > 0 {
		end := now
		if e := s.entries(); len(e) > 0 {
			end = min(end, e[len(e)-1])
		}
		l.ResetAfter = span(end + window - now)
	}
	return changed
}

// readyLog makes the state one that a log can go on with: it brings entries
// that are ahead of a clock that stepped back to the present, where they count
// for a whole window, restates what a bucket owed as entries of the present,
// and notes a new window.
func (r *Rule) readyLog(s *State, now int64) (changed bool) {
	window := micros(r.Window)
	switch {
	case s.absent():
		return false
	case !s.isLog():
		n := min(s.unitsOwed(now), r.Quota)
		since := s.Since
		*s = State{Since: since + 1}
		if n > 0 {
			s.Since = max(s.Since, now)
			s.append(n, now, int(r.Quota), 0)
			s.Arrival, s.Window, s.Quota = now, window, r.Quota
		}
		return true
	case s.Arrival > now:
		// INVARIANT: entries ascend and none is ahead of the clock.
		e := s.entries()
		for i := len(e) - 1; i >= 0 && e[i] > now; i-- {
			e[i] = now
		}
		s.renew(now)
		s.Arrival = now
		changed = true
	}
	if s.Window != window || s.Quota != r.Quota {
		s.Window, s.Quota = window, r.Quota
		changed = true
	}
	return changed
}

// unitsOwed is the debt of a bucket in units, rounded up.
func (s *State) unitsOwed(now int64) int64 {
	debt, _ := s.bucketDebt(now)
	return debt.ceil(s.Window)
}

// append adds cost entries and drops the oldest that neither the quota nor the
// live entries need. Entries within the quota stay although they are too old:
// that costs no time, and a window that is made longer finds them.
func (s *State) append(cost, now int64, quota, live int) {
	keep := max(live, quota-int(cost))
	if n := len(s.Log) - s.Head; n > keep {
		s.Head += n - keep
	}
	if len(s.Log)+int(cost) > cap(s.Log) && s.Head > 0 && s.Head >= len(s.Log)/5 {
		n := copy(s.Log, s.Log[s.Head:])
		s.Log, s.Head = s.Log[:n], 0
	}
	for range cost {
		s.Log = append(s.Log, now)
	}
}

// returnLog removes as many entries of the time at as were charged and are
// still there.
func returnLog(s *State, cost, at, now int64) bool {
	if s.Arrival > now {
		return false // the clock stepped back
	}
	i := s.Head + sort.Search(len(s.entries()), func(i int) bool { return s.entries()[i] >= at })
	j := i
	for j < len(s.Log) && s.Log[j] == at && int64(j-i) < cost {
		j++
	}
	if i == j {
		return false
	}
	s.Log = slices.Delete(s.Log, i, j)
	if !s.isLog() {
		*s = State{Since: s.Since + 1, Log: s.Log[:0]}
	}
	return true
}
