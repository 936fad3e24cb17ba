package httpgate

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// keyPolicy is a KeyPolicy made ready.
type keyPolicy struct {
	pattern string // "" for all that no pattern fits
	method  string // that the pattern names, or ""
	mode    KeyMode
	scope   []scopePart
	printer *idempotency.Printer
	gate    escapement.Policy
	max     int64
	window  time.Duration
}

type scopePart struct {
	name   string // as in KeyPolicy.Scope
	header string // canonical, of header:NAME
}

func newKeyPolicy(pattern string, k KeyPolicy, id *identity) (*keyPolicy, error) {
	p := &keyPolicy{pattern: pattern, mode: k.Mode, gate: k.Policy, max: k.MaxAnswer, window: k.RetryableWindow}
	if first, _, ok := strings.Cut(pattern, " "); ok {
		p.method = first
	}
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if k.Mode > Off {
		bad("mode is %d: want Optional, Required or Off", k.Mode)
	}
	if p.gate == (escapement.Policy{}) {
		p.gate = escapement.DefaultPolicy()
	}
	if err := p.gate.Validate(); err != nil {
		faults = append(faults, err)
	}
	switch {
	case p.max == 0:
		p.max = DefaultMaxAnswer
	case p.max < 0 || p.max > LargestMaxAnswer:
		bad("max_answer is %d: want 1 to %d bytes", p.max, int64(LargestMaxAnswer))
	}
	switch {
	case p.window == 0:
		p.window = DefaultRetryableWindow
	case p.window < 0:
		p.window = 0
	}
	var err error
	if p.printer, err = idempotency.NewPrinter(k.Print); err != nil {
		faults = append(faults, err)
	}
	scope := k.Scope
	if scope == nil {
		scope = []string{"tenant", "method", "path"}
	}
	tenant := false
	seen := map[string]bool{}
	for _, s := range scope {
		part := scopePart{name: s}
		switch {
		case s == "tenant":
			tenant = true
		case s == "method", s == "path":
		case s == "user":
			if len(id.user) == 0 {
				bad("scope has user, and no source says who that is: set Identity.User")
			}
		case strings.HasPrefix(s, "header:") && isToken(s[len("header:"):]):
			part.header = textproto.CanonicalMIMEHeaderKey(s[len("header:"):])
			part.name = "header:" + part.header
		default:
			bad("scope has %q: want tenant, user, method, path or header:NAME", s)
		}
		if seen[part.name] {
			bad("scope has %q twice", s)
		}
		seen[part.name] = true
		if s != "tenant" {
			p.scope = append(p.scope, part)
		}
	}
	if !tenant {
		bad("scope has no tenant: two tenants must not share a key")
	}
	return p, errors.Join(faults...)
}

// modeFor says what a request of the given method, in capitals, does with its
// key. A GET has none, a WebSocket neither. A POST that asks for an upgrade
// has: some clients offer h2c with every request.
func (p *keyPolicy) modeFor(method string) KeyMode {
	switch method {
	case http.MethodPost, http.MethodPatch:
		return p.mode
	case http.MethodPut, http.MethodDelete:
		if p.method == method {
			return p.mode
		}
	}
	return Off
}

// stricter orders modes.
func stricter(a, b KeyMode) bool {
	order := [...]int{Optional: 1, Required: 2, Off: 0}
	return order[a] > order[b]
}

// policyFor returns the policy of a request and its mode: of the forms that it
// may be taken for, that of the strictest mode; of equal ones, that of the
// request as it came.
func (m *Middleware) policyFor(forms []*http.Request) (*keyPolicy, KeyMode) {
	var best *keyPolicy
	mode := Off
	for i, f := range forms {
		p := m.keys
		if m.routes != nil {
			if q, ok := m.policies[m.routes.match(f)]; ok {
				p = q
			}
		}
		if k := p.modeFor(f.Method); i == 0 || stricter(k, mode) {
			best, mode = p, k
		}
	}
	return best, mode
}

// key makes the request's key, or says which part of its scope the request
// lacks.
func (m *Middleware) key(r *http.Request, p *keyPolicy, client string) (key idempotency.Key, lacks string, err error) {
	tenant, ok := m.id.tenant.first(r, m.c.Hasher, false)
	if !ok {
		return key, "tenant", nil
	}
	var buf [4]idempotency.Part
	parts := buf[:0]
	for _, s := range p.scope {
		part := idempotency.Part{Name: s.name}
		switch {
		case s.header != "":
			part.Value = fieldValue(r.Header, s.header)
		case s.name == "method":
			part.Value = strings.ToUpper(r.Method)
		case s.name == "path":
			part.Value = scopePath(r)
		case s.name == "user":
			if part.Value, ok = m.id.user.first(r, m.c.Hasher, false); !ok {
				return key, "user", nil
			}
		}
		parts = append(parts, part)
	}
	key, err = m.c.Hasher.Key(idempotency.Scope{Tenant: tenant, Parts: parts}, client)
	return key, "", err
}
