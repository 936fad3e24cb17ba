// Package admin is the operators' listener: whether the process lives, and
// whether it can serve.
//
// With a token, every request must carry it. Without one, only names of this
// machine are accepted as Host, so that no page in a browser can reach the
// listener through a name that it lets point here (DNS rebinding).
package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// checkTimeout bounds the checks of one /readyz.
const checkTimeout = 2 * time.Second

// Check is one thing that must work before requests are welcome.
type Check struct {
	Name string
	// Do returns why it does not work, or nil.
	Do func(ctx context.Context) error
}

// Options are what a Handler is made of.
type Options struct {
	// Token is what requests must carry as bearer token. Empty: none, and
	// only for this machine.
	Token string
	// Checks are made by /readyz, all of them at once.
	Checks []Check
	// Logger gets a line for each check that fails. Nil: slog.Default().
	Logger *slog.Logger
}

// Handler serves the admin listener. It is safe for concurrent use.
type Handler struct {
	o        Options
	mux      *http.ServeMux
	draining atomic.Bool
}

// New returns a Handler.
func New(o Options) *Handler {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	h := &Handler{o: o, mux: http.NewServeMux()}
	h.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, map[string]any{"live": true}) })
	h.mux.HandleFunc("GET /readyz", h.ready)
	return h
}

// Drain makes /readyz say that no more requests are welcome.
func (h *Handler) Drain() { h.draining.Store(true) }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case h.o.Token == "" && !ourName(r.Host):
		reply(w, http.StatusMisdirectedRequest, map[string]any{"error": "the Host is no name of this machine"})
	case foreignOrigin(r):
		reply(w, http.StatusForbidden, map[string]any{"error": "the request comes from another site"})
	case h.o.Token != "" && !h.authorized(r):
		w.Header().Set("WWW-Authenticate", `Bearer realm="escapement"`)
		reply(w, http.StatusUnauthorized, map[string]any{"error": "want Authorization: Bearer TOKEN"})
	default:
		h.mux.ServeHTTP(w, r)
	}
}

// authorized compares hashes, so that the time says nothing about the token.
func (h *Handler) authorized(r *http.Request) bool {
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got, want := sha256.Sum256([]byte(strings.TrimSpace(token))), sha256.Sum256([]byte(h.o.Token))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && strings.EqualFold(kind, "Bearer")
}

// ourName reports whether a Host names this machine in a way that nobody else
// can let point here.
func ourName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") { // RFC 6761, section 6.3
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// foreignOrigin reports whether a page of another site sent r.
func foreignOrigin(r *http.Request) bool {
	if s := r.Header.Get("Sec-Fetch-Site"); s == "cross-site" || s == "same-site" {
		return true
	}
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return false
	}
	u, err := url.Parse(origins[0])
	return len(origins) > 1 || err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host)
}

func (h *Handler) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	type result struct {
		name string
		err  error
	}
	results := make(chan result, len(h.o.Checks))
	for _, c := range h.o.Checks {
		go func() { results <- result{c.Name, c.Do(ctx)} }()
	}
	body := map[string]any{}
	ready := !h.draining.Load()
	if !ready {
		body["draining"] = true
	}
	for range h.o.Checks {
		res := <-results
		body[res.name] = "ok"
		if res.err != nil {
			ready = false
			body[res.name] = "unavailable"
			h.o.Logger.Warn("not ready", slog.String("check", res.name), slog.Any("error", res.err))
		}
	}
	body["ready"] = ready
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
	}
	reply(w, status, body)
}

func reply(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}
