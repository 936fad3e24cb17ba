package httpgate

import (
	"errors"
	"net/http"
	"net/textproto"
	"strings"
)

var errHopKey = errors.New("the request's Connection field names Idempotency-Key, and so the key would not reach the service: leave it out there")

// endToEnd returns r without the fields that its Connection field names. They
// are for this hop alone and are not passed on (RFC 9110, 7.6.1); so they must
// not decide anything here either, or the service would act on another request
// than the one that was judged. It reports whether the key is one of them.
//
// The fields of the protocol itself stay, since net/http and the proxy look at
// them.
func endToEnd(r *http.Request) (_ *http.Request, key bool) {
	var fields http.Header
	for _, line := range r.Header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name))
			switch name {
			case "Close", "Keep-Alive", "Upgrade", "Te", "Connection":
				continue
			}
			if _, ok := r.Header[name]; !ok {
				continue
			}
			if fields == nil {
				fields = r.Header.Clone()
			}
			delete(fields, name)
			key = key || name == KeyField
		}
	}
	if fields == nil {
		return r, false
	}
	out := *r
	out.Header = fields
	return &out, key
}
