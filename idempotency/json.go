package idempotency

import (
	"bytes"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// jsonDepth is the greatest number of objects and arrays within one another.
const jsonDepth = 512

// jsonGrow is the size, in bytes, up to which a text's nodes are not counted
// in advance.
const jsonGrow = 64 << 10

// jsonDocument is a JSON text that was understood: a flat tree of nodes over
// the text. It keeps its memory for the next one.
//
// Why not encoding/json: it takes duplicate members, lone surrogates and
// invalid UTF-8 silently, and makes an allocation of every value. Here time is
// O(n log n) and memory O(n) for every text, and what the text nests is bounded.
type jsonDocument struct {
	text  []byte
	pos   int
	nodes []jsonNode // in the order of the text; nodes[0] is the whole
	side  []byte     // strings and numbers that are not in the text as they are here
	open  []uint32   // names of the objects that are not closed yet
	depth int
}

// jsonNode is a value or a member's name. A member's value follows its name in
// jsonDocument.nodes.
type jsonNode struct {
	kind       jsonKind
	start, end uint32 // of a scalar, in text or side; of a container, start is its first child
	next       uint32 // the next child of the same container; 0 is none
}

type jsonKind byte

const (
	jsonAsIs   jsonKind = iota // text[start:end] is in normal form
	jsonNumber                 // side[start:end] is the normal form
	jsonString                 // side[start:end] are the characters
	jsonArray
	jsonObject // members are in order
)

func (d *jsonDocument) size() int {
	return cap(d.nodes)*int(unsafe.Sizeof(jsonNode{})) + cap(d.side) + 4*cap(d.open)
}

// parse reads a text and reports whether its value is certain; see [Printer].
// The text must not change while the document is in use, and is shorter than
// 4 GiB.
func (d *jsonDocument) parse(text []byte) bool {
	d.text, d.pos, d.depth = text, 0, 0
	d.nodes, d.side, d.open = d.nodes[:0], d.side[:0], d.open[:0]
	if !utf8.Valid(text) {
		return false
	}
	if len(text) > jsonGrow {
		// Room for all nodes at once: while a large slice grows, several
		// times its size is garbage.
		most := 1
		for _, c := range []byte(",:[{") {
			most += bytes.Count(text, []byte{c})
		}
		d.nodes = slices.Grow(d.nodes, most)
	}
	if !d.value() {
		return false
	}
	d.space()
	return d.pos == len(text)
}

// peek returns the next byte, 0 at the end. No rule of the syntax takes a 0.
func (d *jsonDocument) peek() byte {
	if d.pos < len(d.text) {
		return d.text[d.pos]
	}
	return 0
}

func (d *jsonDocument) space() {
	for d.pos < len(d.text) {
		switch d.text[d.pos] {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return
		}
	}
}

func (d *jsonDocument) add(kind jsonKind, start, end int) {
	d.nodes = append(d.nodes, jsonNode{kind: kind, start: uint32(start), end: uint32(end)})
}

// value reads white space and one value.
func (d *jsonDocument) value() bool {
	d.space()
	switch c := d.peek(); c {
	case '{':
		return d.object()
	case '[':
		return d.array()
	case '"':
		return d.string()
	case 't':
		return d.literal("true")
	case 'f':
		return d.literal("false")
	case 'n':
		return d.literal("null")
	default:
		return d.number()
	}
}

func (d *jsonDocument) literal(word string) bool {
	end := d.pos + len(word)
	if end > len(d.text) || string(d.text[d.pos:end]) != word {
		return false
	}
	d.add(jsonAsIs, d.pos, end)
	d.pos = end
	return true
}

func (d *jsonDocument) array() bool {
	if d.depth++; d.depth > jsonDepth {
		return false
	}
	self := len(d.nodes)
	d.add(jsonArray, 0, 0)
	d.pos++
	d.space()
	if d.peek() == ']' {
		d.pos++
		d.depth--
		return true
	}
	for last := self; ; {
		child := len(d.nodes)
		if last == self {
			d.nodes[self].start = uint32(child)
		} else {
			d.nodes[last].next = uint32(child)
		}
		if !d.value() {
			return false
		}
		last = child
		d.space()
		c := d.peek()
		d.pos++
		if c == ']' {
			d.depth--
			return true
		}
		if c != ',' {
			return false
		}
	}
}

func (d *jsonDocument) object() bool {
	if d.depth++; d.depth > jsonDepth {
		return false
	}
	self, base := len(d.nodes), len(d.open)
	d.add(jsonObject, 0, 0)
	d.pos++
	d.space()
	if d.peek() == '}' {
		d.pos++
		d.depth--
		return true
	}
	for {
		d.space()
		if d.peek() != '"' {
			return false
		}
		d.open = append(d.open, uint32(len(d.nodes)))
		if !d.string() {
			return false
		}
		d.space()
		if d.peek() != ':' {
			return false
		}
		d.pos++
		if !d.value() {
			return false
		}
		d.space()
		c := d.peek()
		d.pos++
		if c == '}' {
			break
		}
		if c != ',' {
			return false
		}
	}
	d.depth--
	ok := d.order(self, d.open[base:])
	d.open = d.open[:base]
	return ok
}

// order links an object's members in the order of their names and reports
// whether no name is there twice.
func (d *jsonDocument) order(object int, names []uint32) bool {
	compare := func(a, b uint32) int { return compareUTF16(d.name(a), d.name(b)) }
	if !slices.IsSortedFunc(names, compare) {
		slices.SortFunc(names, compare)
	}
	d.nodes[object].start = names[0]
	for i, name := range names[1:] {
		if bytes.Equal(d.name(names[i]), d.name(name)) {
			return false
		}
		d.nodes[names[i]].next = name
	}
	return true
}

// name returns the characters of a string's node.
func (d *jsonDocument) name(i uint32) []byte {
	n := d.nodes[i]
	if n.kind == jsonAsIs {
		return d.text[n.start+1 : n.end-1]
	}
	return d.side[n.start:n.end]
}

// compareUTF16 compares by UTF-16 code units (RFC 8785, 3.2.3). That is the
// order of the bytes of UTF-8, but that U+E000 to U+FFFF (first byte 0xEE or
// 0xEF) come after all that needs surrogates (first byte 0xF0 to 0xF4).
func compareUTF16(a, b []byte) int {
	c := bytes.Compare(a, b)
	if c == 0 || len(a) == 0 || len(b) == 0 {
		return c
	}
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	if i < len(a) && i < len(b) && (a[i] >= 0xf0) != (b[i] >= 0xf0) && min(a[i], b[i]) >= 0xee {
		return -c
	}
	return c
}

// string reads a string, the position being at its first quote.
func (d *jsonDocument) string() bool {
	start := d.pos
	for i := start + 1; i < len(d.text); i++ {
		switch c := d.text[i]; {
		case c == '"':
			d.pos = i + 1
			d.add(jsonAsIs, start, d.pos)
			return true
		case c == '\\':
			return d.escaped(i)
		case c < 0x20:
			return false
		}
	}
	return false
}

// escaped reads on in a string whose first escape is at i.
func (d *jsonDocument) escaped(i int) bool {
	start := len(d.side)
	d.side = append(d.side, d.text[d.pos+1:i]...)
	for i < len(d.text) {
		c := d.text[i]
		i++
		switch {
		case c == '"':
			d.pos = i
			d.add(jsonString, start, len(d.side))
			return true
		case c < 0x20:
			return false
		case c != '\\':
			d.side = append(d.side, c)
			continue
		}
		if i == len(d.text) {
			return false
		}
		c = d.text[i]
		i++
		switch c {
		case '"', '\\', '/':
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r, ok := d.unit(i)
			if !ok {
				return false
			}
			i += 4
			if utf16.IsSurrogate(r) {
				if i+1 >= len(d.text) || d.text[i] != '\\' || d.text[i+1] != 'u' {
					return false
				}
				low, ok := d.unit(i + 2)
				if !ok {
					return false
				}
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					return false // not a pair: no pair gives U+FFFD
				}
				i += 6
			}
			d.side = utf8.AppendRune(d.side, r)
			continue
		default:
			return false
		}
		d.side = append(d.side, c)
	}
	return false
}

// unit reads the four hexadecimal digits at i.
func (d *jsonDocument) unit(i int) (rune, bool) {
	if i+4 > len(d.text) {
		return 0, false
	}
	var r rune
	for _, c := range d.text[i : i+4] {
		digit, ok := unhex(c)
		if !ok {
			return 0, false
		}
		r = r<<4 | rune(digit)
	}
	return r, true
}
