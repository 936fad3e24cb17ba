// Package ratelimit is the ground of rate limits: rules, charges, decisions,
// and the algorithms as pure functions over integers.
//
// Nothing here reads a clock, keeps a goroutine or does I/O. A [Store] holds
// the states and says what time it is; [Rule.Take] and [Rule.Return] are the
// only place where the algorithms are written in Go.
//
// A decision is a value; an error means that no decision was made.
package ratelimit
