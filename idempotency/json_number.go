package idempotency

import (
	"bytes"
	"strconv"
)

// jsonExponent is the greatest number of digits of an exponent, leading zeros
// aside. With it, exponents and what the places of the digits add to them are
// integers of 64 bits; no number is ever expanded.
const jsonExponent = 18

// number reads a number. Its normal form is the sign, the digits without zeros
// at either end, and "e" with the power of ten if that is not 0; zero is "0".
// So equal values, and only they, have equal forms: -0 is 0, 1.50 is 15e-1,
// 100 is 1e2.
func (d *jsonDocument) number() bool {
	start := d.pos
	negative := d.peek() == '-'
	if negative {
		d.pos++
	}
	whole := d.digits()
	if len(whole) == 0 || len(whole) > 1 && whole[0] == '0' {
		return false
	}
	var fraction []byte
	if d.peek() == '.' {
		d.pos++
		if fraction = d.digits(); len(fraction) == 0 {
			return false
		}
	}
	var exponent []byte
	var below bool
	if c := d.peek(); c == 'e' || c == 'E' {
		d.pos++
		switch d.peek() {
		case '-':
			below = true
			d.pos++
		case '+':
			d.pos++
		}
		if exponent = d.digits(); len(exponent) == 0 {
			return false
		}
	}
	last := whole[len(whole)-1]
	if len(fraction) == 0 && len(exponent) == 0 && (last != '0' || len(whole) == 1 && !negative) {
		d.add(jsonAsIs, start, d.pos)
		return true
	}

	mark := len(d.side)
	if negative {
		d.side = append(d.side, '-')
	}
	first := len(d.side)
	d.side = append(d.side, bytes.TrimLeft(whole, "0")...)
	if len(d.side) == first {
		d.side = append(d.side, bytes.TrimLeft(fraction, "0")...)
	} else {
		d.side = append(d.side, fraction...)
	}
	end := len(d.side)
	for end > first && d.side[end-1] == '0' {
		end--
	}
	if end == first { // zero, whatever its sign and exponent
		d.side = append(d.side[:mark], '0')
		d.add(jsonNumber, mark, len(d.side))
		return true
	}
	power := int64(len(d.side)-end) - int64(len(fraction))
	d.side = d.side[:end]
	if exponent = bytes.TrimLeft(exponent, "0"); len(exponent) > 0 {
		if len(exponent) > jsonExponent {
			return false
		}
		var e int64
		for _, c := range exponent {
			e = 10*e + int64(c-'0')
		}
		if below {
			e = -e
		}
		power += e
	}
	if power != 0 {
		d.side = append(d.side, 'e')
		d.side = strconv.AppendInt(d.side, power, 10)
	}
	d.add(jsonNumber, mark, len(d.side))
	return true
}

// digits reads decimal digits.
func (d *jsonDocument) digits() []byte {
	start := d.pos
	for d.pos < len(d.text) && '0' <= d.text[d.pos] && d.text[d.pos] <= '9' {
		d.pos++
	}
	return d.text[start:d.pos]
}
