package config

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/escapement-dev/escapement/httpgate"
)

// config reads the top level.
func (r *reader) config(v value, c *Config) {
	routes := value{}
	r.fields(v, map[string]func(value){
		"upstream": func(v value) { r.upstream(v, &c.Upstream) },
		"upstream_tls": func(v value) {
			r.fields(v, map[string]func(value){
				"ca":   r.path(&c.UpstreamTLS.CA),
				"cert": r.path(&c.UpstreamTLS.Cert),
				"key":  r.path(&c.UpstreamTLS.Key),
			})
			r.pair(v, c.UpstreamTLS.Cert, c.UpstreamTLS.Key)
		},
		"listen": func(v value) { r.address(v, &c.Listen) },
		"tls": func(v value) {
			r.fields(v, map[string]func(value){"cert": r.path(&c.TLS.Cert), "key": r.path(&c.TLS.Key)})
			r.pair(v, c.TLS.Cert, c.TLS.Key)
		},
		"admin": func(v value) {
			r.fields(v, map[string]func(value){
				"listen": func(v value) { r.address(v, &c.Admin.Listen) },
				"token":  func(v value) { r.secret(v, 16, &c.Admin.Token) },
			})
		},
		"store":            func(v value) { r.store(v, storeWant, ParseStore, &c.Store) },
		"limiter":          func(v value) { r.store(v, limiterWant, ParseLimiter, &c.Limiter) },
		"secret":           func(v value) { r.secret(v, 16, &c.Secret) },
		"problem_base_url": func(v value) { r.problemBase(v, &c.ProblemBase) },
		"limit_headers":    r.limitHeaders,
		"log": func(v value) {
			r.fields(v, map[string]func(value){
				"format": func(v value) { r.choice(v, []string{"text", "json"}, nil, &c.Log.Format) },
				"level":  func(v value) { r.choice(v, []string{"debug", "info", "warn", "error"}, nil, &c.Log.Level) },
			})
		},
		"server":      func(v value) { r.server(v, &c.Server) },
		"cors":        func(v value) { r.fields(v, map[string]func(value){"origins": r.empty}) },
		"replay_drop": func(v value) { r.fieldNames(v, &c.ReplayDrop) },
		"identity":    func(v value) { r.identity(v, &c.Identity) },
		"idempotency": func(v value) { routes = r.route(v, &c.Default, true) },
		"limits":      func(v value) { r.limits(v, c) },
		"plans":       r.empty,
		"profiles":    r.empty,
		"switch":      r.empty,
		"redis":       func(v value) { r.redis(v, &c.Redis) },
		"postgres":    func(v value) { r.postgres(v, &c.Postgres) },
		"webhooks":    r.empty,
	})
	// The routes come last: they inherit from everything around them.
	if routes.node != nil {
		r.routes(routes, c)
	}
}

func (r *reader) server(v value, s *Server) {
	const hour = time.Hour
	r.fields(v, map[string]func(value){
		"read_header": func(v value) { r.duration(v, 100*time.Millisecond, hour, &s.ReadHeader) },
		"idle":        func(v value) { r.duration(v, 100*time.Millisecond, 24*hour, &s.Idle) },
		"max_header":  func(v value) { r.size(v, 4<<10, 1<<20, &s.MaxHeader) },
		"max_request": func(v value) { r.size(v, 1, 1<<40, &s.MaxRequest) },
		"max_running": func(v value) { r.number(v, 1, 1_000_000, &s.MaxRunning) },
		"drain":       func(v value) { r.duration(v, 0, 24*hour, &s.Drain) },
	})
}

func (r *reader) redis(v value, c *Redis) {
	r.fields(v, map[string]func(value){
		"prefix":         func(v value) { r.prefix(v, &c.Prefix) },
		"limit_deadline": func(v value) { r.duration(v, time.Millisecond, time.Minute, &c.LimitDeadline) },
		"key_deadline":   func(v value) { r.duration(v, time.Millisecond, time.Minute, &c.KeyDeadline) },
		"allow_eviction": func(v value) { r.truth(v, &c.AllowEviction) },
		"spread":         func(v value) { r.truth(v, &c.Spread) },
	})
}

func (r *reader) postgres(v value, c *Postgres) {
	r.fields(v, map[string]func(value){
		"limit_deadline": func(v value) { r.duration(v, time.Millisecond, time.Minute, &c.LimitDeadline) },
		"key_deadline":   func(v value) { r.duration(v, time.Millisecond, time.Minute, &c.KeyDeadline) },
	})
}

// prefix reads what stands in front of every key of Redis. A brace would move
// the hash tag of a Cluster.
func (r *reader) prefix(v value, into *string) {
	const want = "up to 64 of a-z, A-Z, 0-9 and - . _ @ = : /"
	t, ok := r.text(v, want)
	if !ok {
		return
	}
	good := len(t.s) <= 64
	for i := range len(t.s) {
		c := t.s[i]
		good = good && ('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._@=:/", c) >= 0)
	}
	if !good {
		r.bad(v, fmt.Sprintf("%q is not such a prefix", t.raw), want, "")
		return
	}
	*into = t.s
}

func (r *reader) limitHeaders(v value) {
	items, ok := r.items(v, "[draft-08]")
	if !ok {
		return
	}
	for _, it := range items {
		s := ""
		r.choice(it, []string{"draft-08"}, []string{"x-ratelimit"}, &s)
	}
	if len(items) == 0 {
		r.bad(v, "an empty list "+later, "[draft-08] (the default), or no such line", "")
	}
}

func (r *reader) upstream(v value, into **url.URL) {
	const want = "http://HOST:PORT or https://HOST"
	t, ok := r.text(v, want)
	if !ok {
		return
	}
	u, problem := ParseUpstream(t.s)
	if problem != "" {
		f := Fault{Place: v.place, Field: v.path, Problem: problem, Want: want}
		if w := fullUpstream(t.raw); w != "" {
			f.Write = "upstream: " + w
		}
		r.fault(f)
		return
	}
	*into = u
}

// fullUpstream returns the URL that s was most likely meant to be, or "". What
// may have a secret in it is not repeated.
func fullUpstream(s string) string {
	if strings.Contains(s, "://") || strings.ContainsAny(s, "$@") {
		return ""
	}
	u := "http://" + strings.TrimPrefix(s, "//")
	if _, problem := ParseUpstream(u); problem != "" {
		return ""
	}
	return u
}

// ParseUpstream reads an upstream's URL; the problem is "" if there is none.
func ParseUpstream(s string) (u *url.URL, problem string) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, "is not a URL"
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, "is not a URL with http:// or https://"
	case u.Hostname() == "":
		return nil, "is a URL without a host"
	case u.User != nil:
		return nil, "has a user in the URL, which is not sent"
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, "has a query or a fragment, which is not sent"
	}
	if p := u.Port(); p != "" {
		if problem := checkAddress("x:" + p); problem != "" {
			return nil, problem
		}
	}
	return u, ""
}

// path reads a file's name.
func (r *reader) path(into *string) func(value) {
	return func(v value) {
		t, ok := r.text(v, "a file's name")
		if ok && t.s == "" {
			r.bad(v, "is empty", "a file's name", "")
			return
		}
		*into = t.s
	}
}

// pair reports a certificate without its key, and the other way round.
func (r *reader) pair(v value, cert, key string) {
	if cert == "" && key != "" {
		r.bad(v, "has a key and no certificate", "cert and key, both PEM files", "")
	}
	if cert != "" && key == "" {
		r.bad(v, "has a certificate and no key", "cert and key, both PEM files", "")
	}
}

// secret reads a text that no message repeats.
func (r *reader) secret(v value, least int, into *string) {
	want := fmt.Sprintf("at least %d bytes, best from the environment", least)
	t, ok := r.text(v, want)
	if !ok {
		return
	}
	if len(t.s) < least {
		r.bad(v, fmt.Sprintf("has %d bytes", len(t.s)), want, lastName(v.path)+`: "${NAME}"`)
		return
	}
	for i := range len(t.s) {
		if c := t.s[i]; c < 0x20 || c == 0x7f {
			r.bad(v, fmt.Sprintf("has the control character 0x%02x", c), want, "")
			return
		}
	}
	*into = t.s
}

func (r *reader) problemBase(v value, into *string) {
	const want = "a URL, such as https://docs.example.com/problems"
	t, ok := r.text(v, want)
	if !ok {
		return
	}
	u, err := url.Parse(t.s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		r.bad(v, fmt.Sprintf("%q is not such a URL", t.raw), want, "")
		return
	}
	*into = strings.TrimRight(t.s, "/")
}

func (r *reader) store(v value, want string, parse func(string) (StoreURL, *Fault), into *StoreURL) {
	t, ok := r.text(v, want)
	if !ok {
		return
	}
	u, f := parse(t.s)
	if f != nil {
		f.Place, f.Field = v.place, v.path
		r.fault(*f)
		return
	}
	*into = u
}

// fieldNames reads a list of header fields' names.
func (r *reader) fieldNames(v value, into *[]string) {
	const want = "a list of header fields, such as [X-Request-Id]"
	items, ok := r.items(v, want)
	if !ok {
		return
	}
	out := make([]string, 0, len(items))
	for _, it := range items {
		t, ok := r.text(it, "a header field's name")
		if !ok {
			continue
		}
		if !isFieldName(t.s) {
			r.bad(it, fmt.Sprintf("%q is not the name of a header field", t.raw), "letters, digits and -", "")
			continue
		}
		out = append(out, t.s)
	}
	*into = out
}

func isFieldName(s string) bool {
	_, err := httpgate.ParseSource("header:" + s)
	return err == nil
}
