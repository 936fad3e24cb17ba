package escapement

import (
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// Request is what a Gate judges.
type Request struct {
	// Charges are judged together, those of one kind in one decision, in this
	// order. None: no limits.
	Charges []ratelimit.Charge
	// Key is the operation's key. The zero Key: the request has none, and is
	// only limited.
	Key idempotency.Key
	// Prints are the request's fingerprints, newest algorithm first.
	Prints []idempotency.Fingerprint
	// Policy is used only with a Key.
	Policy Policy
	// Origin is kept with the record.
	Origin idempotency.Origin
	// ID identifies the request in log lines; it may be empty.
	ID string
}

// keyed reports whether r names an operation.
func (r *Request) keyed() bool { return !r.Key.ID.IsZero() }
