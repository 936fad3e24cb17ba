package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/httpgate"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

func env(name string) (string, bool) {
	v, ok := map[string]string{"PORT": "3000", "TOKEN": "a-token-of-the-admin", "EMPTY": "", "N": "7", "REDIS_PASSWORD": "secret", "PGPASSWORD": "secret"}[name]
	return v, ok
}

func parse(t *testing.T, s string) *Config {
	t.Helper()
	c, err := Parse("f.yaml", []byte(s), env)
	if err != nil {
		t.Fatalf("%s\n%v", s, err)
	}
	return c
}

func TestEmptyFileIsTheDefault(t *testing.T) {
	for _, s := range []string{"", "# nothing\n", "\n\n", "---\n", "{}"} {
		c := parse(t, s)
		c.file, c.places = "", nil
		if want := Default(); !reflect.DeepEqual(c, want) {
			t.Errorf("%q: got %+v, want %+v", s, c, want)
		}
	}
}

func TestEveryField(t *testing.T) {
	c := parse(t, `
upstream: http://127.0.0.1:${PORT}/base
upstream_tls: {ca: ca.pem, cert: c.pem, key: k.pem}
listen: 127.0.0.1:9
tls: {cert: c.pem, key: k.pem}
admin: {listen: "[::1]:8081", token: "${TOKEN}"}
store: sqlite:/var/lib/x.db
limiter: "memory:"
secret: 0123456789abcdef
problem_base_url: https://docs.example.com/problems/
limit_headers: [draft-08]
log: {format: json, level: debug}
server: {read_header: 5s, idle: 1m, max_header: 32KiB, max_request: 1GiB, max_running: "${N}", drain: 0}
cors: {origins: []}
replay_drop: [X-Request-Id]
identity:
  tenant: [header:x-tenant, const:public]
  user: cookie:sid
  api_key: hash:Authorization
  ip: {trusted_proxies: [10.0.0.0/8, "::1/128"], ipv6_prefix: 56}
  missing: {api_key: refuse, user: shared, tenant: ip, "header:X-Region": shared}
idempotency:
  mode: enforce
  key: required
  key_from: header:idempotency-key
  derived_window: 1m
  scope: [tenant, user, header:X-Api-Version]
  fingerprint: {ignore: [/time], headers: [X-Version], query: false}
  ttl: 2d
  remember: 0s
  lease: 300ms
  timeout: 1m30s
  quiet: 2m
  max_answer: 16MiB
  on_mismatch: 422
  on_in_progress: reject
  wait: 10s
  on_unknown: retry
  outcomes: deterministic_4xx
  retryable: {window: 0s, after_window: run}
  upstream_key: client
  store_unavailable: refuse
  confirm: 2
  errors: problem
  routes:
    POST /v1/orders/{id}: {key: optional, fingerprint: {ignore: [], only: [/a~1b]}}
    "PUT /x": {scope: [tenant], quiet: 0s, on_unknown: hold, ttl: 1h}
    /off/: {key: off}
limits:
  - {name: all, by: [], rate: 5/30d}
  - name: log.1
    routes: [GET /search, "/v1/{id}"]
    by: [tenant, user, api_key, ip, route, header:X-Region]
    algorithm: sliding_window_log
    rate: 10/m
    charge: executions
    mode: enforce
    on_unavailable: local
    local_share: 0.25
    jitter: 0s
  - {name: cost, rate: 100/h, burst: 20, cost: 20, on_unavailable: closed}
plans: {}
profiles: {}
switch: []
redis: {prefix: "shop:", limit_deadline: 5ms, key_deadline: 1s, allow_eviction: true, spread: true}
webhooks: {}
`)
	if want := (Redis{"shop:", 5 * time.Millisecond, time.Second, true, true}); c.Redis != want {
		t.Errorf("redis: got %+v", c.Redis)
	}
	if c.Default.Confirm != 2 || c.Routes[0].Confirm != 2 {
		t.Errorf("confirm: got %d and %d", c.Default.Confirm, c.Routes[0].Confirm)
	}
	for i, want := range []Limit{{OnUnavailable: "local", LocalShare: 1}, {OnUnavailable: "local", LocalShare: 0.25}, {OnUnavailable: "closed", LocalShare: 1}} {
		if got := c.Limits[i]; got.OnUnavailable != want.OnUnavailable || got.LocalShare != want.LocalShare {
			t.Errorf("limit %d: got %s, %v", i, got.OnUnavailable, got.LocalShare)
		}
	}
	if got := c.Upstream.String(); got != "http://127.0.0.1:3000/base" {
		t.Errorf("upstream %s", got)
	}
	if want := (Server{5 * time.Second, time.Minute, 32 << 10, 1 << 30, 7, 0}); c.Server != want {
		t.Errorf("server: got %+v", c.Server)
	}
	if c.Admin != (Admin{"[::1]:8081", "a-token-of-the-admin"}) || c.Secret != "0123456789abcdef" || c.ProblemBase != "https://docs.example.com/problems" {
		t.Errorf("got %+v", c)
	}

	h := c.HTTP()
	two := 2 * time.Minute
	if got := h.Keys; got.Mode != httpgate.Required || got.MaxAnswer != 16<<20 || got.RetryableWindow >= 0 ||
		got.Policy.Terms != (idempotency.Terms{Lease: 300 * time.Millisecond, Retention: 48 * time.Hour, Quiet: two, OnUnknown: idempotency.Retry}) ||
		got.Policy.Timeout != 90*time.Second || !got.Print.NoQuery || !reflect.DeepEqual(got.Scope, []string{"tenant", "user", "header:X-Api-Version"}) {
		t.Errorf("keys: got %+v", got)
	}
	if got := h.Routes["POST /v1/orders/{id}"]; got.Mode != httpgate.Optional || len(got.Print.Ignore) != 0 || got.Print.Only[0] != "/a~1b" ||
		got.Print.Headers[0] != "X-Version" || got.Policy.Terms.Quiet != two {
		t.Errorf("route: got %+v", got)
	}
	if got := h.Routes["PUT /x"].Policy.Terms; got.Quiet != 0 || got.OnUnknown != idempotency.Hold || got.Retention != time.Hour {
		t.Errorf("route: got %+v", got)
	}
	if got := h.Routes["/off/"]; got.Mode != httpgate.Off {
		t.Errorf("route: got %+v", got)
	}
	if got := h.Limits[0]; got.Rule != (ratelimit.Rule{Name: "all", Quota: 5, Window: 30 * 24 * time.Hour}) || len(got.By) != 0 || got.Routes[0] != "/" || got.Cost != 1 {
		t.Errorf("limit: got %+v", got)
	}
	if got := h.Limits[1]; got.Kind != ratelimit.Executions || got.Rule.Algorithm != ratelimit.SlidingWindowLog || len(got.By) != 6 || len(got.Routes) != 2 {
		t.Errorf("limit: got %+v", got)
	}
	if got := h.Limits[2]; got.Cost != 20 || got.Rule.Burst != 20 || got.By[0] != "api_key" {
		t.Errorf("limit: got %+v", got)
	}
	if id := h.Identity; id.Missing["api_key"] != httpgate.MissingRefuse || id.Missing["user"] != httpgate.MissingShared ||
		id.IPv6Prefix != 56 || len(id.TrustedProxies) != 2 || len(id.Tenant) != 2 {
		t.Errorf("identity: got %+v", id)
	}
}

func TestQuietTime(t *testing.T) {
	c := parse(t, "idempotency: {timeout: 20s, routes: {POST /a: {}, POST /b: {on_unknown: retry}, POST /c: {on_unknown: retry, quiet: 5s}}}")
	want := map[string]time.Duration{"POST /a": 20 * time.Second, "POST /b": 0, "POST /c": 5 * time.Second}
	for _, r := range c.Routes {
		if got := r.QuietTime(); got != want[r.Pattern] {
			t.Errorf("%s: got %v, want %v", r.Pattern, got, want[r.Pattern])
		}
	}
}

func TestPrintIsReadBack(t *testing.T) {
	for _, s := range []string{"", string(Demo), `
upstream: https://h:1/p
tls: {cert: "a b.pem", key: k}
upstream_tls: {ca: "c:d"}
replay_drop: [X-A]
store: "memory:"
identity: {tenant: [hash:Authorization], user: header:X-User, ip: {trusted_proxies: [10.0.0.0/8]}, missing: {"header:X-R": refuse}}
idempotency: {fingerprint: {only: [/a, "/b c"]}, quiet: 90s, routes: {"POST /o/{id}": {ttl: 36h, max_answer: 3KiB}, "h.example/x": {key: off}}}
limits: [{name: a, by: [], rate: 7/90s, burst: 9, routes: ["GET /a/{b...}"]}, {name: b, algorithm: sliding_window_log, rate: 1/d}]
`, `
store: redis+cluster://a:1,b:2
limiter: redis+sentinel://c,d/main/3?sentinel_user=x
redis: {prefix: "a/b:", key_deadline: 250ms, allow_eviction: true}
idempotency: {confirm: 1, routes: {POST /a: {confirm: 0}}}
limits: [{name: a, rate: 1/s, on_unavailable: open}, {name: b, rate: 1/s, local_share: 0.125}]
`} {
		a := parse(t, s)
		text := a.YAML()
		b := parse(t, text)
		if again := b.YAML(); again != text {
			t.Errorf("printed:\n%s\nread back:\n%s", text, again)
		}
		// Quiet is written out.
		for _, c := range []*Config{a, b} {
			c.file, c.places = "", nil
			for i := range c.Routes {
				q := c.Routes[i].QuietTime()
				c.Routes[i].Quiet = &q
			}
			q := c.Default.QuietTime()
			c.Default.Quiet = &q
		}
		if ha, hb := a.HTTP(), b.HTTP(); !reflect.DeepEqual(normal(ha), normal(hb)) {
			t.Errorf("%s\ngot  %+v\nwant %+v", text, hb, ha)
		}
	}
}

// normal makes empty lists equal to none.
func normal(h httpgate.Config) httpgate.Config {
	fix := func(p httpgate.KeyPolicy) httpgate.KeyPolicy {
		for _, l := range []*[]string{&p.Print.Ignore, &p.Print.Only, &p.Print.Headers} {
			if len(*l) == 0 {
				*l = nil
			}
		}
		return p
	}
	h.Keys = fix(h.Keys)
	for k, p := range h.Routes {
		h.Routes[k] = fix(p)
	}
	if len(h.ReplayDrop) == 0 {
		h.ReplayDrop = nil
	}
	if len(h.Identity.TrustedProxies) == 0 {
		h.Identity.TrustedProxies = nil
	}
	return h
}

// Where limits are kept if nobody says so.
func TestLimiterIsWhereTheStoreIs(t *testing.T) {
	for _, tt := range []struct {
		file, want string
		spread     bool
	}{
		{"", "memory:", false},
		{"store: 'memory:'", "memory:", false},
		{"store: redis://u:p@h/1", "redis://h/1", false},
		{"store: redis://h\nlimiter: 'memory:'", "memory:", false},
		{"store: 'memory:'\nlimiter: rediss+sentinel://u:p@a:1,b/main?sentinel_password=x", "rediss+sentinel://a:1,b/main", false},
		{"store: redis+cluster://h\nidentity: {tenant: const:a}", "redis+cluster://h", true},
		{"store: redis+cluster://h\nidentity: {tenant: [header:X, const:a]}", "redis+cluster://h", false},
		{"store: redis://h\nredis: {spread: true}", "redis://h", true},
	} {
		c := parse(t, tt.file)
		if got := c.LimiterURL().String(); got != tt.want || c.Spread() != tt.spread {
			t.Errorf("%s: %s, spread %v; want %s, %v", tt.file, got, c.Spread(), tt.want, tt.spread)
		}
	}
}

func TestPrintHidesPasswords(t *testing.T) {
	text := parse(t, `
store: rediss+sentinel://app:top%2Dsecret@a:1,b/main/2?sentinel_user=s&sentinel_password=other-secret
limiter: redis://:third-secret@c
`).YAML()
	if strings.Contains(text, "-secret") || strings.Contains(text, "%2Dsecret") {
		t.Errorf("a password is in\n%s", text)
	}
	for _, want := range []string{
		`store: "rediss+sentinel://app:${ESCAPEMENT_STORE_PASSWORD}@a:1,b/main/2?sentinel_user=s&sentinel_password=${ESCAPEMENT_STORE_SENTINEL_PASSWORD}"`,
		`limiter: "redis://:${ESCAPEMENT_LIMITER_PASSWORD}@c"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %s in\n%s", want, text)
		}
	}
}

// Only Redis has replicas that can confirm.
func TestConfirmNeedsRedis(t *testing.T) {
	const file = "upstream: http://h\nidentity: {tenant: const:a}\nidempotency:\n  routes:\n    POST /a: {confirm: 1}\n"
	err := parse(t, file).Complete()
	if err == nil || !strings.Contains(err.Error(), "f.yaml:5:24: ") || !strings.Contains(err.Error(), "no replicas") {
		t.Errorf("got %v", err)
	}
	if err := parse(t, file+"store: redis://h\n").Complete(); err != nil {
		t.Error(err)
	}
}

func TestPrintHidesSecrets(t *testing.T) {
	text := parse(t, "secret: 0123456789abcdef\nadmin: {token: fedcba9876543210}\n").YAML()
	for _, s := range []string{"0123456789abcdef", "fedcba9876543210"} {
		if strings.Contains(text, s) {
			t.Errorf("%s is in\n%s", s, text)
		}
	}
	if !strings.Contains(text, "${ESCAPEMENT_SECRET}") {
		t.Error(text)
	}
}

func TestFaultsDoNotRepeatTheEnvironment(t *testing.T) {
	_, err := Parse("f", []byte("listen: ${TOKEN}\nadmin: {token: short}\nlimits: [{name: x, rate: \"${TOKEN}\"}]\nupstream: x${TOKEN}\nstore: y${TOKEN}"), env)
	if err == nil || strings.Contains(err.Error(), "a-token") || strings.Contains(err.Error(), "short") {
		t.Error(err)
	}
}

func TestOverrideAndComplete(t *testing.T) {
	c := Default()
	err := c.Complete()
	var f Faults
	if !errors.As(err, &f) || len(f) != 2 || !strings.Contains(err.Error(), "--upstream http") || !strings.Contains(err.Error(), "--tenant header") {
		t.Errorf("got %v", err)
	}
	o := Overrides{Upstream: "http://h", Listen: ":1", Admin: "127.0.0.1:2", Tenant: "const:me", Store: "memory:", Limiter: "memory:"}
	if err := c.Override(o); err != nil {
		t.Fatal(err)
	}
	if err := c.Complete(); err != nil {
		t.Error(err)
	}
	if c.Upstream.Host != "h" || c.Listen != ":1" || c.Admin.Listen != "127.0.0.1:2" || c.Identity.Tenant[0].String() != "const:me" || c.Store.Kind != "memory" {
		t.Errorf("got %+v", c)
	}
	bad := Overrides{Upstream: "h", Listen: "1", Admin: "x", Tenant: "me", Store: "redis://", Limiter: "postgres:x"}
	err = c.Override(bad)
	if !errors.As(err, &f) || len(f) != 6 {
		t.Errorf("want 6 faults, got %v", err)
	}
	for _, flag := range []string{"--upstream", "--listen", "--admin", "--tenant", "--store", "--limiter"} {
		if !strings.Contains(err.Error(), flag+": ") {
			t.Errorf("no %s in %v", flag, err)
		}
	}
	c.Admin = Admin{Listen: "0.0.0.0:8081"}
	if err := c.Complete(); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("an open admin listener: got %v", err)
	}
}

func TestWarnings(t *testing.T) {
	for _, tt := range []struct{ file, want string }{
		{"identity: {tenant: header:X-Tenant-Id}", "plain field X-Tenant-Id"},
		{"identity: {tenant: hash:Authorization}", "hash of Authorization"},
		{"", "no limit counts executions"},
		{"idempotency: {quiet: 1s}", "quiet is 1s and shorter than timeout, 1m"},
		{"idempotency: {routes: {POST /a: {quiet: 1s}, POST /b: {on_unknown: retry, quiet: 1s}}}", "quiet is 1s"},
		{"limits: [{name: m, rate: 100/d}]", "up to 200 can pass in the first 24h"},
		{"limits: [{name: m, rate: 100/s, by: [header:x-region]}]", "plain field X-Region"},
	} {
		c := parse(t, tt.file)
		found := 0
		for _, w := range c.Warnings() {
			if strings.Contains(w.Problem, tt.want) {
				found++
				if w.Place.File != "f.yaml" || w.Place.Line != 1 {
					t.Errorf("%s: place %v", tt.want, w.Place)
				}
			}
		}
		if found != 1 {
			t.Errorf("%s: want 1 warning of %q, got %v", tt.file, tt.want, Faults(c.Warnings()))
		}
	}
	// What a warning says to write brings no other warning.
	const base = "identity: {tenant: const:a}\n"
	w := parse(t, base).Warnings()
	if len(w) != 1 {
		t.Fatalf("got %v", Faults(w))
	}
	if w := parse(t, base+w[0].Write).Warnings(); len(w) != 0 {
		t.Errorf("got %v", Faults(w))
	}
	quiet := `
identity: {tenant: header:X-Tenant-Id, ip: {trusted_proxies: [10.0.0.1/32]}}
limits: [{name: keys, by: [tenant], rate: 1000/d, burst: 100, charge: executions}]`
	if w := parse(t, quiet).Warnings(); len(w) != 0 {
		t.Errorf("got %v", Faults(w))
	}
}
