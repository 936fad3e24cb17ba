package idempotency

import (
	"bytes"
	"slices"
	"unsafe"
)

// formFields brings a form, or a query, to its normal form. It keeps its memory
// for the next one.
type formFields struct {
	raw    []byte // a query's bytes
	text   []byte // names and values, decoded, one behind the other
	fields []formField
	out    []byte
}

// formField is a name text[name:value] and a value text[value:end].
type formField struct{ name, value, end uint32 }

func (f *formFields) size() int {
	return cap(f.raw) + cap(f.text) + cap(f.out) + cap(f.fields)*int(unsafe.Sizeof(formField{}))
}

// appendFields appends the fields of raw, sorted by name, the order within one
// name kept, each name and each value behind its length. It reports false, and
// dst is as it was, if an escape is broken.
//
// The syntax is that of the WHATWG's URL standard (application/x-www-form-urlencoded
// parsing), but that bytes need not be UTF-8. raw is shorter than 4 GiB.
func (f *formFields) appendFields(dst, raw []byte) ([]byte, bool) {
	f.text, f.fields = f.text[:0], f.fields[:0]
	for len(raw) > 0 {
		piece := raw
		if i := bytes.IndexByte(raw, '&'); i >= 0 {
			piece, raw = raw[:i], raw[i+1:]
		} else {
			raw = nil
		}
		if len(piece) == 0 {
			continue
		}
		name, value, _ := bytes.Cut(piece, []byte{'='})
		var field formField
		var ok bool
		field.name = uint32(len(f.text))
		if f.text, ok = appendUnescaped(f.text, name); !ok {
			return dst, false
		}
		field.value = uint32(len(f.text))
		if f.text, ok = appendUnescaped(f.text, value); !ok {
			return dst, false
		}
		field.end = uint32(len(f.text))
		f.fields = append(f.fields, field)
	}
	if !slices.IsSortedFunc(f.fields, f.compare) {
		slices.SortFunc(f.fields, f.compare)
	}
	for _, field := range f.fields {
		dst = appendCounted(dst, f.text[field.name:field.value])
		dst = appendCounted(dst, f.text[field.value:field.end])
	}
	return dst, true
}

// compare orders fields by name, then by where they stand.
func (f *formFields) compare(a, b formField) int {
	if c := bytes.Compare(f.text[a.name:a.value], f.text[b.name:b.value]); c != 0 {
		return c
	}
	if a.name != b.name {
		return int(a.name) - int(b.name)
	}
	// The first of the two is empty, name and value: it ends where it starts.
	return int(a.end) - int(b.end)
}

// appendQuery appends a query: a mark, and its fields or, if an escape is
// broken, its bytes, behind their length.
func (f *formFields) appendQuery(dst []byte, query string) []byte {
	if query == "" {
		return append(dst, markForm[0], 0)
	}
	f.raw = append(f.raw[:0], query...)
	var ok bool
	if f.out, ok = f.appendFields(f.out[:0], f.raw); !ok {
		return appendCounted(append(dst, markRaw[0]), query)
	}
	return appendCounted(append(dst, markForm[0]), f.out)
}

// appendUnescaped decodes "+" and "%41". It reports false if an escape is
// broken.
func appendUnescaped(dst, s []byte) ([]byte, bool) {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch c {
		case '+':
			c = ' '
		case '%':
			if i+2 >= len(s) {
				return dst, false
			}
			high, ok1 := unhex(s[i+1])
			low, ok2 := unhex(s[i+2])
			if !ok1 || !ok2 {
				return dst, false
			}
			c = high<<4 | low
			i += 2
		}
		dst = append(dst, c)
	}
	return dst, true
}

func unhex(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
