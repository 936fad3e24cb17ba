// Package memstore keeps records and limits in the memory of one process.
//
// [Records] is an idempotency store and [Limits] a rate-limit store; the two
// know nothing of each other. Both are bounded: they forget only what is over
// (expired records, full buckets), and refuse what is new rather than forget
// what is alive. Neither starts a goroutine. What they hold is lost when the
// process ends.
//
// The clauses (R, F, E, Q) that the comments cite are in docs/STORE_GUIDE.md.
package memstore
