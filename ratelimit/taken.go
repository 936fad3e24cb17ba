package ratelimit

import "sync/atomic"

// Taken is what one Take charged, so that it can be given back. It is made by
// a store and used by the same store.
type Taken struct {
	Charges []Charge
	// Receipts has what the store needs to undo each charge, in their order.
	Receipts []Receipt

	returned atomic.Bool
}

// Once reports true on its first call and false ever after: a store's Return
// asks it, so that nothing is given back twice.
func (t *Taken) Once() bool { return t != nil && t.returned.CompareAndSwap(false, true) }

// Receipt is what one charge moved.
type Receipt struct {
	// At is the store's time of the charge, in microseconds since 1970.
	At int64
	// Entries are the log entries that the charge added.
	Entries []int64
}
