package ratelimit

import "time"

// Level is what one charge's rule says.
type Level struct {
	Rule    Rule
	Subject string
	// Allowed is true if this rule would admit the cost. All-or-nothing is a
	// property of the Decision: an allowed level of a refused decision was not
	// charged.
	Allowed bool
	// Never is true if the cost exceeds the capacity: waiting does not help.
	Never bool
	// Remaining is the number of whole units that could be taken at once,
	// after the decision. It is never negative.
	Remaining int64
	// RetryAfter is how long to wait until the same cost can pass if nobody
	// else spends meanwhile: waiting exactly this long is enough, one
	// microsecond less is not. 0 if Allowed, and if Never.
	RetryAfter time.Duration
	// ResetAfter is the time until the subject has its whole capacity again,
	// after the decision; 0 if it has it now.
	ResetAfter time.Duration
}

// Decision is the answer for all charges of one Take, together.
type Decision struct {
	// Allowed is true if every level allowed its cost; then all were charged.
	// Otherwise nothing was. It is true for no charges at all.
	Allowed bool
	// Levels has one entry per charge that was asked, in the charges' order.
	Levels []Level
	// Taken is what was charged, for Store.Return. Nil if not Allowed.
	Taken *Taken
}

// RetryAfter is the longest RetryAfter of the levels that refused, and whether
// the request can ever pass. It is 0, true if the decision is Allowed.
func (d Decision) RetryAfter() (wait time.Duration, possible bool) {
	if d.Allowed {
		return 0, true
	}
	for _, l := range d.Levels {
		if l.Never {
			return 0, false
		}
		if !l.Allowed {
			wait = max(wait, l.RetryAfter)
		}
	}
	return wait, true
}
