// Package idempotency is the ground of idempotency keys: what a key, a claim,
// a record and an ending are, and the rule by which one follows from another.
//
// The rule is pure: [Decide] and its siblings [Finish], [Renew], [Withdraw],
// [PutStep], [SettleBy], [ForgetBy] and [Expire] take a record and a time and
// return the next record. They are the only place where the rule is written in
// Go; a [Store] applies them, or says the same in its own language, atomically.
//
// The clauses R1 to R12, F1 to F9, E1 and E2 that the comments cite are in
// docs/STORE_GUIDE.md. Every interleaving of crashes, pauses, lost and late
// messages within small bounds is explored over these functions by the tests
// of this package.
//
// A decision is a value; an error means that no decision was made, and nothing
// is executed.
package idempotency
