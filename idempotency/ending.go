package idempotency

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// Class says what a result means for repeats.
type Class uint8

const (
	// Succeeded is final: repeats are answered with it.
	Succeeded Class = iota + 1
	// FailedFinal is final too.
	FailedFinal
	// FailedRetryable answers repeats within its window, without effect; after
	// it the operation may run again.
	FailedRetryable
)

// String returns the class as people see it.
func (c Class) String() string {
	switch c {
	case Succeeded:
		return "succeeded"
	case FailedFinal:
		return "failed_final"
	case FailedRetryable:
		return "failed_retryable"
	}
	return "invalid"
}

// Source says who said what the result is.
type Source uint8

const (
	// FromAttempt: the attempt itself. It is the zero value.
	FromAttempt Source = iota
	// FromProbe: the upstream, when asked by a takeover.
	FromProbe
	// FromOperator: a person settled it.
	FromOperator
	// FromPolicy: the terms say Fail. Such a result has no payload.
	FromPolicy
)

// String returns the source in lower case.
func (s Source) String() string {
	names := [...]string{"attempt", "probe", "operator", "policy"}
	if int(s) < len(names) {
		return names[s]
	}
	return "invalid"
}

// MaxPayload is the greatest size of a result's payload, in bytes: the largest
// answer that can be kept, and room for its header.
const MaxPayload = 17 << 20

// Result is how an operation came out.
type Result struct {
	// Class must be set.
	Class Class
	// Status is the answer's status code; 0 where there is none.
	Status int
	// Payload is what a replay needs, in the caller's encoding. Stores keep
	// its bytes and do not look at them. Nil and empty are the same.
	Payload []byte
	// NotKept is true if the operation ran and its answer was too large to
	// keep; then Payload is empty.
	NotKept bool
	// Window is how long a FailedRetryable result answers repeats. 0: the next
	// repeat runs. It must be 0 for other classes.
	Window time.Duration
	// By is FromAttempt unless set.
	By Source
}

// Equal reports whether r and o are the same result.
func (r Result) Equal(o Result) bool {
	return r.Class == o.Class && r.Status == o.Status && r.NotKept == o.NotKept &&
		r.Window == o.Window && r.By == o.By && bytes.Equal(r.Payload, o.Payload)
}

// Validate reports every fault of r at once.
func (r Result) Validate() error {
	var errs []error
	if r.Class < Succeeded || r.Class > FailedRetryable {
		errs = append(errs, fmt.Errorf("idempotency: result of class %d: want Succeeded, FailedFinal or FailedRetryable", r.Class))
	}
	if len(r.Payload) > MaxPayload {
		errs = append(errs, fmt.Errorf("idempotency: result with a payload of %d bytes: want at most %d", len(r.Payload), MaxPayload))
	}
	if r.NotKept && len(r.Payload) > 0 {
		errs = append(errs, errors.New("idempotency: result that is not kept and has a payload"))
	}
	if r.Window < 0 || r.Window > 0 && r.Class != FailedRetryable {
		errs = append(errs, fmt.Errorf("idempotency: result of class %v with a window of %v: want 0 or more, and 0 unless failed_retryable", r.Class, r.Window))
	}
	if r.By > FromPolicy {
		errs = append(errs, fmt.Errorf("idempotency: result from source %d: want FromAttempt, FromProbe, FromOperator or FromPolicy", r.By))
	}
	return errors.Join(errs...)
}

// EndingKind says which ending it is.
type EndingKind uint8

const (
	// EndedUnknown is the zero value: an ending that nobody filled in must not
	// free a key.
	EndedUnknown EndingKind = iota
	EndedDone
	EndedNotRun
)

// String returns the kind in lower case.
func (k EndingKind) String() string {
	switch k {
	case EndedDone:
		return "done"
	case EndedNotRun:
		return "not_run"
	case EndedUnknown:
		return "unknown"
	}
	return "invalid"
}

// Ending is how an attempt ended. The zero Ending is UnknownEnding().
type Ending struct {
	Kind   EndingKind
	Result Result // only with EndedDone
}

// Done ends an attempt with a result.
func Done(r Result) Ending { return Ending{Kind: EndedDone, Result: r} }

// NotRun ends an attempt that executed nothing: the key is as the claim found
// it (R9).
func NotRun() Ending { return Ending{Kind: EndedNotRun} }

// UnknownEnding ends an attempt whose outcome nobody knows (R11).
func UnknownEnding() Ending { return Ending{} }

// Validate reports every fault of e at once.
func (e Ending) Validate() error {
	switch e.Kind {
	case EndedDone:
		return e.Result.Validate()
	case EndedNotRun, EndedUnknown:
		if !e.Result.Equal(Result{}) {
			return fmt.Errorf("idempotency: an ending of kind %v has a result", e.Kind)
		}
		return nil
	}
	return fmt.Errorf("idempotency: an ending of kind %d: want Done, NotRun or UnknownEnding", e.Kind)
}
