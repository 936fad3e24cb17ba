package httpgate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// ErrNotSent is wrapped by the errors of a [Transport] after which nothing of
// the request can have reached the upstream. It is an escapement.ErrNotExecuted.
var ErrNotSent error = notSent{}

type notSent struct{}

func (notSent) Error() string { return "httpgate: nothing was sent" }
func (notSent) Unwrap() error { return escapement.ErrNotExecuted }

// Transport sends a request at most once. http.Transport alone does not: it
// repeats a request that carries Idempotency-Key, and has no body, when a
// connection breaks that was used before, though the upstream may have executed
// it.
//
//   - The key's field goes out under a name that http.Transport does not know
//     it by; on the wire it is the same.
//   - There is no GetBody.
//   - Unless an unknown outcome is simply run again (idempotency.Retry), each
//     request has a connection of its own, since one that was idle may have been
//     closed just now, which looks like an execution without an answer.
//   - A keyed request asks for an answer without content coding, and none is
//     asked for that the client did not.
//   - An answer that begins at once is not cut off because the request's body was
//     closed after its end.
//   - Right before sending it makes sure that the attempt still has its key
//     (see escapement.Run.Hold): before it asks for a connection and, over
//     HTTP/1, again when it has one, since that may take long.
//
// Use it in an httputil.ReverseProxy behind a [Middleware], with
// [Middleware.UpstreamError] as its ErrorHandler; or in the http.Client that
// calls a provider inside a step (escapement.Step), with a CheckRedirect that
// returns http.ErrUseLastResponse, since a redirect is another request. It is
// safe for concurrent use.
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
	var lost error // why the attempt must not send, found when the connection was there
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) {
			if run != nil && !multiplexed(c.Conn) { // called by RoundTrip itself, before it writes
				if lost = run.Hold(req.Context()); lost != nil {
					c.Conn.Close()
					return
				}
			}
			connected.Store(true)
		},
	})
	out := req.WithContext(ctx)
	out.GetBody = nil
	if run != nil || req.Header[KeyField] != nil || req.Header[xKeyField] != nil {
		out.Header = maps.Clone(req.Header)
		hide(out.Header, KeyField)
		hide(out.Header, xKeyField)
	}
	via := t.reuse
	if run == nil {
		if out.Body != nil && out.Body != http.NoBody {
			out.Body = &endedBody{ReadCloser: out.Body}
		}
	} else {
		out.Header["Accept-Encoding"] = []string{"identity"}
		if x := exchangeFrom(ctx); x == nil || x.policy.gate.Terms.OnUnknown != idempotency.Retry {
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
		if lost != nil {
			err = lost
		}
		err = fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return resp, err
}

// endedBody remembers that its body has ended. http.Transport reads once more,
// after all has been sent; the upstream may be answering by then, and an
// http.Server closes the request's body when the answer begins. That read would
// fail, and http.Transport would cut the answer off.
type endedBody struct {
	io.ReadCloser
	ended bool
}

func (b *endedBody) Read(p []byte) (int, error) {
	if b.ended {
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p)
	b.ended = err == io.EOF
	return n, err
}

// multiplexed reports whether other requests may be using the connection.
func multiplexed(c net.Conn) bool {
	t, ok := c.(*tls.Conn)
	return ok && t.ConnectionState().NegotiatedProtocol == "h2"
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
		p := problemTooLarge(tooLarge.Limit)
		p.Detail = strings.Replace(p.Detail, "Nothing was executed.", "Its beginning was passed on: nobody knows what became of that.", 1)
		m.Refuse(w, r, p)
	case errors.Is(err, context.DeadlineExceeded):
		Report(r.Context(), Unknown)
		m.Refuse(w, r, problemTimeout())
	default:
		Report(r.Context(), Unknown)
		m.Refuse(w, r, problemUnreachable("unknown"))
	}
}
