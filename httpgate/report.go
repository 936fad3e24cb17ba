package httpgate

import "context"

// Finding is what a handler knows of its operation beside the status.
type Finding uint8

const (
	// ByStatus: the answer's status says it. It is the zero value.
	ByStatus Finding = iota
	// NotExecuted: nothing had an effect; the key is as it was found.
	NotExecuted
	// Unknown: nobody knows whether there was an effect.
	Unknown
	// Retryable: a temporary failure without effect.
	Retryable
	// Final: the answer is the operation's last word.
	Final
)

// Report says how the operation that ctx belongs to came out; the last call
// before the handler returns counts. It reports whether ctx belongs to one.
func Report(ctx context.Context, f Finding) bool { return false }
