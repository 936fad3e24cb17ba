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

// Renew makes t as good as new, so that a store may fill it again; it keeps the
// memory. What t held can no longer be given back.
func (t *Taken) Renew() {
	t.Charges, t.Receipts = t.Charges[:0], t.Receipts[:0]
	if t.returned.Load() { // a store costs more
		t.returned.Store(false)
	}
}

// Receipt is what one charge moved: the time and the bucket's numbers just
// after it. [State.Receipt] makes it and [Rule.Return] reads it. The zero value
// gives nothing back.
type Receipt struct {
	// At is the store's time of the charge, in microseconds since 1970. A
	// charge to a SlidingWindowLog added its cost in entries of that time.
	At int64
	// Arrival and Rem are those of the state just after the charge.
	Arrival, Rem int64
	// Since and Returned are those of the state just after the charge.
	Since, Returned int64
}
