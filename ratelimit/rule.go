package ratelimit

import "time"

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
	return "unknown"
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
	// Burst is the capacity of a TokenBucket, in units. 0 means Quota. It
	// must be 0 for other algorithms.
	Burst int64
}

// Limits of a rule's numbers. They keep every intermediate value of the
// algorithms inside 128 bits, and a bucket's stored state inside 2^53.
const (
	MaxQuota    = 1_000_000_000_000 // units per window and burst
	MaxLogQuota = 10_000            // entries of a sliding window log
	MaxWindow   = 366 * 24 * time.Hour
)

// Capacity is what can be taken at once when nothing was taken before: Burst
// of a token bucket (Quota where Burst is 0), else Quota.
func (r Rule) Capacity() int64 {
	if r.Algorithm == TokenBucket && r.Burst != 0 {
		return r.Burst
	}
	return r.Quota
}
