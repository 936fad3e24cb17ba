package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Kind says which requests a [Charge] counts.
type Kind uint8

const (
	// Requests counts every request, replays too. It is the zero value.
	Requests Kind = iota
	// Executions counts only what is run.
	Executions
)

// String returns the kind as the configuration writes it.
func (k Kind) String() string {
	if k == Executions {
		return "executions"
	}
	return "requests"
}

// Charge is one rule applied to one subject.
type Charge struct {
	Rule Rule
	// Subject says whose bucket is charged: 0 to 255 bytes, opaque; empty for
	// a rule with one bucket for all. Secrets are hashed by the caller.
	Subject string
	// Cost is in the rule's units: 0 looks and changes nothing. A cost above
	// the rule's capacity can never pass. A negative one is refused by Validate.
	Cost int64
	// Kind is read by the Gate; stores do not look at it.
	Kind Kind
}

// Validate names every fault of the charge and of its rule, one per line; nil
// if there is none. It never prints the subject. Stores refuse a charge that is
// not valid with this error, before anything changes.
func (c Charge) Validate() error {
	var faults []error
	if err := c.Rule.Validate(); err != nil {
		faults = append(faults, err)
	}
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("rule %q: "+format, append([]any{cut(c.Rule.Name)}, args...)...))
	}
	if len(c.Subject) > MaxSubject {
		fault("subject of %d bytes: want at most %d", len(c.Subject), MaxSubject)
	}
	if c.Cost < 0 {
		fault("cost %d: want 0 (look only) or more", c.Cost)
	}
	if c.Kind > Executions {
		fault("kind %d: want requests (%d) or executions (%d)", c.Kind, Requests, Executions)
	}
	return errors.Join(faults...)
}

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

// Store keeps the states of rules. Its methods may be called concurrently.
//
// The time is the store's. Numbered clauses (Q1 to Q7) are in
// docs/STORE_GUIDE.md; package storetest checks them.
type Store interface {
	// Take charges all of charges or none (Q1). A refusal changes no state
	// (Q2), a cost of 0 neither (Q3). No charges are allowed. Two charges of
	// one call may name the same rule and subject: their costs add up.
	//
	// An error means that no decision was made. The charges may have been
	// taken; the caller must not repeat the call to find out.
	Take(ctx context.Context, charges []Charge) (Decision, error)
	// Return gives back what a Take took. It never gives more than what is
	// still owed, so that the bound of Q5 holds. The second Return of one
	// Taken, and of nil, does nothing and returns nil.
	Return(ctx context.Context, t *Taken) error
	// Reset forgets what the rule named rule holds about subject: it has its
	// whole capacity again. A subject that is not there is no error.
	Reset(ctx context.Context, rule, subject string) error
}
