package idempotency

import "time"

// State is what a record is, for the rule. What people see is [Status].
type State uint8

const (
	// Free: nobody owns the key and nothing is known of it. It is the zero
	// value. A store need not keep a free record without marks.
	Free State = iota
	// Held: an attempt owns the key, or owned it and did not say how it ended.
	Held
	// Ended: the operation has a result.
	Ended
	// Shrunk: the operation ran, longer ago than its retention; only its
	// hashes and outcome are left.
	Shrunk
)

// String returns the state in lower case.
func (s State) String() string {
	names := [...]string{"free", "held", "done", "archived"}
	if int(s) < len(names) {
		return names[s]
	}
	return "invalid"
}

// Found says in which state a claim found its key, so that NotRun can restore
// it (R9).
type Found uint8

const (
	FoundFree Found = iota
	FoundUnknown
	FoundRetryable
)

// Mark remembers for a while that an owner is finished with the key: whatever
// of it arrives late changes nothing (R12).
type Mark struct {
	Owner Owner
	Until time.Time
}

// MarkTime is how long an owner's mark is kept.
const MarkTime = time.Minute

// Record is what is stored about a key. Its times are the store's, in whole
// microseconds, UTC. The zero Record is a free one.
//
// A Record is a value, but its slices are shared between copies: treat what
// they point to as read-only.
type Record struct {
	Key    Key
	State  State
	Prints []Fingerprint
	Owner  Owner // nobody, if the last attempt gave the key back
	Token  Token
	Terms  Terms
	Origin Origin

	// Attempt counts the claims that started, from 1.
	Attempt int
	// Takeover is true if the last attempt took over from one whose outcome
	// was unknown.
	Takeover bool
	// LeaseEnd is when the lease of a Held record ends, or ended.
	LeaseEnd time.Time

	// Found, and FoundLease (the end of the lease that a takeover found),
	// belong to a Held record.
	Found      Found
	FoundLease time.Time
	// FoundSteps is how many steps the claim found.
	FoundSteps int
	// Released is the owner whose NotRun left this record (F2).
	Released Owner

	// Result is that of an Ended record; of a Shrunk one without its payload.
	// A Held record that was claimed after a retryable result keeps it here.
	Result Result
	// WindowEnd is when the window of a retryable result ends.
	WindowEnd time.Time
	// Expires is when an Ended record expires, and when a Shrunk one is
	// forgotten. For a Held one see [Record.Expiry].
	Expires time.Time

	Steps []Step
	Marks []Mark

	Created, Updated time.Time
	// Revision grows with every change, also across the deletion of a record
	// unless the store's clock steps back.
	Revision Revision

	// AsOf is the store's time at which the record was read. It is not stored.
	AsOf time.Time
}

// Status is what people see of a record.
type Status string

const (
	StatusFree            Status = "free"
	StatusInProgress      Status = "in_progress"
	StatusUnknown         Status = "unknown"
	StatusSucceeded       Status = "succeeded"
	StatusFailedFinal     Status = "failed_final"
	StatusFailedRetryable Status = "failed_retryable"
	StatusArchived        Status = "archived"
)

// Status returns what people see of r at the time r.AsOf.
func (r Record) Status() Status { return r.statusAt(r.AsOf) }

func (r Record) statusAt(now time.Time) Status {
	r = current(r, now)
	switch r.State {
	case Held:
		if now.Before(r.unknownFrom()) {
			return StatusInProgress
		}
		return StatusUnknown
	case Ended:
		return Status(r.Result.Class.String())
	case Shrunk:
		return StatusArchived
	}
	return StatusFree
}

// unknownFrom is when a Held record stops being in progress (R4, R5).
func (r Record) unknownFrom() time.Time {
	if r.Terms.OnUnknown == Hold {
		return r.LeaseEnd
	}
	return r.LeaseEnd.Add(r.Terms.Quiet)
}

// settleableFrom is when an operator may settle or forget a Held record (F9).
func (r Record) settleableFrom() time.Time { return r.LeaseEnd.Add(r.Terms.Quiet) }

// Expiry returns when r stops counting, and false if it never does by time: a
// live lease does not, nor an unknown record unless its terms say retry (R1).
func (r Record) Expiry() (time.Time, bool) {
	switch r.State {
	case Held:
		if r.Terms.OnUnknown == Retry {
			return r.LeaseEnd.Add(max(r.Terms.Retention, r.Terms.Quiet)), true
		}
		return time.Time{}, false
	case Ended, Shrunk:
		return r.Expires, true
	}
	return time.Time{}, true
}

// Keep returns the time until which a store must keep r physically as it is,
// and false if that is for ever: the later of its expiry and its marks' ends.
// After it, [Expire] says what is left. The zero time: nothing to keep.
func (r Record) Keep() (time.Time, bool) {
	t, ok := r.Expiry()
	if !ok {
		return time.Time{}, false
	}
	for _, m := range r.Marks {
		if m.Until.After(t) {
			t = m.Until
		}
	}
	return t, true
}
