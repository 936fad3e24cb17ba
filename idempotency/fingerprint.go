package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"mime"
	"slices"
	"strings"
	"sync"
)

// PrintLimit is the greatest size of a body, in bytes, whose meaning is
// hashed. A larger one is hashed as it is, without being kept in memory.
const PrintLimit = 1 << 20

// Fingerprint is a hash of a request's meaning. Two requests with one key mean
// the same if their fingerprints are equal. Fingerprints with different tags
// cannot be compared. The zero value is no fingerprint.
//
// The sum has no secret in it: whoever reads a store can test a guess of a
// whole request against it.
type Fingerprint struct {
	// Tag names the algorithm and its options; see [Printer.Tag].
	Tag string
	// Sum is the SHA-256 of the meaning.
	Sum [sha256.Size]byte
}

// String returns the tag, a colon, and the sum as 64 hexadecimal digits.
func (f Fingerprint) String() string { return f.Tag + ":" + hex.EncodeToString(f.Sum[:]) }

// Meaning is what counts in a request beside its body.
type Meaning struct {
	// Method counts as it is: methods are case-sensitive (RFC 9110, 9.1).
	Method string
	// Path is the escaped path, as in [net/url.URL.EscapedPath]. It counts
	// byte by byte.
	Path string
	// RawQuery is the query without its question mark. It counts by its
	// fields; see [Printer].
	RawQuery string
	// ContentType is the value of the field Content-Type, "" if there is none.
	ContentType string
	// Header returns a field's values in order, such as
	// [net/http.Header.Values]. It is called during Begin, with the names of
	// PrintOptions.Headers in canonical form. Nil means that no field is
	// there.
	Header func(name string) []string
}

// Begin starts the fingerprint of one request. Write the body to the digest,
// in pieces of any size, then ask it for the fingerprint.
func (p *Printer) Begin(m Meaning) *Digest {
	d := &Digest{tag: p.tag, drop: p.ignore, keep: p.only, sum: sha256.New()}
	d.scratch = scratches.Get().(*printScratch)

	head := appendCounted(d.scratch.head[:0], p.tag)
	head = appendCounted(head, m.Method)
	head = appendCounted(head, m.Path)
	if !p.noQuery {
		head = d.scratch.form.appendQuery(head, m.RawQuery)
	}
	head, d.kind = appendContentType(head, m.ContentType)
	for _, name := range p.headers {
		var values []string
		if m.Header != nil {
			values = m.Header(name)
		}
		head = binary.AppendUvarint(head, uint64(len(values)))
		for _, v := range values {
			head = appendCounted(head, v)
		}
	}
	d.sum.Write(head)
	d.scratch.head = head

	if d.kind == kindRaw {
		d.sum.Write(markRaw)
	}
	return d
}

// Digest takes a request's body and gives its fingerprint. It holds at most
// [PrintLimit] bytes of the body, and only of a body that has a normal form.
// It is not safe for concurrent use. A Digest that is abandoned needs no
// closing.
type Digest struct {
	tag        string
	drop, keep *pointerTree
	kind       bodyKind
	sum        hash.Hash
	scratch    *printScratch // nil once the fingerprint is there
	print      Fingerprint
}

// errPrinted is returned by a write that comes too late to count.
var errPrinted = errors.New("idempotency: the body went on after its fingerprint was taken")

// Write adds b to the body. It fails only after Fingerprint was called; then
// nothing is added.
func (d *Digest) Write(b []byte) (int, error) {
	if d.scratch == nil {
		return 0, errPrinted
	}
	if d.kind != kindRaw {
		if len(b) <= PrintLimit-len(d.scratch.body) {
			d.scratch.body = append(d.scratch.body, b...)
			return len(b), nil
		}
		d.kind = kindRaw
		d.sum.Write(markRaw)
		d.sum.Write(d.scratch.body)
		d.scratch.body = d.scratch.body[:0]
	}
	return d.sum.Write(b)
}

// Fingerprint ends the body and returns the fingerprint. Further calls return
// the same.
func (d *Digest) Fingerprint() Fingerprint {
	if d.scratch == nil {
		return d.print
	}
	s := d.scratch
	if d.kind != kindRaw { // else the body is written already
		mark, body := markRaw, s.body // where its value is not certain
		switch d.kind {
		case kindJSON:
			if s.json.parse(s.body) {
				s.out = s.json.appendNormal(s.out[:0], d.drop, d.keep)
				mark, body = markJSON, s.out
			}
		case kindForm:
			var ok bool
			if s.out, ok = s.form.appendFields(s.out[:0], s.body); ok {
				mark, body = markForm, s.out
			}
		}
		d.sum.Write(mark)
		d.sum.Write(body)
	}
	d.print.Tag = d.tag
	d.sum.Sum(d.print.Sum[:0])
	d.scratch = nil
	s.release()
	return d.print
}

// bodyKind says by which rule a body counts.
type bodyKind byte

const (
	kindRaw bodyKind = iota
	kindJSON
	kindForm
)

// The mark stands between the head and the body, so that bytes that happen to
// look like a normal form never equal one.
var (
	markRaw  = []byte{'r'}
	markJSON = []byte{'j'}
	markForm = []byte{'f'}
)

// appendContentType appends the media type and its parameters without regard
// to case (of all but the parameters' values) and order, and says by which
// rule the body counts. A field that cannot be parsed counts by its bytes, and
// so does its body.
func appendContentType(dst []byte, field string) ([]byte, bodyKind) {
	if field == "application/json" { // most of all requests
		return append(appendCounted(dst, "application/json"), 0), kindJSON
	}
	media, params, err := mime.ParseMediaType(field)
	if err != nil {
		// No media type has a space in front: this equals no parsed one.
		return append(appendCounted(dst, " "+field), 0), kindRaw
	}
	kind := kindRaw
	switch {
	case media == "application/json", media == "text/json", strings.HasSuffix(media, "+json"):
		kind = kindJSON
	case media == "application/x-www-form-urlencoded":
		kind = kindForm
	}
	if charset, ok := params["charset"]; ok && kind != kindRaw {
		if strings.EqualFold(charset, "utf-8") {
			delete(params, "charset")
		} else {
			kind = kindRaw
		}
	}
	dst = appendCounted(dst, media)
	dst = binary.AppendUvarint(dst, uint64(len(params)))
	names := make([]string, 0, len(params))
	for name := range params {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		dst = appendCounted(dst, name)
		dst = appendCounted(dst, params[name])
	}
	return dst, kind
}

// appendCounted appends s behind its length, so that no two lists of strings
// give the same bytes.
func appendCounted[T ~string | ~[]byte](dst []byte, s T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// printScratch is the memory of one digest.
type printScratch struct {
	head, body, out []byte
	json            jsonDocument
	form            formFields
}

var scratches = sync.Pool{New: func() any { return new(printScratch) }}

// keepScratch is the most memory, in bytes, that one scratch takes back to the
// pool: a few large bodies must not occupy it for ever.
const keepScratch = 256 << 10

func (s *printScratch) release() {
	if cap(s.head)+cap(s.body)+cap(s.out)+s.json.size()+s.form.size() > keepScratch {
		return
	}
	s.head, s.body, s.out = s.head[:0], s.body[:0], s.out[:0]
	scratches.Put(s)
}
