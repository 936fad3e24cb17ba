package httpgate

import "net/http"

// Middleware stands in front of a handler. It is safe for concurrent use.
type Middleware struct{ c Config }

// New checks c and returns a Middleware. The error names every fault.
func New(c Config) (*Middleware, error) { return &Middleware{c: c}, nil }

// Wrap returns next behind the Middleware.
func (m *Middleware) Wrap(next http.Handler) http.Handler { return next }

// UpstreamError answers a request whose upstream gave no answer, and tells the
// key what is known. It has the form of httputil.ReverseProxy's ErrorHandler.
func (m *Middleware) UpstreamError(w http.ResponseWriter, r *http.Request, err error) {}

// Refuse answers a request with a problem, in the form of the Middleware's own.
func (m *Middleware) Refuse(w http.ResponseWriter, r *http.Request, p Problem) {}
