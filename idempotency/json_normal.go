package idempotency

import "strconv"

// appendNormal appends the normal form of the document: without what drop
// names, or, if keep is not nil, of what keep names alone. If nothing is there
// of what keep names, it is the whole.
//
// The form is that of RFC 8785 but for the numbers (see
// [jsonDocument.number]). With keep it is a list of the pointers that lead
// somewhere, each with its value and a comma, which no JSON text looks like.
func (d *jsonDocument) appendNormal(dst []byte, drop, keep *pointerTree) []byte {
	start := len(dst)
	if keep != nil {
		dst = d.appendNamed(dst, 0, keep)
	}
	if len(dst) == start {
		dst = d.appendValue(dst, 0, drop)
	}
	return dst
}

// appendValue appends the value at node i without what drop names.
func (d *jsonDocument) appendValue(dst []byte, i uint32, drop *pointerTree) []byte {
	n := d.nodes[i]
	switch n.kind {
	case jsonAsIs:
		return append(dst, d.text[n.start:n.end]...)
	case jsonNumber:
		return append(dst, d.side[n.start:n.end]...)
	case jsonString:
		return appendQuoted(dst, d.side[n.start:n.end])
	case jsonArray:
		dst = append(dst, '[')
		first := len(dst)
		for child, index := n.start, 0; child != 0; child, index = d.nodes[child].next, index+1 {
			below := drop.atIndex(index)
			if below.ends() {
				continue
			}
			if len(dst) > first {
				dst = append(dst, ',')
			}
			dst = d.appendValue(dst, child, below)
		}
		return append(dst, ']')
	default: // jsonObject
		dst = append(dst, '{')
		first := len(dst)
		for name := n.start; name != 0; name = d.nodes[name].next {
			below := drop.at(d.name(name))
			if below.ends() {
				continue
			}
			if len(dst) > first {
				dst = append(dst, ',')
			}
			dst = d.appendValue(dst, name, nil)
			dst = append(dst, ':')
			dst = d.appendValue(dst, name+1, below)
		}
		return append(dst, '}')
	}
}

// appendNamed appends each pointer of keep that leads from node i to a value,
// and the value.
func (d *jsonDocument) appendNamed(dst []byte, i uint32, keep *pointerTree) []byte {
	if keep.ends() {
		dst = appendQuoted(dst, []byte(keep.pointer))
		dst = append(dst, ':')
		dst = d.appendValue(dst, i, nil)
		return append(dst, ',')
	}
	n := d.nodes[i]
	switch n.kind {
	case jsonArray:
		for child, index := n.start, 0; child != 0; child, index = d.nodes[child].next, index+1 {
			if below := keep.atIndex(index); below != nil {
				dst = d.appendNamed(dst, child, below)
			}
		}
	case jsonObject:
		for name := n.start; name != 0; name = d.nodes[name].next {
			if below := keep.at(d.name(name)); below != nil {
				dst = d.appendNamed(dst, name+1, below)
			}
		}
	default: // a scalar: nothing is below it
	}
	return dst
}

// atIndex returns the tree below the token of an array's index, which has no
// leading zeros (RFC 6901, 4).
func (t *pointerTree) atIndex(index int) *pointerTree {
	if t == nil {
		return nil
	}
	var b [20]byte
	return t.at(strconv.AppendInt(b[:0], int64(index), 10))
}

// appendQuoted appends characters as a JSON string: escaped is only what must
// be, in the shortest way (RFC 8785, 3.2.2.2).
func appendQuoted(dst, s []byte) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c >= 0x20:
			dst = append(dst, c)
		case c == '\b':
			dst = append(dst, '\\', 'b')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\f':
			dst = append(dst, '\\', 'f')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
	}
	return append(dst, '"')
}
