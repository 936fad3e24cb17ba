package httpgate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// ErrNotSent is wrapped by the errors of a [Transport] after which nothing of
// the request can have reached the upstream.
var ErrNotSent = errors.New("httpgate: nothing was sent")

// Transport sends a request at most once. http.Transport alone does not: it
// repeats a request that carries Idempotency-Key, and has no body, when a
// connection breaks that was used before, though the upstream may have executed
// it.
//
//   - The key's field goes out under a name that http.Transport does not know
//     it by; on the wire it is the same.
//   - There is no GetBody.
//   - Where an unknown outcome is held (idempotency.Hold), each request has a
//     connection of its own, since one that was idle may have been closed just
//     now, which looks like an execution without an answer.
//   - A keyed request asks for an answer without content coding, and none is
//     asked for that the client did not.
//   - Right before sending it makes sure that the attempt still has its key
//     (see escapement.Run.Hold).
//
// Use it in an httputil.ReverseProxy behind a [Middleware], with
// [Middleware.UpstreamError] as its ErrorHandler. It is safe for concurrent
// use.
type Transport struct{ reuse, fresh *http.Transport }

// NewTransport returns a Transport that works like base, which it copies. Nil:
// http.DefaultTransport, with up to 256 idle connections to the upstream.
func NewTransport(base *http.Transport) *Transport {
	if base == nil {
		base = &http.Transport{}
		if d, ok := http.DefaultTransport.(*http.Transport); ok {
			base = d.Clone()
		}
		base.MaxIdleConns, base.MaxIdleConnsPerHost = 0, 256
	}
	t := &Transport{reuse: base.Clone(), fresh: base.Clone()}
	t.reuse.DisableCompression, t.fresh.DisableCompression = true, true
	t.fresh.DisableKeepAlives = true
	return t
}

// CloseIdleConnections closes connections that are not in use.
func (t *Transport) CloseIdleConnections() {
	t.reuse.CloseIdleConnections()
	t.fresh.CloseIdleConnections()
}

// RoundTrip implements http.RoundTripper. An error that wraps ErrNotSent says
// that nothing was executed.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	run := escapement.RunFrom(ctx)
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	out := req.WithContext(ctx)
	out.GetBody = nil
	if run != nil || req.Header[KeyField] != nil || req.Header[xKeyField] != nil {
		out.Header = maps.Clone(req.Header)
		hide(out.Header, KeyField)
		hide(out.Header, xKeyField)
	}
	via := t.reuse
	if run != nil {
		out.Header["Accept-Encoding"] = []string{"identity"}
		if x := exchangeFrom(ctx); x == nil || x.policy.gate.Terms.OnUnknown == idempotency.Hold {
			via = t.fresh
		}
		if err := run.Hold(ctx); err != nil {
			if req.Body != nil {
				req.Body.Close()
			}
			return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
		}
	}
	resp, err := via.RoundTrip(out)
	if err != nil && !connected.Load() {
		err = fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return resp, err
}

// xKeyField is the other name by which http.Transport knows a key.
const xKeyField = "X-Idempotency-Key"

// hide puts the lines of the field under its name in small letters.
func hide(h http.Header, name string) {
	if lines, ok := h[name]; ok {
		delete(h, name)
		h[strings.ToLower(name)] = lines
	}
}

// UpstreamError answers a request whose upstream gave no answer, and reports
// what is known of its operation. It has the form of
// httputil.ReverseProxy.ErrorHandler, and expects the errors of a [Transport].
func (m *Middleware) UpstreamError(w http.ResponseWriter, r *http.Request, err error) {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, ErrNotSent) && errors.Is(err, escapement.ErrRecords):
		Report(r.Context(), NotExecuted)
		m.Refuse(w, r, problemStoreUnavailable())
	case errors.Is(err, ErrNotSent):
		Report(r.Context(), NotExecuted)
		m.Refuse(w, r, problemUnreachable("no"))
	case errors.As(err, &tooLarge):
		Report(r.Context(), Unknown)
		m.Refuse(w, r, problemTooLarge(tooLarge.Limit))
	case errors.Is(err, context.DeadlineExceeded):
		Report(r.Context(), Unknown)
		m.Refuse(w, r, problemTimeout())
	default:
		Report(r.Context(), Unknown)
		m.Refuse(w, r, problemUnreachable("unknown"))
	}
}
