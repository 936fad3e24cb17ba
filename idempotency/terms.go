package idempotency

import (
	"errors"
	"fmt"
	"time"
)

// OnUnknown says what a repeat does with a key whose outcome is not known.
type OnUnknown uint8

const (
	// Hold refuses the repeat until somebody settles the key. It is the zero
	// value: nothing runs twice by default.
	Hold OnUnknown = iota
	// Retry runs the operation again: right where the upstream knows keys, or
	// where a repeat does no harm.
	Retry
	// Probe lets one repeat take over, which must ask the upstream first.
	Probe
	// Fail settles the key as a final failure.
	Fail
)

// String returns the policy's name as the configuration writes it.
func (u OnUnknown) String() string {
	switch u {
	case Hold:
		return "hold"
	case Retry:
		return "retry"
	case Probe:
		return "probe"
	case Fail:
		return "fail"
	}
	return "invalid"
}

// Terms are the times and the policy under which a key is claimed. The record
// keeps those of its last claim, in whole microseconds.
type Terms struct {
	// Lease is how long a claim holds without renewal. It must be positive.
	Lease time.Duration
	// Retention is how long a record is kept after the end of its attempt. It
	// must be positive.
	Retention time.Duration
	// Remember is how long, after Retention, a record of an operation that ran
	// is kept shrunk to its hashes and outcome. 0: not at all.
	Remember time.Duration
	// Quiet is the time after a lease ran out, or after an unknown ending,
	// before anybody takes over or settles. It must cover the longest time for
	// which the attempt can still be travelling, unless OnUnknown is Retry.
	Quiet time.Duration
	// OnUnknown is Hold unless set.
	OnUnknown OnUnknown
}

// Validate reports every fault of t at once, joined (see errors.Join).
func (t Terms) Validate() error {
	var errs []error
	bad := func(name string, d time.Duration, want string) {
		errs = append(errs, fmt.Errorf("idempotency: terms: %s is %v: want %s", name, d, want))
	}
	if t.Lease < time.Microsecond {
		bad("lease", t.Lease, "at least 1µs")
	}
	if t.Retention < time.Microsecond {
		bad("retention", t.Retention, "at least 1µs")
	}
	if t.Remember < 0 {
		bad("remember", t.Remember, "0 or more")
	}
	if t.Quiet < 0 {
		bad("quiet", t.Quiet, "0 or more")
	}
	if t.OnUnknown > Fail {
		errs = append(errs, fmt.Errorf("idempotency: terms: on_unknown is %d: want Hold, Retry, Probe or Fail", t.OnUnknown))
	}
	return errors.Join(errs...)
}

// whole is t in whole microseconds, rounded down.
func (t Terms) whole() Terms {
	for _, d := range []*time.Duration{&t.Lease, &t.Retention, &t.Remember, &t.Quiet} {
		*d = d.Truncate(time.Microsecond)
	}
	return t
}
