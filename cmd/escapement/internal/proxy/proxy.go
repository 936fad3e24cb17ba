// Package proxy passes requests on to the upstream.
//
// It repeats nothing, unpacks nothing, keeps the client's Host, and upgrades no
// connection but to a WebSocket. What the upstream sees beside the request is
// X-Forwarded-For, -Proto and -Host. When there is no answer, it says what is
// known: whether anything was sent.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/escapement-dev/escapement/httpgate"
)

// Options are what a Proxy is made of. Upstream is required.
type Options struct {
	// Upstream is where requests go; its path stands before theirs.
	Upstream *url.URL
	// TLS is used with an upstream of https. Nil: the system's roots.
	TLS *tls.Config
	// Trusted are the proxies in front whose X-Forwarded fields are passed on.
	Trusted []netip.Prefix
	// Error answers a request that got no answer; see
	// httpgate.Middleware.UpstreamError. Required.
	Error func(http.ResponseWriter, *http.Request, error)
	// Logger gets a line for each broken answer. Nil: slog.Default().
	Logger *slog.Logger
}

// Times and sizes of the connections to the upstream.
const (
	dialTimeout = 5 * time.Second
	keepAlive   = 30 * time.Second
	tlsTimeout  = 10 * time.Second
	idleTimeout = 90 * time.Second
	idlePerHost = 1024
	waitFor100  = time.Second
	copyBuffer  = 32 << 10
)

// Proxy is an http.Handler. It is safe for concurrent use. See [New].
type Proxy struct {
	reverse   *httputil.ReverseProxy
	transport *httpgate.Transport
}

// New returns a Proxy. It opens no connection.
func New(o Options) *Proxy {
	log := o.Logger
	if log == nil {
		log = slog.Default()
	}
	base := &http.Transport{
		// Nil Proxy: the upstream was named, and the environment's proxies are
		// not asked.
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext,
		TLSClientConfig:       o.TLS,
		TLSHandshakeTimeout:   tlsTimeout,
		MaxIdleConnsPerHost:   idlePerHost,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: waitFor100,
		// HTTP/1.1 only: where a connection breaks, one request has no answer,
		// and it is known which.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	p := &Proxy{transport: httpgate.NewTransport(base)}
	p.reverse = &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { rewrite(r, o.Upstream, o.Trusted) },
		Transport:    p.transport,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { failed(log, o.Error, w, r, err) },
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BufferPool:   &buffers,
	}
	return p
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.reverse.ServeHTTP(w, r) }

// Close closes the connections that are not in use.
func (p *Proxy) Close() { p.transport.CloseIdleConnections() }

func rewrite(r *httputil.ProxyRequest, upstream *url.URL, trusted []netip.Prefix) {
	r.SetURL(upstream)
	r.Out.Host = r.In.Host
	// The query goes as it came: a cleaned one could mean another operation.
	r.Out.URL.RawQuery = r.In.URL.RawQuery

	// A WebSocket is a channel for messages; any other protocol (h2c) would be
	// one for requests, which nobody judges.
	if r.In.Method != http.MethodGet || !strings.EqualFold(r.Out.Header.Get("Upgrade"), "websocket") {
		delete(r.Out.Header, "Upgrade")
		delete(r.Out.Header, "Connection")
	}

	known := isTrusted(r.In.RemoteAddr, trusted)
	if known {
		r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
	}
	r.SetXForwarded()
	if known {
		for _, name := range []string{"X-Forwarded-Proto", "X-Forwarded-Host"} {
			if v := r.In.Header.Get(name); v != "" {
				r.Out.Header.Set(name, v)
			}
		}
		if v := r.In.Header["Forwarded"]; v != nil {
			r.Out.Header["Forwarded"] = v
		}
	}
}

// isTrusted reports whether the peer is one of the proxies in front.
func isTrusted(peer string, trusted []netip.Prefix) bool {
	if len(trusted) == 0 {
		return false
	}
	a, err := netip.ParseAddrPort(peer)
	if err != nil {
		return false
	}
	addr := a.Addr().Unmap().WithZone("")
	return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// failed answers a request that the upstream did not answer.
func failed(log *slog.Logger, answer func(http.ResponseWriter, *http.Request, error), w http.ResponseWriter, r *http.Request, err error) {
	level := slog.LevelWarn
	if errors.Is(err, context.Canceled) { // the client went away: nobody reads the answer
		level = slog.LevelDebug
	}
	log.Log(r.Context(), level, "the upstream gave no answer",
		slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Any("error", err))
	answer(w, r, err)
}

// bufferPool is the memory in which answers are copied.
type bufferPool struct{ p sync.Pool }

var buffers = bufferPool{sync.Pool{New: func() any { return new([copyBuffer]byte) }}}

func (b *bufferPool) Get() []byte { return b.p.Get().(*[copyBuffer]byte)[:] }

func (b *bufferPool) Put(s []byte) {
	if len(s) == copyBuffer {
		b.p.Put((*[copyBuffer]byte)(s))
	}
}
