package httpgate

import (
	"strings"
	"testing"

	"github.com/escapement-dev/escapement/ratelimit"
)

// The tenant of a subject is the one that the request said.
func TestTenantOf(t *testing.T) {
	of := TenantOf([]Limit{
		{Rule: ratelimit.Rule{Name: "ip"}, By: []string{"ip"}},
		{Rule: ratelimit.Rule{Name: "tenant"}, By: []string{"tenant"}},
		{Rule: ratelimit.Rule{Name: "both"}, By: []string{"header:X-Region", "tenant", "ip"}},
		{Rule: ratelimit.Rule{Name: "all"}},
	})
	parts := func(list ...string) string { // each a mark and a value
		var b []byte
		for _, p := range list {
			b = appendSubject(b, p[0], p[1:])
		}
		return string(b)
	}
	for _, tt := range []struct{ rule, subject, want string }{
		{"tenant", parts("=acme"), "acme"},
		{"tenant", parts("=1:a{b}"), "1:a{b}"},
		{"tenant", parts("~203.0.113.7"), ""},
		{"tenant", parts("!"), ""},
		{"tenant", "#" + strings.Repeat("a", 64), ""},
		{"tenant", "", ""},
		{"tenant", "=9:short", ""},
		{"both", parts("=eu", "=acme", "=203.0.113.7"), "acme"},
		{"both", parts("~203.0.113.7", "=acme", "=203.0.113.7"), "acme"},
		{"both", parts("=eu"), ""},
		{"ip", parts("=203.0.113.7"), ""},
		{"all", "", ""},
		{"other", parts("=acme"), ""},
	} {
		if got := of(tt.rule, tt.subject); got != tt.want {
			t.Errorf("%s of %q: %q, want %q", tt.rule, tt.subject, got, tt.want)
		}
	}
}
