package idempotency

import (
	"errors"
	"fmt"
	"time"
)

// MaxPrints is the greatest number of fingerprints in a claim.
const MaxPrints = 4

// Claim is an attempt to own a key.
type Claim struct {
	Key Key
	// Prints are the request's fingerprints, newest algorithm first. Only
	// those with equal tags are compared. None: nothing is compared.
	Prints []Fingerprint
	// Owner is fresh for every attempt.
	Owner Owner
	Terms Terms
	// Origin is kept with the record for the people who read it.
	Origin Origin
}

// Origin says where a record came from. It takes no part in any decision.
type Origin struct {
	Method string // such as "POST"
	Route  string // the pattern of the route that matched
	Trace  string // the trace id of the first run, or ""
}

// Validate reports every fault of c at once: no key, no tenant, no owner, too
// many fingerprints, two with one tag, faulty terms.
func (c Claim) Validate() error {
	var errs []error
	if c.Key.ID.IsZero() {
		errs = append(errs, errors.New("idempotency: claim without a key"))
	}
	if c.Key.Tenant == "" {
		errs = append(errs, ErrNoTenant)
	}
	if c.Owner.IsZero() {
		errs = append(errs, errors.New("idempotency: claim without an owner"))
	}
	if len(c.Prints) > MaxPrints {
		errs = append(errs, fmt.Errorf("idempotency: claim with %d fingerprints: want at most %d", len(c.Prints), MaxPrints))
	}
	for i, p := range c.Prints {
		for _, q := range c.Prints[:i] {
			if p.Tag == q.Tag {
				errs = append(errs, fmt.Errorf("idempotency: claim with two fingerprints of the tag %q", p.Tag))
			}
		}
	}
	errs = append(errs, c.Terms.Validate())
	return errors.Join(errs...)
}

// Outcome says what a claim came to.
type Outcome uint8

const (
	// Refused: the claim's owner had been withdrawn (R12); nothing changed,
	// and nothing may be executed. It is the zero value.
	Refused Outcome = iota
	// Started: the claim owns the key; run the operation.
	Started
	// Replayed: the operation is done; Record has its result.
	Replayed
	// InProgress: another attempt owns the key, or its quiet time is not over.
	InProgress
	// Mismatched: the key was used for another request.
	Mismatched
	// Unknown: an attempt ended and nobody knows how; the terms say hold.
	Unknown
	// Archived: the operation ran, longer ago than its retention.
	Archived
)

// String returns the outcome in lower case, as metrics and logs write it.
func (o Outcome) String() string {
	names := [...]string{"refused", "started", "replayed", "in_progress", "mismatched", "unknown", "archived"}
	if int(o) < len(names) {
		return names[o]
	}
	return "invalid"
}

// Answer is what a store says to a claim.
type Answer struct {
	Outcome Outcome
	// Record is the key's record after the decision.
	Record Record
	// Reservation is set only with Started.
	Reservation Reservation
	// NotComparable is true if the record has fingerprints and none has a tag
	// of the claim's. Such a request counts as equal.
	NotComparable bool
}

// Reservation is a claim that won. It is what its holder shows to a store.
type Reservation struct {
	Key   Key
	Owner Owner
	Token Token
	// LeaseEnd is on the store's clock. A holder judges its own lease by its
	// own monotonic clock, from before the call that gave it (F8).
	LeaseEnd time.Time
	// Takeover is true if an earlier attempt ended with an unknown outcome.
	Takeover bool
	// Repeated is true if the Reserve that gave this was, or may have been,
	// sent more than once: then a copy of it may still arrive, and NotRun
	// leaves the owner's mark (R12).
	Repeated bool
}
