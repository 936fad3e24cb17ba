package ratelimit

import "context"

// Store keeps the states of rules. Its methods may be called concurrently.
//
// The time is the store's. Numbered clauses (Q1 to Q7) are in
// docs/STORE_GUIDE.md; package storetest checks them.
type Store interface {
	// Take charges all of charges or none (Q1). A refusal changes no state
	// (Q2), a cost of 0 neither (Q3). No charges are allowed. Two charges of
	// one call may name the same rule and subject: their costs add up.
	//
	// An error means that no decision was made. Unless it is an ErrCharge the
	// charges may have been taken; the caller must not repeat the call to find
	// out.
	Take(ctx context.Context, charges []Charge) (Decision, error)
	// Return gives back what a Take took. It never gives more than what is
	// still owed, so that the bound of Q5 holds. The second Return of one
	// Taken, and of nil, does nothing and returns nil.
	Return(ctx context.Context, t *Taken) error
	// Reset forgets what the rule named rule holds about subject: it has its
	// whole capacity again. A subject that is not there is no error.
	Reset(ctx context.Context, rule, subject string) error
}
