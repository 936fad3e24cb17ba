package httpgate

import (
	"iter"
	"net/http"
	"slices"
	"strings"
)

// answer is what the handler has said so far.
type answer struct {
	header   http.Header // the handler's map
	status   int         // 0: not said yet
	snapshot http.Header // header when status was said
	declared int64       // its Content-Length, or -1
	written  int64       // bytes of the body
	kept     []byte      // the body for the record, unless notKept
	notKept  bool
	out      int64  // bytes of the body that went to the client
	tail     []byte // with notKept: those that did not yet
	broken   bool   // a 101, or bytes beyond Content-Length
}

// pending is what has not gone to the client yet.
func (a *answer) pending() []byte {
	if a.notKept {
		return a.tail
	}
	return a.kept[a.out:]
}

// sniff sets the content type as net/http would: a replay has it too.
func (a *answer) sniff(p []byte) {
	_, typed := a.snapshot["Content-Type"]
	if !typed && a.snapshot.Get("Content-Encoding") == "" && a.snapshot.Get("Transfer-Encoding") == "" {
		a.snapshot["Content-Type"] = []string{http.DetectContentType(p)}
	}
}

// hasBody reports whether an answer of this status may have a body.
func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// trailers returns the trailers that the handler has set: those whose names it
// had declared in the field Trailer, and those under http.TrailerPrefix.
func (a *answer) trailers() http.Header {
	var out http.Header
	add := func(name string, lines []string) {
		if len(lines) > 0 {
			if out == nil {
				out = make(http.Header)
			}
			out[http.CanonicalHeaderKey(name)] = slices.Clone(lines)
		}
	}
	for name := range fieldNames(a.snapshot["Trailer"]) {
		if !noTrailer(name) {
			add(name, a.header[name])
		}
	}
	for name, lines := range a.header {
		if rest, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			add(rest, lines)
		}
	}
	return out
}

// setTrailers adds trailers to h, after the body: those that header declares
// by their names, the others as net/http wants undeclared ones.
func setTrailers(h, header, trailers http.Header) {
	declared := slices.Collect(fieldNames(header["Trailer"]))
	for name, lines := range trailers {
		if !slices.Contains(declared, name) {
			name = http.TrailerPrefix + name
		}
		h[name] = lines
	}
}

// fieldNames yields the names that the lines of a field list (Trailer,
// Connection), in canonical form.
func fieldNames(lines []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, line := range lines {
			for name := range strings.SplitSeq(line, ",") {
				if !yield(http.CanonicalHeaderKey(strings.TrimSpace(name))) {
					return
				}
			}
		}
	}
}

// noTrailer names what may not be a trailer (RFC 9110, 6.5.1; as net/http).
func noTrailer(name string) bool {
	switch name {
	case "", "Transfer-Encoding", "Content-Length", "Trailer":
		return true
	}
	return false
}
