package httpgate

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strings"
)

// Middleware stands in front of a handler. It is safe for concurrent use. See
// [New].
type Middleware struct {
	c        Config
	id       *identity
	keys     *keyPolicy
	routes   *patterns
	policies map[string]*keyPolicy
	limits   []*limit
	names    *patterns // all patterns, for limits by route
	drop     map[string]bool
	single   []string // fields that say who is calling
	log      *slog.Logger
}

// New checks c and returns a Middleware. The error names every fault at once.
func New(c Config) (*Middleware, error) {
	m := &Middleware{c: c, log: c.Logger, policies: make(map[string]*keyPolicy), drop: make(map[string]bool)}
	if m.log == nil {
		m.log = slog.Default()
	}
	var faults []error
	fault := func(where string, err error) {
		for _, e := range parts(err) {
			faults = append(faults, fmt.Errorf("httpgate: %s: %w", where, e))
		}
	}
	m.options(fault)
	id, err := newIdentity(c.Identity)
	fault("Identity", err)
	m.id = id

	m.keys, err = newKeyPolicy("", c.Keys, id)
	fault("Keys", err)
	list := slices.Sorted(maps.Keys(c.Routes))
	m.routes, err = newPatterns(list)
	fault("Routes", err)
	for _, s := range list {
		m.policies[s], err = newKeyPolicy(s, c.Routes[s], id)
		fault(fmt.Sprintf("Routes[%q]", s), err)
	}

	callers := slices.Concat(id.tenant, id.user)
	names, byRoute := list, false
	rules := make(map[string]bool)
	for i, l := range c.Limits {
		where := fmt.Sprintf("Limits[%d] (%s)", i, l.Rule.Name)
		ready, err := newLimit(l, id)
		fault(where, err)
		if rules[l.Rule.Name] {
			fault(where, errors.New("an earlier limit has the same name"))
		}
		rules[l.Rule.Name] = true
		m.limits = append(m.limits, ready)
		names = append(names, l.Routes...)
		byRoute = byRoute || slices.Contains(l.By, "route")
		if slices.Contains(l.By, "api_key") {
			callers = append(callers, id.apiKey...)
		}
	}
	for _, s := range callers {
		if (s.kind == fromHeader || s.kind == fromHash) && !slices.Contains(m.single, s.name) {
			m.single = append(m.single, s.name)
		}
	}
	if byRoute && len(faults) == 0 {
		slices.Sort(names)
		m.names, err = newPatterns(slices.Compact(names))
		fault("Limits by route need one most specific pattern for each request", err)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return m, nil
}

// parts returns the errors that err joins, so that each says where it is.
func parts(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, parts(e)...)
	}
	return out
}

// options checks the options that stand for themselves, and fills in their
// defaults.
func (m *Middleware) options(fault func(where string, err error)) {
	c := m.c
	if c.Gate == nil {
		fault("Gate", errors.New("is nil: make one with escapement.New"))
	}
	if c.Hasher == nil {
		fault("Hasher", errors.New("is nil: make one with idempotency.NewHasher"))
	}
	for _, size := range []struct {
		name string
		v    *int64
		def  int64
	}{
		{"MaxRequest", &m.c.MaxRequest, DefaultMaxRequest},
		{"SpoolMemory", &m.c.SpoolMemory, DefaultSpoolMemory},
	} {
		if *size.v < 0 {
			fault(size.name, fmt.Errorf("is %d: want 0 (%d) or more bytes", *size.v, size.def))
		}
		if *size.v == 0 {
			*size.v = size.def
		}
	}
	if c.ProblemBase != "" {
		m.c.ProblemBase = strings.TrimRight(c.ProblemBase, "/")
		if u, err := url.Parse(c.ProblemBase); err != nil || !u.IsAbs() {
			fault("ProblemBase", fmt.Errorf("is not an absolute URL: %q: want one such as https://example.com/problems", c.ProblemBase))
		}
	}
	if c.SpoolDir != "" {
		if info, err := os.Stat(c.SpoolDir); err != nil {
			fault("SpoolDir", err)
		} else if !info.IsDir() {
			fault("SpoolDir", fmt.Errorf("%s is not a directory", c.SpoolDir))
		}
	}
	for _, name := range c.ReplayDrop {
		if !isToken(name) {
			fault("ReplayDrop", fmt.Errorf("%q is not the name of a header field", name))
		}
		m.drop[textproto.CanonicalMIMEHeaderKey(name)] = true
	}
}

// Wrap returns next behind the Middleware.
//
// Limits apply to every request but CORS preflights. Keys apply to POST and
// PATCH, and to PUT and DELETE where a route's pattern names the method; for
// other methods and WebSockets the key's field has no meaning. Every answer to
// a request with that field has it too.
//
// Patterns are matched against the path as it came and as an upstream may tidy
// it (escapes, empty and dot segments, a slash at the end, the host's case): a
// limit applies if any of these forms matches, and of several key policies the
// strictest mode does. In a key's scope the path counts in its tidy form.
//
// A keyed request reaches next only when its body was received as a whole. It
// then runs in a goroutine and with a context of its own: neither a client that
// hangs up nor the server's time-outs end it, but KeyPolicy.Policy.Timeout
// does. Its answer is recorded before the client has the end of it: up to 64
// KiB are held back; longer and flushed answers go out as they come, but for
// their end. A client that holds up the work for half of that time by not
// reading is cut off; the work goes on. Hijack is refused. When the attempt has panicked, the panic goes
// on in the server's goroutine, with its value; an answer that began to go out
// and cannot be given as a whole ends in http.ErrAbortHandler.
//
// Other requests run in the server's goroutine, and everything of
// http.ResponseController works. A body of unknown length is cut at
// Config.MaxRequest.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.serve(w, r, next)
	})
}

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	echo := r.Header[KeyField]
	r, hopKey := endToEnd(r)
	if preflight(r) {
		next.ServeHTTP(w, r)
		return
	}
	c := call{m: m, w: w, r: r, echo: echo}
	if name := m.ambiguous(r); name != "" {
		c.refuse(problemCallerUnknown("The request has more than one " + name + ", which says who is calling. Nothing was executed."))
		return
	}
	forms := forms(r)
	policy, mode := m.policyFor(forms)
	charges, lacks := m.charges(r, forms)
	if lacks != "" {
		c.refuse(problemCallerUnknown("The request lacks " + lacks + ", which a limit needs to know. Nothing was executed."))
		return
	}
	_, present := r.Header[KeyField]
	switch {
	case mode != Off && hopKey:
		c.charged(charges, problemKeyMalformed(errHopKey))
	case mode != Off && present:
		c.keyed(policy, charges, next)
	case mode == Required:
		c.charged(charges, problemKeyMissing())
	case r.ContentLength > m.c.MaxRequest:
		c.charged(charges, problemTooLarge(m.c.MaxRequest))
	default:
		c.unkeyed(charges, next)
	}
}

// ambiguous returns the name of a field that says who is calling and is there
// more than once, or "". One party would take the first line, another the last
// or all of them: then a limit counts, and a key belongs to, somebody else than
// the caller that the service sees.
func (m *Middleware) ambiguous(r *http.Request) string {
	for _, name := range m.single {
		if len(r.Header[name]) > 1 {
			return name
		}
	}
	return ""
}

// preflight reports whether r is a CORS preflight (Fetch standard, 3.3.2).
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header["Origin"] != nil && r.Header["Access-Control-Request-Method"] != nil
}
