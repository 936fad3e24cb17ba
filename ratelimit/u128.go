package ratelimit

import (
	"math"
	"math/bits"
)

// u128 is an unsigned integer of 128 bits. The largest value in use is a cost
// times a window or a debt: below 2^109.
type u128 struct{ hi, lo uint64 }

func mul(a, b int64) u128 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return u128{hi, lo}
}

func (a u128) add(b u128) u128 {
	lo, carry := bits.Add64(a.lo, b.lo, 0)
	hi, _ := bits.Add64(a.hi, b.hi, carry)
	return u128{hi, lo}
}

// sub is a-b; b must not be greater than a.
func (a u128) sub(b u128) u128 {
	lo, borrow := bits.Sub64(a.lo, b.lo, 0)
	hi, _ := bits.Sub64(a.hi, b.hi, borrow)
	return u128{hi, lo}
}

func (a u128) greater(b u128) bool {
	return a.hi > b.hi || a.hi == b.hi && a.lo > b.lo
}

// div is the quotient and the remainder of a by y > 0. A quotient that does
// not fit becomes the greatest int64: only a state that no rule wrote leads
// there.
func (a u128) div(y int64) (q, r int64) {
	d := uint64(y)
	if a.hi == 0 {
		q, r = int64(min(a.lo/d, math.MaxInt64)), int64(a.lo%d)
		return q, r
	}
	if a.hi >= d {
		return math.MaxInt64, 0
	}
	uq, ur := bits.Div64(a.hi, a.lo, d)
	return int64(min(uq, math.MaxInt64)), int64(ur)
}

// ceil is the quotient of a by y > 0, rounded up.
func (a u128) ceil(y int64) int64 {
	q, r := a.div(y)
	if r > 0 && q < math.MaxInt64 {
		q++
	}
	return q
}
