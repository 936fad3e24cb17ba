//go:build race

package idempotency

// Under the race detector a state costs ten times as much, and the search
// itself has no concurrency to check.
const exploreSmall = true
