package httpgate

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"

	"github.com/escapement-dev/escapement/ratelimit"
)

// limit is a Limit made ready.
type limit struct {
	charge ratelimit.Charge
	routes []*patterns // nil: all
	by     []byPart
}

type byPart struct {
	name    string // as in Limit.By
	header  string // canonical, of header:NAME
	missing Missing
}

// maxSubject is the greatest length of a subject, in bytes.
const maxSubject = 255

func newLimit(l Limit, id *identity) (*limit, error) {
	out := &limit{charge: ratelimit.Charge{Rule: l.Rule, Cost: l.Cost, Kind: l.Kind}}
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if l.Cost == 0 {
		out.charge.Cost = 1
	}
	if l.Kind > ratelimit.Executions {
		bad("kind is %d: want Requests or Executions", l.Kind)
	}
	if err := out.charge.Validate(); err != nil {
		faults = append(faults, err)
	}
	for _, s := range l.Routes {
		p, err := newPatterns([]string{s}) // each alone: they need not be comparable
		if err != nil {
			faults = append(faults, err)
		}
		out.routes = append(out.routes, p)
	}
	for _, s := range l.By {
		part := byPart{name: s, missing: id.missing[s]}
		needs := func(sources Sources, field string) {
			if len(sources) == 0 {
				bad("by has %s, and no source says who that is: set Identity.%s", s, field)
			}
		}
		switch {
		case s == "tenant":
			needs(id.tenant, "Tenant")
		case s == "user":
			needs(id.user, "User")
		case s == "api_key", s == "ip", s == "route":
		case strings.HasPrefix(s, "header:") && isToken(s[len("header:"):]):
			part.header = textproto.CanonicalMIMEHeaderKey(s[len("header:"):])
		default:
			bad("by has %q: want tenant, user, api_key, ip, route or header:NAME", s)
		}
		out.by = append(out.by, part)
	}
	return out, errors.Join(faults...)
}

// applies reports whether the limit is for a request with the given forms.
func (l *limit) applies(forms []*http.Request) bool {
	if l.routes == nil {
		return true
	}
	for _, p := range l.routes {
		for _, f := range forms {
			if p.match(f) != "" {
				return true
			}
		}
	}
	return false
}

// charges returns what the request costs, and by which entry it lacks a
// subject that it must have.
func (m *Middleware) charges(r *http.Request, forms []*http.Request) (out []ratelimit.Charge, lacks string) {
	for i, l := range m.limits {
		if !l.applies(forms) {
			continue
		}
		if out == nil {
			out = make([]ratelimit.Charge, 0, len(m.limits)-i)
		}
		c := l.charge
		var ok bool
		if c.Subject, ok = m.subject(r, forms, l.by); !ok {
			return nil, c.Subject
		}
		out = append(out, c)
	}
	return out, ""
}

// subject says whose bucket is charged; or, with false, which entry is missing.
func (m *Middleware) subject(r *http.Request, forms []*http.Request, by []byPart) (string, bool) {
	if len(by) == 0 {
		return "", true
	}
	var buf [maxSubject + 1]byte
	b := buf[:0]
	for _, p := range by {
		v, ok := "", true
		switch {
		case p.header != "":
			v = fieldValue(r.Header, p.header)
			ok = v != ""
		case p.name == "tenant":
			v, ok = m.id.tenant.first(r, m.c.Hasher, false)
		case p.name == "user":
			v, ok = m.id.user.first(r, m.c.Hasher, false)
		case p.name == "api_key":
			v, ok = m.id.apiKey.first(r, m.c.Hasher, true)
		case p.name == "ip":
			v = m.id.ipSubject(r)
		case p.name == "route":
			v = m.names.match(forms[len(forms)-1])
		}
		switch {
		case ok:
			b = appendSubject(b, markPresent, v)
		case p.missing == MissingRefuse:
			return p.name, false
		case p.missing == MissingShared:
			b = appendSubject(b, markShared, "")
		default:
			b = appendSubject(b, markByIP, m.id.ipSubject(r))
		}
	}
	if len(b) > maxSubject {
		return "#" + m.c.Hasher.Pseudonym("subject", string(b)), true
	}
	return string(b), true
}

// split parts charges by kind.
func split(charges []ratelimit.Charge) (requests, executions []ratelimit.Charge) {
	for _, c := range charges {
		if c.Kind == ratelimit.Executions {
			executions = append(executions, c)
		} else {
			requests = append(requests, c)
		}
	}
	return requests, executions
}
