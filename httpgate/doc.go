// Package httpgate puts a [escapement.Gate] in front of an [http.Handler].
//
// [New] checks a [Config] and returns a [Middleware]; its Wrap has the form
// func(http.Handler) http.Handler. A request that carries an Idempotency-Key
// runs at most once: repeats are answered with the recorded answer, or told
// why there is none. Every request is charged to the limits that match it.
// Refusals are application/problem+json (RFC 9457).
//
// A handler that knows more than its status says, calls [Report]. A handler
// whose work is one database transaction lets [FenceIn] and [EndIn] record the
// answer inside it.
package httpgate
