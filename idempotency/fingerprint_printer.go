package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"
)

// printVersion changes whenever an unchanged request would get another sum.
const printVersion = "1"

// PrintOptions says what of a request counts. The zero value is the default:
// method, path, query, content type and the whole body.
type PrintOptions struct {
	// Ignore names parts of a JSON body that do not count (a client's
	// timestamp, tracking), as JSON pointers (RFC 6901). A pointer that leads
	// nowhere does no harm. An ignored element of an array is as good as
	// removed. Not together with Only.
	Ignore []string
	// Only names the parts of a JSON body that count, as JSON pointers. A part
	// that is absent differs from one that is null. A body that has none of
	// the parts counts as a whole, lest a wrong name make all bodies equal.
	// Not together with Ignore.
	Only []string
	// Headers names fields whose values count, in their order. Case does not
	// matter.
	Headers []string
	// NoQuery makes the query not count.
	NoQuery bool
}

// Printer makes fingerprints. It is safe for concurrent use. See [NewPrinter].
//
// A body counts by its content type, if it has at most [PrintLimit] bytes:
//
//   - JSON (application/json, text/json, and media types that end in +json) by
//     its value: white space, the order of members and the spelling of strings
//     do not matter; order and strings are brought to the form of RFC 8785.
//     Unlike there, numbers count by their exact decimal value: 1e2 is 100, and
//     9007199254740993 is not 9007199254740992. PrintOptions.Ignore and
//     PrintOptions.Only apply here alone.
//   - Forms (application/x-www-form-urlencoded) by their fields: the order of
//     different names and the spelling of characters do not matter, the order
//     within one name does. A name without "=" has the empty value.
//   - Everything else by its bytes, multipart/form-data too.
//
// By its bytes, too, counts a body whose value is not certain: broken JSON,
// JSON with a name twice in one object, invalid UTF-8, half a surrogate pair,
// more than 512 levels, or an exponent of more than 18 digits; a form with
// broken escapes; JSON or a form in a charset other than UTF-8; any body over
// the limit. Then PrintOptions.Ignore and PrintOptions.Only have no effect. A
// body by its bytes never equals one by its value.
//
// A query counts like a form, but by its bytes if an escape is broken. The
// content type counts: media type and parameters, without regard to case and
// order; charset=utf-8 does not count with JSON and forms. An absent body
// equals an empty one.
type Printer struct {
	tag          string
	ignore, only *pointerTree // nil if there are none
	headers      []string
	noQuery      bool
}

// NewPrinter returns a printer with the given options. The error names every
// fault: what is no JSON pointer or no field name, a pointer that is empty (it
// names the whole body) or leads deeper than 512 levels, and Ignore together
// with Only.
func NewPrinter(o PrintOptions) (*Printer, error) {
	var faults []error
	if len(o.Ignore) > 0 && len(o.Only) > 0 {
		faults = append(faults, errors.New("idempotency: ignore and only exclude each other: name the parts that do not count, or those that alone do"))
	}
	ignore, err := parsePointers("ignore", o.Ignore)
	faults = append(faults, err...)
	only, err := parsePointers("only", o.Only)
	faults = append(faults, err...)
	var headers []string
	for _, name := range o.Headers {
		if !isFieldName(name) {
			faults = append(faults, fmt.Errorf("idempotency: headers: %q is not a field's name", name))
			continue
		}
		headers = append(headers, textproto.CanonicalMIMEHeaderKey(name))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	slices.Sort(headers)
	headers = slices.Compact(headers)

	p := &Printer{
		ignore:  newPointerTree(ignore),
		only:    newPointerTree(only),
		headers: headers,
		noQuery: o.NoQuery,
	}
	p.tag = printVersion + "." + hashOptions(ignore, only, headers, o.NoQuery)
	return p, nil
}

// Tag names the algorithm's version and the options, in 18 bytes: the version,
// a dot, 16 hexadecimal digits. Options that mean the same (another order, a
// pointer below another one) have one tag. Only fingerprints with equal tags
// can be compared.
func (p *Printer) Tag() string { return p.tag }

// hashOptions takes lists that are sorted and have nothing twice.
func hashOptions(ignore, only, headers []string, noQuery bool) string {
	var b []byte
	for _, list := range [][]string{ignore, only, headers} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, s := range list {
			b = appendCounted(b, s)
		}
	}
	if noQuery {
		b = append(b, 1)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// isFieldName reports whether name is a token (RFC 9110, 5.6.2).
func isFieldName(name string) bool {
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return name != ""
}
