//go:build !race

package idempotency

const exploreSmall = false
