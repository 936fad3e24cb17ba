package config

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/escapement-dev/escapement/httpgate"
)

const patternWant = "a pattern of net/http.ServeMux, such as POST /v1/orders/{id} or /v1/"

// patternProblem says what is wrong with a pattern, or "".
func patternProblem(p string) string {
	if problem := register(http.NewServeMux(), p); problem != "" {
		return problem
	}
	if err := httpgate.CheckPattern(p); err != nil {
		_, why, _ := strings.Cut(err.Error(), `" `)
		return why
	}
	return ""
}

// register adds p to m and returns why it cannot be, or "".
func register(m *http.ServeMux, p string) (problem string) {
	defer func() {
		if x := recover(); x != nil {
			problem = fmt.Sprint(x)
			// parsing "GET /{": at offset 5: …
			if i := strings.Index(problem, ": "); strings.HasPrefix(problem, "parsing ") && i >= 0 {
				problem = problem[i+2:]
			}
			problem = "is not a pattern: " + strings.TrimPrefix(problem, "http: ")
		}
	}()
	m.Handle(p, http.NotFoundHandler())
	return ""
}

// methodOf is a pattern's method, or "".
func methodOf(p string) string {
	if m, _, ok := strings.Cut(p, " "); ok {
		return m
	}
	return ""
}

// checkUser reports a user that is asked for and is nowhere said.
func (r *reader) checkUser(c *Config) {
	if len(c.Identity.User) > 0 {
		return
	}
	if _, faulty := r.places["identity.user"]; faulty {
		return // it is said, and its fault is reported
	}
	missing := func(field string) {
		r.fault(Fault{
			Place: r.at(field), Field: field, Problem: "the user is in it, and identity.user does not say who that is",
			Want: sourceWant, Write: "identity: {user: header:X-User-Id}",
		})
	}
	if slices.Contains(c.Default.Scope, "user") {
		missing("idempotency.scope")
	}
	for _, t := range c.Routes {
		if !slices.Contains(c.Default.Scope, "user") && slices.Contains(t.Scope, "user") {
			missing(join("idempotency.routes", t.Pattern) + ".scope")
		}
	}
	for i, l := range c.Limits {
		if slices.Contains(l.By, "user") {
			missing(fmt.Sprintf("limits[%d].by", i))
		}
	}
}

func routePath(pattern string) string { return "idempotency.routes " + pattern }

// checkRoutes reports patterns of which neither is more specific, so that it
// would be chance which of them counts.
func (r *reader) checkRoutes(c *Config) {
	all := http.NewServeMux()
	for i, t := range c.Routes {
		if register(all, t.Pattern) == "" {
			continue
		}
		for _, u := range c.Routes[:i] {
			two := http.NewServeMux()
			if register(two, u.Pattern) != "" || register(two, t.Pattern) == "" {
				continue
			}
			r.fault(Fault{
				Place: r.at(routePath(t.Pattern)), Field: "idempotency.routes",
				Problem: fmt.Sprintf("%q and %q (line %d) overlap, and neither is more specific",
					t.Pattern, u.Pattern, r.at(routePath(u.Pattern)).Line),
				Want: "patterns of which one is more specific, or that have no request in common",
			})
		}
	}
}
