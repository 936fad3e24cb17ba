package escapement

import (
	"context"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// Observer sees every decision, transition and store call. It must not block;
// it is called concurrently, on the goroutine where the thing happened: that of
// the request, of its operation, or of Gate.Run. The context has the values of
// the request's, where there is one. Without an Observer nothing is measured.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// EventKind says what happened.
type EventKind uint8

const (
	// Decided: a request got its verdict (Verdict, Err, Took: the whole Do).
	Decided EventKind = iota + 1
	// LimitsAsked: a Take was answered (Levels, Allowed, Err, Took).
	LimitsAsked
	// Claimed: a Reserve was answered (Claim, Takeover, NotComparable, Err, Took).
	Claimed
	// LeaseRenewed: an Extend was answered (Err, Took).
	LeaseRenewed
	// LeaseLost: an attempt was told that it no longer owns its key.
	LeaseLost
	// OperationEnded: the operation's function returned, panicked or was given
	// up (Ending, TimedOut, Panicked, Took: the function's time).
	OperationEnded
	// EndingRecorded: an End was answered (Ending, Err, Took).
	EndingRecorded
	// ClaimVoided: a Void was answered (Err, Took).
	ClaimVoided
	// RecordsSwept: a Sweep was answered (Count, Err, Took).
	RecordsSwept
	// ChargesReturned: a Return was answered (Err, Took).
	ChargesReturned
	// StepSaved: a SaveStep was answered (Step, StepDone, Err, Took).
	StepSaved
	// StepAsked: a step's Status function returned (Step, StepStatus, Err, Took).
	StepAsked
	// StepCalled: a step's call returned (Step, Err, Took).
	StepCalled
	// AbandonedCounted: the records whose outcome has been unknown for
	// Options.AbandonedAfter were counted, about once a minute (Count, Oldest).
	AbandonedCounted
)

// String returns the kind in lower case.
func (k EventKind) String() string {
	names := [...]string{
		"invalid", "decided", "limits_asked", "claimed", "lease_renewed", "lease_lost",
		"operation_ended", "ending_recorded", "claim_voided", "records_swept", "charges_returned",
		"step_saved", "step_asked", "step_called", "abandoned_counted",
	}
	if int(k) < len(names) {
		return names[k]
	}
	return names[0]
}

// Event is one thing that happened. Which fields are set depends on Kind.
type Event struct {
	Kind EventKind
	// Key, Origin and RequestID are those of the request, where there is one.
	Key       idempotency.Key
	Origin    idempotency.Origin
	RequestID string
	// Took is how long it took, by the monotonic clock.
	Took time.Duration
	// Err is the error of the call, or nil.
	Err error
	// Background is true for a call that no client waits for.
	Background bool
	// Together is true for what was one call of an Admitter: its parts are
	// told one by one, each with the whole call's time. A claim that it gave
	// back, since a limit refused, is not told.
	Together bool

	Verdict       Outcome
	Levels        []ratelimit.Level
	Allowed       bool
	Claim         idempotency.Outcome
	Takeover      bool
	NotComparable bool
	Ending        idempotency.Ending // without its payload
	TimedOut      bool
	Panicked      bool
	Count         int
	Oldest        time.Duration // since the oldest of them last changed
	Step          string        // the step's name
	StepDone      bool
	StepStatus    StepStatus
}
