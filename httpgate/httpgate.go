package httpgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/ratelimit"
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
	log      *slog.Logger
}

// identity is an Identity made ready.
type identity struct {
	tenant, user, apiKey Sources
	trusted              []netip.Prefix
	prefix               int
	missing              map[string]Missing
}

// New checks c and returns a Middleware. The error names every fault at once.
func New(c Config) (*Middleware, error) {
	m := &Middleware{c: c, log: c.Logger, policies: make(map[string]*keyPolicy), drop: make(map[string]bool)}
	if m.log == nil {
		m.log = slog.Default()
	}
	var faults []error
	fault := func(where string, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("httpgate: %s: %w", where, err))
		}
	}
	if c.Gate == nil {
		fault("Gate", errors.New("is nil"))
	}
	if c.Hasher == nil {
		fault("Hasher", errors.New("is nil"))
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
			fault("ProblemBase", errors.New("is not an absolute URL"))
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

func newIdentity(i Identity) (*identity, error) {
	id := &identity{
		tenant: i.Tenant, user: i.User, apiKey: i.APIKey,
		prefix: i.IPv6Prefix, missing: make(map[string]Missing),
	}
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if id.apiKey == nil {
		id.apiKey = MustSources(DefaultAPIKeySource)
	}
	for _, s := range slices.Concat(i.Tenant, i.User, i.APIKey) {
		if s.kind == fromNowhere {
			bad("a source is empty: see ParseSource")
		}
	}
	for _, p := range i.TrustedProxies {
		if !p.IsValid() {
			bad("a trusted proxy is not a prefix")
			continue
		}
		if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 { // addresses are compared as IPv4
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		id.trusted = append(id.trusted, p.Masked())
	}
	switch {
	case id.prefix == 0:
		id.prefix = DefaultIPv6Prefix
	case id.prefix < 0 || id.prefix > 128:
		bad("IPv6Prefix is %d: want 1 to 128", id.prefix)
	}
	for name, what := range i.Missing {
		header, isHeader := strings.CutPrefix(name, "header:")
		switch {
		case name == "tenant", name == "user", name == "api_key", isHeader && isToken(header):
		default:
			bad("Missing has %q: want tenant, user, api_key or header:NAME", name)
		}
		if what > MissingShared {
			bad("Missing[%q] is %d: want MissingIP, MissingRefuse or MissingShared", name, what)
		}
		id.missing[name] = what
	}
	return id, errors.Join(faults...)
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
// their end. Hijack is refused. When the attempt has panicked, the panic goes
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

// call is one request on its way.
type call struct {
	m      *Middleware
	w      http.ResponseWriter
	r      *http.Request
	echo   []string
	levels []ratelimit.Level // of what was asked so far
	read   bool              // the body was read as far as it will be
}

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if preflight(r) {
		next.ServeHTTP(w, r)
		return
	}
	c := call{m: m, w: w, r: r, echo: r.Header[KeyField]}
	forms := forms(r)
	policy, mode := m.policyFor(forms)
	charges, lacks := m.charges(r, forms)
	if lacks != "" {
		c.refuse(problemCallerUnknown("The request lacks " + lacks + ", which a limit needs to know. Nothing was executed."))
		return
	}
	_, present := r.Header[KeyField]
	switch {
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

// preflight reports whether r is a CORS preflight (Fetch standard, 3.3.2).
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header["Origin"] != nil && r.Header["Access-Control-Request-Method"] != nil
}

// unkeyed lets a request without a key pass.
func (c *call) unkeyed(charges []ratelimit.Charge, next http.Handler) {
	if !c.limited(charges) {
		return
	}
	if c.r.ContentLength < 0 && c.r.Body != nil && c.r.Body != http.NoBody {
		r := *c.r
		r.Body = http.MaxBytesReader(c.w, c.r.Body, c.m.c.MaxRequest)
		c.r = &r
	}
	if len(c.levels) == 0 && len(c.echo) == 0 {
		next.ServeHTTP(c.w, c.r)
		return
	}
	p := &passing{ResponseWriter: c.w, echo: c.echo, levels: c.levels}
	next.ServeHTTP(p, c.r)
	p.say() // for a handler that has said nothing
}

// limited asks the limits, and answers if they do not let the request pass.
func (c *call) limited(charges []ratelimit.Charge) bool {
	if len(charges) == 0 {
		return true
	}
	d, err := c.m.c.Gate.Limit(c.r.Context(), charges)
	c.levels = d.Levels
	switch {
	case err != nil:
		c.failed(err)
		return false
	case !d.Allowed:
		c.refuse(problemLimited(d))
		return false
	}
	return true
}

// charged refuses a request that is at fault, after charging it for the asking.
func (c *call) charged(charges []ratelimit.Charge, p Problem) {
	requests, _ := split(charges)
	if c.limited(requests) {
		c.refuse(p)
	}
}

// refuse answers with a problem. A large body that was not read must not hold
// up the answer: net/http would read on before it sends, unless the connection
// is to be closed.
func (c *call) refuse(p Problem) {
	ours(c.w.Header(), c.echo, c.levels)
	if r := c.r; !c.read && r.ProtoMajor == 1 && (r.ContentLength < 0 || r.ContentLength > earlyBody) {
		c.w.Header().Set("Connection", "close")
	}
	c.m.Refuse(c.w, c.r, p)
}

// failed answers when no decision was made.
func (c *call) failed(err error) {
	switch {
	case errors.Is(err, escapement.ErrRecords):
		c.refuse(problemStoreUnavailable())
	case errors.Is(err, escapement.ErrLimits):
		c.refuse(problemLimiterUnavailable())
	case errors.Is(err, escapement.ErrBusy):
		c.refuse(problemReducedCapacity("Too many operations are running. Nothing was executed. Send the request again later."))
	case errors.Is(err, escapement.ErrClosed):
		c.refuse(problemReducedCapacity("The service is shutting down. Nothing was executed. Send the request again later."))
	default:
		c.m.log.ErrorContext(c.r.Context(), "a request could not be judged", "err", err)
		c.refuse(problemInternal())
	}
}

func problemLimited(d ratelimit.Decision) Problem {
	wait, possible := d.RetryAfter()
	var violated []string
	for _, l := range d.Levels {
		if !l.Allowed && !slices.Contains(violated, l.Rule.Name) {
			violated = append(violated, l.Rule.Name)
		}
	}
	p := Problem{
		Code: "quota-exceeded", Status: http.StatusTooManyRequests, Retryable: possible,
		Title:  "The request exceeds a quota",
		Detail: "Nothing was executed. Send the request again after Retry-After.",
		More:   map[string]any{"violated-policies": violated},
	}
	if possible {
		p.RetryAfter = max(wait, 1)
	} else {
		p.Detail = "Nothing was executed. The request costs more than the quota ever has: sending it again does not help."
	}
	return p
}

// errBody says how a body failed to arrive.
func (c *call) bodyProblem(err error) Problem {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return problemTooLarge(c.m.c.MaxRequest)
	case errors.Is(err, errSpoolFile):
		c.m.log.ErrorContext(c.r.Context(), "a request's body could not be held", "err", err)
		return problemReducedCapacity("The request's body cannot be held at the moment. Nothing was executed. Send the request again later.")
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return problemIncomplete(http.StatusRequestTimeout)
	}
	return problemIncomplete(http.StatusBadRequest)
}

var _ io.ReaderFrom = (*passing)(nil)
