package escapement

import (
	"errors"
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// Policy is how one route's operations are run.
type Policy struct {
	// Terms are those of every claim. Terms.Lease is renewed at a third of
	// itself while the operation runs. Terms.OnUnknown must be Hold, Retry or
	// Probe: a Gate refuses Fail with an error. With Probe, the function of an
	// attempt that takes over (Reservation.Takeover) must ask before it calls:
	// [Run.Step] does, for the effects that are steps.
	Terms idempotency.Terms
	// Timeout bounds an operation, from its claim to the last byte of its
	// answer. The lease is renewed no longer. It must be positive.
	Timeout time.Duration
	// Records, if set, keeps the records of these operations in place of
	// Options.Records: another way to the same records, with other promises
	// about a write, such as one that replicas confirm. Limits and claim are
	// then calls of their own.
	Records idempotency.Store
}

// DefaultPolicy holds unknown outcomes, keeps records for a day, leases for
// 15 s, and stops an operation after a minute.
func DefaultPolicy() Policy {
	return Policy{
		Terms: idempotency.Terms{
			Lease:     15 * time.Second,
			Retention: 24 * time.Hour,
			Quiet:     time.Minute,
			OnUnknown: idempotency.Hold,
		},
		Timeout: time.Minute,
	}
}

// Validate reports every fault of p at once.
func (p Policy) Validate() error {
	errs := []error{p.Terms.Validate()}
	if p.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("escapement: policy: timeout is %v: want more than 0", p.Timeout))
	}
	if u := p.Terms.OnUnknown; u == idempotency.Fail {
		errs = append(errs, fmt.Errorf("escapement: policy: on_unknown is %v: this version can hold, retry and probe", u))
	}
	return errors.Join(errs...)
}
