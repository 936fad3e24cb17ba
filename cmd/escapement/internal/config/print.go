package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/escapement-dev/escapement/httpgate"
)

// YAML writes the whole configuration as it is in force, every field with its
// value. Secrets are not shown: where one is set, a reference to an environment
// variable stands in its place. Parse reads the rest back.
func (c *Config) YAML() string {
	var p printer
	if c.Upstream != nil {
		p.line(0, "upstream: %s", quote(c.Upstream.String()))
	}
	if t := c.UpstreamTLS; t != (UpstreamTLS{}) {
		p.line(0, "upstream_tls: %s", flow("ca", t.CA, "cert", t.Cert, "key", t.Key))
	}
	p.line(0, "listen: %s", quote(c.Listen))
	if t := c.TLS; t != (TLS{}) {
		p.line(0, "tls: %s", flow("cert", t.Cert, "key", t.Key))
	}
	p.line(0, "admin: %s", flow("listen", c.Admin.Listen, "token", hide(c.Admin.Token, "ESCAPEMENT_ADMIN_TOKEN")))
	p.line(0, "store: %s", quote(c.Store.hidden("ESCAPEMENT_STORE")))
	limiter, variable := c.LimiterURL(), "ESCAPEMENT_LIMITER"
	if limiter == c.Store {
		variable = "ESCAPEMENT_STORE"
	}
	p.line(0, "limiter: %s", quote(limiter.hidden(variable)))
	if c.Secret != "" {
		p.line(0, "secret: %s", quote(hide(c.Secret, "ESCAPEMENT_SECRET")))
	}
	if c.ProblemBase != "" {
		p.line(0, "problem_base_url: %s", quote(c.ProblemBase))
	}
	p.line(0, "log: %s", flow("format", c.Log.Format, "level", c.Log.Level))
	s := c.Server
	p.line(0, "server: %s", flow(
		"read_header", FormatDuration(s.ReadHeader), "idle", FormatDuration(s.Idle),
		"max_header", FormatSize(s.MaxHeader), "max_request", FormatSize(s.MaxRequest),
		"max_running", strconv.FormatInt(s.MaxRunning, 10), "drain", FormatDuration(s.Drain)))
	d := c.Redis
	p.line(0, "redis: {prefix: %s, limit_deadline: %s, key_deadline: %s, allow_eviction: %t, spread: %t}",
		quote(d.Prefix), FormatDuration(d.LimitDeadline), FormatDuration(d.KeyDeadline), d.AllowEviction, d.Spread)
	p.line(0, "postgres: {limit_deadline: %s, key_deadline: %s}",
		FormatDuration(c.Postgres.LimitDeadline), FormatDuration(c.Postgres.KeyDeadline))
	p.line(0, "replay_drop: %s", list(c.ReplayDrop))
	p.identity(&c.Identity)
	p.line(0, "idempotency:")
	p.route(1, c.Default)
	if len(c.Routes) > 0 {
		p.line(1, "routes:")
	}
	for _, t := range c.Routes {
		p.line(2, "%s:", quote(t.Pattern))
		p.route(3, t)
	}
	if len(c.Limits) > 0 {
		p.line(0, "limits:")
	}
	for _, l := range c.Limits {
		p.line(1, "- name: %s", quote(l.Rule.Name))
		p.line(2, "routes: %s", list(l.Routes))
		p.line(2, "by: %s", list(l.By))
		p.line(2, "algorithm: %s", l.Rule.Algorithm)
		p.line(2, "rate: %s", FormatRate(l.Rule.Quota, l.Rule.Window))
		if l.Rule.Burst != 0 {
			p.line(2, "burst: %d", l.Rule.Burst)
		}
		p.line(2, "cost: %d", l.Cost)
		p.line(2, "charge: %s", l.Charge)
		p.line(2, "on_unavailable: %s", l.OnUnavailable)
		if l.OnUnavailable == "local" {
			p.line(2, "local_share: %s", strconv.FormatFloat(l.LocalShare, 'g', -1, 64))
		}
	}
	return p.b.String()
}

type printer struct{ b strings.Builder }

func (p *printer) line(depth int, format string, args ...any) {
	p.b.WriteString(strings.Repeat("  ", depth))
	fmt.Fprintf(&p.b, format, args...)
	p.b.WriteByte('\n')
}

func (p *printer) identity(id *Identity) {
	p.line(0, "identity:")
	sources := func(name string, l httpgate.Sources) {
		if len(l) == 0 {
			return
		}
		words := make([]string, len(l))
		for i, s := range l {
			words[i] = s.String()
		}
		p.line(1, "%s: %s", name, list(words))
	}
	sources("tenant", id.Tenant)
	sources("user", id.User)
	sources("api_key", id.APIKey)
	proxies := make([]string, len(id.TrustedProxies))
	for i, x := range id.TrustedProxies {
		proxies[i] = x.String()
	}
	p.line(1, "ip: {trusted_proxies: %s, ipv6_prefix: %d}", list(proxies), id.IPv6Prefix)
	if len(id.Missing) == 0 {
		return
	}
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(id.Missing)) {
		pairs = append(pairs, quote(name), id.Missing[name])
	}
	p.line(1, "missing: %s", flow(pairs...))
}

func (p *printer) route(depth int, t Route) {
	p.line(depth, "key: %s", t.Key)
	p.line(depth, "scope: %s", list(t.Scope))
	p.line(depth, "fingerprint: {ignore: %s, only: %s, headers: %s, query: %t}",
		list(t.Print.Ignore), list(t.Print.Only), list(t.Print.Headers), !t.Print.NoQuery)
	p.line(depth, "ttl: %s", FormatDuration(t.TTL))
	p.line(depth, "remember: %s", FormatDuration(t.Remember))
	p.line(depth, "lease: %s", FormatDuration(t.Lease))
	p.line(depth, "timeout: %s", FormatDuration(t.Timeout))
	p.line(depth, "quiet: %s", FormatDuration(t.QuietTime()))
	p.line(depth, "max_answer: %s", FormatSize(t.MaxAnswer))
	p.line(depth, "on_unknown: %s", t.OnUnknown)
	p.line(depth, "retryable: {window: %s}", FormatDuration(t.RetryWindow))
	p.line(depth, "confirm: %d", t.Confirm)
}

// flow writes pairs of names and values as a flow mapping; empty values are
// left out.
func flow(pairs ...string) string {
	var out []string
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out = append(out, pairs[i]+": "+quote(pairs[i+1]))
		}
	}
	return "{" + strings.Join(out, ", ") + "}"
}

func list(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = quote(w)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// quote writes s so that YAML reads a scalar with the same text in any style.
func quote(s string) string {
	plain := s != ""
	for i := range len(s) {
		c := s[i]
		word := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		inner := i > 0 && (c == '.' || c == '_' || c == '-' || c == '/')
		plain = plain && (word || inner)
	}
	if plain {
		return s
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}

// hide names an environment variable instead of a secret that is set.
func hide(secret, variable string) string {
	if secret == "" {
		return ""
	}
	return "${" + variable + "}"
}
