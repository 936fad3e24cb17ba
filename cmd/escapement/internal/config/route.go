package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/escapement-dev/escapement/httpgate"
	"github.com/escapement-dev/escapement/idempotency"
)

// Bounds of a route's times.
const (
	minLease = 100 * time.Millisecond
	maxLease = time.Hour
	maxTime  = 24 * time.Hour
	maxTTL   = 10 * 366 * 24 * time.Hour
)

// route reads a route's fields into t, which has what it inherits. Where it is
// the section of the defaults, it returns the field routes for later.
func (r *reader) route(v value, t *Route, defaults bool) (routes value) {
	known := map[string]func(value){
		"mode":           func(v value) { s := ""; r.choice(v, []string{"enforce"}, []string{"shadow"}, &s) },
		"key":            func(v value) { r.choice(v, []string{"required", "optional", "off"}, []string{"derived"}, &t.Key) },
		"key_from":       r.keyFrom,
		"derived_window": func(v value) { r.onlyDuration(v, time.Minute) },
		"scope":          func(v value) { r.scope(v, &t.Scope) },
		"fingerprint":    func(v value) { r.fingerprint(v, &t.Print) },
		"ttl":            func(v value) { r.duration(v, time.Second, maxTTL, &t.TTL) },
		"remember":       func(v value) { r.duration(v, 0, maxTTL, &t.Remember) },
		"lease":          func(v value) { r.duration(v, minLease, maxLease, &t.Lease) },
		"timeout":        func(v value) { r.duration(v, minLease, maxTime, &t.Timeout) },
		"quiet": func(v value) {
			d := time.Duration(-1)
			r.duration(v, 0, maxTime, &d)
			if d >= 0 {
				t.Quiet = &d
			}
		},
		"max_answer":  func(v value) { r.size(v, 1, httpgate.LargestMaxAnswer, &t.MaxAnswer) },
		"on_mismatch": func(v value) { s := ""; r.choice(v, []string{"422"}, []string{"409", "400"}, &s) },
		"on_in_progress": func(v value) {
			s := ""
			r.choice(v, []string{"reject"}, []string{"too_early", "accepted", "wait"}, &s)
		},
		"wait":       func(v value) { r.onlyDuration(v, 10*time.Second) },
		"on_unknown": func(v value) { r.choice(v, []string{"hold", "retry"}, []string{"fail", "probe"}, &t.OnUnknown) },
		"probe":      r.absent,
		"outcomes": func(v value) {
			s := ""
			r.choice(v, []string{"deterministic_4xx"}, []string{"stripe_v1", "success_only"}, &s)
		},
		"retryable": func(v value) {
			r.fields(v, map[string]func(value){
				"window":       func(v value) { r.duration(v, 0, maxTime, &t.RetryWindow) },
				"after_window": func(v value) { s := ""; r.choice(v, []string{"run"}, []string{"final"}, &s) },
			})
		},
		"upstream_key":      func(v value) { s := ""; r.choice(v, []string{"client"}, []string{"scoped", "none"}, &s) },
		"store_unavailable": func(v value) { s := ""; r.choice(v, []string{"refuse"}, []string{"execute"}, &s) },
		"confirm":           func(v value) { r.number(v, 0, 100, &t.Confirm) },
		"errors":            func(v value) { r.only(v, "problem") },
	}
	if defaults {
		known["routes"] = func(v value) { routes = v }
	}
	r.fields(v, known)
	return routes
}

func (r *reader) keyFrom(v value) {
	const standard = "header:Idempotency-Key"
	t, ok := r.text(v, standard)
	if ok && !strings.EqualFold(t.s, standard) {
		r.bad(v, fmt.Sprintf("%q %s", t.raw, later), standard+" (the default), or no such line", "")
	}
}

func (r *reader) scope(v value, into *[]string) {
	const want = "a list of tenant, user, method, path and header:NAME"
	items, ok := r.items(v, want)
	if !ok {
		return
	}
	var out []string
	for _, it := range items {
		t, ok := r.text(it, want)
		if !ok {
			return
		}
		header := strings.HasPrefix(t.s, "header:") && isFieldName(t.s[len("header:"):])
		known := []string{"tenant", "user", "method", "path"}
		switch {
		case !header && !slices.Contains(known, t.s):
			f := Fault{Place: it.place, Field: it.path, Problem: fmt.Sprintf("%q is no part of a scope", t.raw), Want: want}
			if n := nearest(t.s, known); n != "" {
				f.Write = n
			}
			r.fault(f)
		case slices.Contains(out, t.s):
			r.bad(it, fmt.Sprintf("%q is there twice", t.raw), "each part once", "")
		default:
			out = append(out, t.s)
		}
	}
	if !slices.Contains(out, "tenant") {
		r.bad(v, "the tenant is not in the scope: two tenants would share their keys", "tenant and other parts",
			"scope: ["+strings.Join(append([]string{"tenant"}, out...), ", ")+"]")
		return
	}
	*into = out
}

func (r *reader) fingerprint(v value, p *idempotency.PrintOptions) {
	query := !p.NoQuery
	r.fields(v, map[string]func(value){
		"ignore":  func(v value) { r.pointers(v, &p.Ignore) },
		"only":    func(v value) { r.pointers(v, &p.Only) },
		"headers": func(v value) { r.fieldNames(v, &p.Headers) },
		"query":   func(v value) { r.truth(v, &query) },
	})
	p.NoQuery = !query
	if len(p.Ignore) > 0 && len(p.Only) > 0 {
		r.bad(v, "ignore and only exclude each other", "the parts that do not count, or those that alone do", "")
	}
}

func (r *reader) pointers(v value, into *[]string) {
	const want = "a list of JSON pointers, such as [/client_time, /meta/trace]"
	items, ok := r.items(v, want)
	if !ok {
		return
	}
	out := make([]string, 0, len(items))
	for _, it := range items {
		t, ok := r.text(it, want)
		if !ok {
			continue
		}
		if _, err := idempotency.NewPrinter(idempotency.PrintOptions{Ignore: []string{t.s}}); err != nil {
			f := Fault{Place: it.place, Field: it.path, Problem: fmt.Sprintf("%q is not a JSON pointer to a part of the body", t.raw), Want: "/NAME/NAME (RFC 6901)"}
			if t.raw != "" && !strings.HasPrefix(t.raw, "/") {
				f.Write = "/" + strings.ReplaceAll(strings.TrimPrefix(t.raw, "$."), ".", "/")
			}
			r.fault(f)
			continue
		}
		out = append(out, t.s)
	}
	*into = out
}

// routes reads the patterns with their fields.
func (r *reader) routes(v value, c *Config) {
	ms, ok := r.members(v, "a mapping of patterns, such as POST /v1/orders: {key: required}")
	if !ok {
		return
	}
	for _, m := range ms {
		t := c.Default
		t.Pattern = m.name
		r.places[routePath(m.name)] = m.key
		r.route(m.val, &t, false)
		if problem := patternProblem(m.name); problem != "" {
			r.fault(Fault{Place: m.key, Field: v.path, Problem: fmt.Sprintf("%q %s", m.name, problem), Want: patternWant})
			continue
		}
		if method := methodOf(m.name); t.Key != "off" && keyless(method) {
			r.fault(Fault{
				Place: m.key, Field: m.val.path, Problem: "keys have no meaning on " + method,
				Want: "POST, PATCH, PUT or DELETE, or no such route",
			})
		}
		c.Routes = append(c.Routes, t)
	}
}

// keyless reports whether keys are ignored on a method; "" is any method.
func keyless(method string) bool {
	switch method {
	case "", "POST", "PATCH", "PUT", "DELETE":
		return false
	}
	return true
}
