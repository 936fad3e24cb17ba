package httpgate

import "time"

// Problem is a refusal (RFC 9457).
type Problem struct {
	// Code is the slug, such as "store-unavailable". It makes the type.
	Code string
	// Status is the status code of the answer.
	Status int
	// Title and Detail are for people. They never repeat what a caller sent.
	Title, Detail string
	// Retryable says whether the same request may succeed later.
	Retryable bool
	// RetryAfter, where positive, is sent in whole seconds, rounded up.
	RetryAfter time.Duration
	// More holds further members.
	More map[string]any
}
