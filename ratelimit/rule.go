package ratelimit

import (
	"errors"
	"time"
)

// Algorithm says how a [Rule] counts.
type Algorithm uint8

const (
	// TokenBucket admits bursts of up to Burst and, on average, Quota per
	// Window. It is the zero value. The form is the generic cell rate
	// algorithm (ITU-T I.371), kept exactly in integers.
	TokenBucket Algorithm = iota
	// SlidingWindowLog admits at most Quota in every half-open interval of
	// length Window, by remembering each admission.
	SlidingWindowLog
)

// String returns the algorithm's name as the configuration writes it.
func (a Algorithm) String() string {
	switch a {
	case TokenBucket:
		return "token_bucket"
	case SlidingWindowLog:
		return "sliding_window_log"
	}
	return "invalid"
}

// Rule is one quota policy. It is a value; the zero value is not valid (see
// [Rule.Validate]).
type Rule struct {
	// Name identifies the rule in stores, answers and metrics. It is 1 to 64
	// bytes of a-z, A-Z, 0-9, '.', '_' and '-'.
	Name string
	// Algorithm is TokenBucket unless set.
	Algorithm Algorithm
	// Quota is the number of units per Window: at least 1; for a
	// SlidingWindowLog at most MaxLogQuota.
	Quota int64
	// Window is the time in which Quota units become available: whole
	// microseconds, from 1 µs to MaxWindow.
	Window time.Duration
	// Burst is the capacity of a TokenBucket, in units, up to MaxQuota, and
	// small enough that an empty bucket is full again within MaxFull. 0 means
	// Quota. It must be 0 for other algorithms.
	Burst int64
}

// Limits of a rule's numbers. They keep every intermediate value of the
// algorithms inside 128 bits, and a bucket's stored state inside 2^53 until
// the year 2155.
const (
	MaxName     = 64                      // bytes of a rule's name
	MaxSubject  = 255                     // bytes of a charge's subject
	MaxQuota    = 1_000_000_000_000       // units per window and burst
	MaxLogQuota = 10_000                  // entries of a sliding window log
	MaxWindow   = 366 * 24 * time.Hour    // of a quota
	MaxFull     = 36_600 * 24 * time.Hour // from an empty bucket to a full one
)

// Capacity is what can be taken at once when nothing was taken before: Burst
// of a token bucket (Quota where Burst is 0), else Quota.
func (r Rule) Capacity() int64 {
	if r.Algorithm == TokenBucket && r.Burst != 0 {
		return r.Burst
	}
	return r.Quota
}

// Validate names every fault of the rule, each with the rule's name, the field,
// its value and what was expected, one per line; nil if there is none. The
// error is an [ErrCharge].
func (r Rule) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, faultOf(r.Name, format, args...))
	}
	if !validName(r.Name) {
		fault("name of %d bytes: want 1 to %d of a-z, A-Z, 0-9, '.', '_', '-'", len(r.Name), MaxName)
	}
	if r.Algorithm > SlidingWindowLog {
		fault("algorithm %d: want token_bucket (%d) or sliding_window_log (%d)", r.Algorithm, TokenBucket, SlidingWindowLog)
	}
	log := r.Algorithm == SlidingWindowLog
	quotaOK := r.Quota >= 1 && r.Quota <= MaxQuota
	if log && r.Quota > MaxLogQuota {
		fault("quota %d: want at most %d for a sliding_window_log, which remembers each unit; use a token_bucket, or the sliding_window_counter of a later version", r.Quota, MaxLogQuota)
	} else if !quotaOK {
		fault("quota %d: want 1 to %d", r.Quota, int64(MaxQuota))
	}
	windowOK := r.Window >= time.Microsecond && r.Window <= MaxWindow
	if !windowOK {
		fault("window %v: want 1µs to %v", r.Window, MaxWindow)
	} else if r.Window%time.Microsecond != 0 {
		fault("window %v: want whole microseconds", r.Window)
	}
	switch {
	case log && r.Burst != 0:
		fault("burst %d: want 0 for a sliding_window_log, whose capacity is its quota", r.Burst)
	case r.Burst < 0 || r.Burst > MaxQuota:
		fault("burst %d: want 0 (the quota) or 1 to %d", r.Burst, int64(MaxQuota))
	case quotaOK && windowOK:
		// Capacity * Window / Quota <= MaxFull, without the division.
		a := mul(r.Capacity(), micros(r.Window))
		if b := mul(micros(MaxFull), r.Quota); a.greater(b) {
			most, _ := b.div(micros(r.Window))
			fault("burst %d: want at most %d at this rate: an empty bucket must be full again within %v", r.Burst, most, MaxFull)
		}
	}
	return errors.Join(faults...)
}

// validName reports whether s is 1 to MaxName bytes of the permitted ones.
func validName(s string) bool {
	if len(s) == 0 || len(s) > MaxName {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// cut keeps a name that is far too long out of error texts.
func cut(name string) string {
	if len(name) > 2*MaxName {
		return name[:2*MaxName]
	}
	return name
}
