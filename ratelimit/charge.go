package ratelimit

import (
	"errors"
	"fmt"
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
	switch k {
	case Requests:
		return "requests"
	case Executions:
		return "executions"
	}
	return "invalid"
}

// Split parts charges by kind; each part keeps the order. It allocates only if
// there are both kinds.
func Split(charges []Charge) (requests, executions []Charge) {
	n := 0
	for i := range charges {
		if charges[i].Kind == Executions {
			n++
		}
	}
	switch n {
	case 0:
		return charges, nil
	case len(charges):
		return nil, charges
	}
	requests = make([]Charge, 0, len(charges)-n)
	executions = make([]Charge, 0, n)
	for _, c := range charges {
		if c.Kind == Executions {
			executions = append(executions, c)
		} else {
			requests = append(requests, c)
		}
	}
	return requests, executions
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

// ErrCharge is what errors.Is finds in an error that is about the charges: one
// is not valid, or asks what the store does not do. Nothing changed, and asking
// again does not help. No other error of a [Store] is an ErrCharge.
var ErrCharge = errors.New("ratelimit: faulty charges")

// fault is one fault of a rule or charge.
type fault string

func (f fault) Error() string       { return string(f) }
func (f fault) Is(other error) bool { return other == ErrCharge }

// faultOf is a fault of the rule of a name.
func faultOf(name, format string, args ...any) error {
	return fault(fmt.Sprintf("rule %q: ", cut(name)) + fmt.Sprintf(format, args...))
}

// Validate names every fault of the charge and of its rule, one per line; nil
// if there is none. It never prints the subject. Stores refuse a charge that is
// not valid with this error, which is an [ErrCharge], before anything changes.
func (c Charge) Validate() error {
	var faults []error
	if err := c.Rule.Validate(); err != nil {
		faults = append(faults, err)
	}
	fault := func(format string, args ...any) {
		faults = append(faults, faultOf(c.Rule.Name, format, args...))
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
