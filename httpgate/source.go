package httpgate

import (
	"fmt"
	"net/http"
	"net/textproto"
	"strings"

	"github.com/escapement-dev/escapement/idempotency"
)

// Source is one place where a request says who is calling. Its zero value is
// never present. See [ParseSource].
type Source struct {
	kind sourceKind
	name string
}

type sourceKind uint8

const (
	fromNowhere sourceKind = iota
	fromHeader
	fromHash
	fromCookie
	fromConst
)

var sourceKinds = [...]string{"", "header", "hash", "cookie", "const"}

// Sources are asked in order; the first that is present wins.
type Sources []Source

// ParseSource reads a source:
//
//   - header:NAME is the value of a header field. An empty value is not
//     present. A request with several lines of the field is refused.
//   - hash:NAME is the keyed hash of a header field that must not be stored as
//     it is, such as Authorization. Else as above.
//   - cookie:NAME is the keyed hash of a cookie's value.
//   - const:VALUE is always present.
func ParseSource(s string) (Source, error) {
	kind, name, ok := strings.Cut(s, ":")
	if !ok {
		return Source{}, fmt.Errorf("httpgate: %q is not a source: want header:NAME, hash:NAME, cookie:NAME or const:VALUE", s)
	}
	switch kind {
	case "header", "hash":
		if !isToken(name) {
			return Source{}, fmt.Errorf("httpgate: source %q: %q is not the name of a header field", s, name)
		}
		k := fromHeader
		if kind == "hash" {
			k = fromHash
		}
		return Source{kind: k, name: textproto.CanonicalMIMEHeaderKey(name)}, nil
	case "cookie":
		if !isToken(name) {
			return Source{}, fmt.Errorf("httpgate: source %q: %q is not the name of a cookie", s, name)
		}
		return Source{kind: fromCookie, name: name}, nil
	case "const":
		if name == "" {
			return Source{}, fmt.Errorf("httpgate: source %q: the value is empty", s)
		}
		return Source{kind: fromConst, name: name}, nil
	case "claim":
		return Source{}, fmt.Errorf("httpgate: source %q: this version verifies no tokens: let the proxy in front put the claim into a header, and write header:NAME", s)
	}
	return Source{}, fmt.Errorf("httpgate: source %q: %q is not a kind of source: want header, hash, cookie or const", s, kind)
}

// MustSources parses each of list, and panics on a fault: for values that
// stand in the program's text.
func MustSources(list ...string) Sources {
	var out Sources
	for _, s := range list {
		src, err := ParseSource(s)
		if err != nil {
			panic(err)
		}
		out = append(out, src)
	}
	return out
}

// String returns what ParseSource reads.
func (s Source) String() string {
	if s.kind == fromNowhere {
		return ""
	}
	return sourceKinds[s.kind] + ":" + s.name
}

// MarshalText implements encoding.TextMarshaler.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler; see [ParseSource].
func (s *Source) UnmarshalText(text []byte) error {
	v, err := ParseSource(string(text))
	if err == nil {
		*s = v
	}
	return err
}

// Header returns the name of the header field that s reads as it is, in
// canonical form, and false for all other kinds: such a source is only as
// good as the proxy in front that sets the field.
func (s Source) Header() (string, bool) { return s.name, s.kind == fromHeader }

// hashed reports whether a value of s is a pseudonym.
func (s Source) hashed() bool { return s.kind == fromHash || s.kind == fromCookie }

// value returns what the request says at s, and false if it says nothing.
func (s Source) value(r *http.Request, h *idempotency.Hasher) (string, bool) {
	switch s.kind {
	case fromHeader:
		v := fieldValue(r.Header, s.name)
		return v, v != ""
	case fromHash:
		if v := fieldValue(r.Header, s.name); v != "" {
			return h.Pseudonym(s.String(), v), true
		}
	case fromCookie:
		if c, err := r.Cookie(s.name); err == nil && c.Value != "" {
			return h.Pseudonym(s.String(), c.Value), true
		}
	case fromConst:
		return s.name, true
	}
	return "", false
}

// first returns the value of the first source that is present. With secret
// set, a value that is not hashed yet is.
func (l Sources) first(r *http.Request, h *idempotency.Hasher, secret bool) (string, bool) {
	for _, s := range l {
		v, ok := s.value(r, h)
		if !ok {
			continue
		}
		if secret && !s.hashed() {
			v = h.Pseudonym(s.String(), v)
		}
		return v, true
	}
	return "", false
}

// fieldValue returns a field's lines as one value (RFC 9110, 5.3). The name is
// in canonical form.
func fieldValue(h http.Header, name string) string {
	switch lines := h[name]; len(lines) {
	case 0:
		return ""
	case 1:
		return textproto.TrimString(lines[0])
	default:
		return textproto.TrimString(strings.Join(lines, ", "))
	}
}

// isToken reports whether s is a token (RFC 9110, 5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return s != ""
}
