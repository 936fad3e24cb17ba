// Package escapement stands between clients and an operation and makes two
// promises: each operation takes effect once, and never too many at a time.
//
// A request is admitted or answered: a [Gate] takes its charges (what it
// costs, to whom) and its claim (which operation it is) and returns one
// [Verdict]. Below the Gate are pure rules (packages idempotency and
// ratelimit) and stores; above it are HTTP (package httpgate) and the program.
//
// "Once" means: at most one successful effect, the same answer for every
// repeat, and where the outcome is not known, the Gate says so instead of
// guessing. docs/GUARANTEES.md says what holds under which fault.
package escapement
