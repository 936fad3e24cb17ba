package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Each file has exactly the faults that are listed: the place, and a part of
// the whole text.
func TestFaultsOfFiles(t *testing.T) {
	for _, tt := range []struct {
		file   string
		faults []string // "line:column part"
	}{
		// Names.
		{"upsteam: http://x", []string{"1:1 did you mean upstream?"}},
		{"server:\n  drian: 3s", []string{"2:3 did you mean drain?"}},
		{"ttl: 3d", []string{"1:1 ttl is a field of idempotency"}},
		{"nonsense: 1", []string{"1:1 there is no such field"}},
		{"listen: :1\nlisten: :2", []string{"2:1 is there twice; the first is in line 1"}},
		{"idempotency: {routes: {POST /a: {}, POST /a: {}}}", []string{"1:37 is there twice"}},
		// Shapes.
		{"- a", []string{"1:1 is a list"}},
		{"hello", []string{"1:1 is a text"}},
		{"server: 3", []string{"1:9 is a number"}},
		{"server:\nlisten: :1", []string{"1:1 has no value"}},
		{"listen:", []string{"1:1 has no value"}},
		{"listen: [a]", []string{"1:9 is a list"}},
		{"limits: {name: a}", []string{"1:9 is a mapping"}},
		{"limits: [a]", []string{"1:10 is a text"}},
		{"limits: [null]", []string{"1:10 is nothing"}},
		{"listen: &a :1", []string{"1:9 anchors and aliases"}},
		{"listen: !!str :1", []string{"1:9 tags are not read"}},
		{"server:\n  <<: {}", []string{"2:3 <<"}},
		{"listen: :1\n---\nlisten: :2", []string{"3:1 a second document"}},
		// Syntax.
		{"listen: [", []string{"1:9 not valid YAML"}},
		{"a: 1\n b: 2", []string{"1:4 not valid YAML"}},
		{"idempotency: {routes: {POST /o/{id}: {key: required}}}", []string{"1:24 needs quotes", `1:24 write: "POST /o/{id}"`}},
		{"admin: {token: ${TOKEN}}", []string{`1:16 write: "${TOKEN}"`}},
		{"limits:\n  - {name: a, routes: [GET /x/{id}], rate: 1/s}", []string{`2:24 write: "GET /x/{id}"`}},
		{"listen: \xff", []string{"1:9 not UTF-8"}},
		{"listen: a\x00b", []string{"1:10 control character 0x00"}},
		{strings.Repeat("[", 5000), []string{"1:66 nested too deep"}},
		{strings.Repeat("- ", 5000), []string{"1:1 nested too deep"}},
		// The environment.
		{"listen: ${NO_SUCH}", []string{"1:9 NO_SUCH is not set"}},
		{"listen: a${", []string{"1:9 without a name"}},
		{"listen: ${1}", []string{"1:9 without a name"}},
		{"listen: ${EMPTY}", []string{"1:9 is not an address"}},
		// Scalars.
		{"listen: 8080", []string{"1:9 is not an address", "1:9 write: :8080"}},
		{"listen: localhost:99999", []string{"1:9 has no port"}},
		{"server: {drain: 30}", []string{"1:17 write: drain: 30s"}},
		{"server: {drain: 30x}", []string{`1:17 has the unit "x"`}},
		{"server: {drain: 1.5s}", []string{`1:17 has the unit "."`}},
		{"server: {drain: -1s}", []string{"1:17 is not a duration"}},
		{"server: {drain: 999999999d}", []string{"1:17 longer than 100 years"}},
		{"server: {idle: 0s}", []string{"1:16 out of range"}},
		{"server: {max_header: 64}", []string{"1:22 has no unit"}},
		{"server: {max_header: 64KB}", []string{"1:22 is not a size"}},
		{"server: {max_header: 1GiB}", []string{"1:22 out of range"}},
		{"server: {max_header: 99999999999999999999GiB}", []string{"1:22 is too large"}},
		{"server: {max_running: 0}", []string{"1:23 from 1 to"}},
		{"log: {level: verbose}", []string{"1:14 none of its values"}},
		{"log: {level: warning}", []string{"1:14 want: debug, info, warn or error"}},
		{"upstream: localhost:3000", []string{"1:11 write: upstream: http://localhost:3000"}},
		{"upstream: ftp://x", []string{"1:11 http:// or https://"}},
		{"upstream: http://", []string{"1:11 without a host"}},
		{"upstream: http://u:p@x", []string{"1:11 has a user"}},
		{"upstream: http://x?q", []string{"1:11 has a query"}},
		{"upstream: http://x:99999", []string{"1:11 has no port"}},
		{"tls: {cert: a}", []string{"1:6 no key"}},
		{"upstream_tls: {key: a}", []string{"1:15 no certificate"}},
		{"secret: short", []string{"1:9 has 5 bytes"}},
		{"problem_base_url: docs", []string{"1:19 not such a URL"}},
		{"replay_drop: [a b]", []string{"1:15 not the name of a header field"}},
		// Stores.
		{"store: redis://", []string{"1:8 is not the URL of a Redis: the URL has no host"}},
		{"store: redis://a,b", []string{"1:8 several hosts"}},
		{"store: redis+sentinel://a", []string{"1:8 needs the name of the master"}},
		{"store: redis+what://a", []string{"1:8 not known"}},
		{"store: redis://u:p/w@h", []string{"1:8 escaped with %"}},
		{"store: postgres:x", []string{"1:8 does not begin with postgres://"}},
		{"store: postgres://u:p/w@h", []string{"1:8 escaped with %"}},
		{"store: postgres://h:port", []string{"1:8 invalid port"}},
		{"store: postgres://h/d?pool_max_conns=1", []string{"1:8 less than 3"}},
		{"postgres: {key_deadline: 0s}", []string{"1:26 out of range"}},
		{"postgres: {schema: x}", []string{"1:12 no such field"}},
		{"store: x.db", []string{"1:8 write: sqlite:x.db"}},
		{"store: memory", []string{"1:8 write: memory:"}},
		{"store: memory:x", []string{"1:8 followed by something"}},
		{`store: "sqlite:"`, []string{"1:8 not followed by a file's path"}},
		{"store: sqlite:a?mode=ro", []string{"1:8 not followed by a file's path"}},
		{"store: bolt:x", []string{`1:8 "bolt" is not a kind of store`}},
		{"limiter: rediss://x/a", []string{"1:10 not a number"}},
		{"limiter: postgres://", []string{"1:10 it has no host"}},
		{"limiter: sqlite:x", []string{"1:10 not kept in SQLite"}},
		{"limiter: x", []string{"1:10 is not a limiter's URL"}},
		// Identity.
		{"identity: {tenant: X-Tenant-Id}", []string{"1:20 write: header:X-Tenant-Id"}},
		{"identity: {tenant: claim:sub}", []string{"1:20 claim: is not in this version"}},
		{"identity: {tenant: heder:X}", []string{"1:20 write: header:X"}},
		{"identity: {tenant: what:X}", []string{`1:20 "what" is not a kind of source`}},
		{"identity: {tenant: \"header:\"}", []string{"1:20 no name"}},
		{"identity: {tenant: []}", []string{"1:20 empty list"}},
		{"identity: {tenant: [const:a, header:X]}", []string{"1:21 never asked"}},
		{"identity: {plan: header:X, jwks: x}", []string{"1:18 identity.plan: is not in this version", "1:34 identity.jwks: is not in this version"}},
		{"identity: {ip: {trusted_proxies: [10.0.0.1]}}", []string{"1:35 write: 10.0.0.1/32"}},
		{"identity: {ip: {trusted_proxies: [10.0.0.1/8]}}", []string{"1:35 write: 10.0.0.0/8"}},
		{"identity: {ip: {trusted_proxies: [x]}}", []string{"1:35 is not a network"}},
		{"identity: {missing: {nobody: ip}}", []string{"1:22 no subject that can be missing"}},
		{"identity: {missing: {user: deny}}", []string{"1:28 none of its values"}},
		// Keys.
		{"idempotency: {key: requird}", []string{"1:20 write: key: required"}},
		{"idempotency: {key: derived}", []string{`1:20 "derived" is not in this version`}},
		{"idempotency: {key_from: json:/id}", []string{"1:25 not in this version"}},
		{"idempotency: {scope: [user, method]}", []string{"1:22 write: scope: [tenant, user, method]"}},
		{"idempotency: {scope: [tenant, pth]}", []string{"1:31 write: path"}},
		{"idempotency: {scope: [tenant, tenant]}", []string{"1:31 there twice"}},
		{"idempotency: {fingerprint: {ignore: [time]}}", []string{"1:38 write: /time"}},
		{"idempotency: {fingerprint: {ignore: [/a], only: [/b]}}", []string{"1:28 exclude each other"}},
		{"idempotency: {fingerprint: {query: maybe}}", []string{"1:36 true or false"}},
		{"idempotency: {ttl: 0s}", []string{"1:20 out of range"}},
		{"idempotency: {remember: -1s}", []string{"1:25 not a duration"}},
		{"idempotency: {max_answer: 17MiB}", []string{"1:27 out of range"}},
		{"idempotency: {scope: [tenant, user]}", []string{"1:22 identity.user does not say"}},
		{"idempotency: {routes: {POST /a: {scope: [tenant, user]}}}", []string{"1:41 identity.user does not say"}},
		{"limits: [{name: a, rate: 1/s, by: [user]}]", []string{"1:35 identity.user does not say"}},
		// Patterns.
		{"idempotency: {routes: {POST v1: {}}}", []string{"1:24 is not a pattern"}},
		{"idempotency:\n  routes:\n    POST /{: {}", []string{"3:5 is not a pattern"}},
		{"idempotency: {routes: {GET /a: {key: required}}}", []string{"1:24 no meaning on GET"}},
		{"idempotency: {routes: {PSOT /a: {ttl: 3d}}}", []string{"1:24 no meaning on PSOT"}},
		{"idempotency:\n  routes:\n    \"/{a}/x\": {}\n    \"/y/{b}\": {}", []string{`4:5 "/y/{b}" and "/{a}/x" (line 3) overlap`}},
		// Limits.
		{"limits: [{rate: 1/s}]", []string{"1:10 has no name"}},
		{"limits: [{name: a}]", []string{"1:10 has no rate"}},
		{"limits: [{name: a b, rate: 1/s}]", []string{"1:17 not a limit's name"}},
		{"limits:\n- {name: a, rate: 1/s}\n- {name: a, rate: 1/s}", []string{"3:10 the limit in line 2"}},
		{"limits: [{name: a, rate: 10}]", []string{"1:26 write: rate: 10/s"}},
		{"limits: [{name: a, rate: 0/s}]", []string{"1:26 not from 1 to"}},
		{"limits: [{name: a, rate: 1/x}]", []string{"1:26 no time after the /"}},
		{"limits: [{name: a, rate: 1/10ms}]", []string{"1:26 no time after the /"}},
		{"limits: [{name: a, rate: 1/400d}]", []string{"1:26 not from 1s to 366d"}},
		{"limits: [{name: a, rate: 1.5/s}]", []string{"1:26 no whole number"}},
		{"limits: [{name: a, rate: 1/s, by: [tennant]}]", []string{"1:36 write: tenant"}},
		{"limits: [{name: a, rate: 1/s, by: [ip, ip]}]", []string{"1:40 there twice"}},
		{"limits: [{name: a, rate: 1/s, routes: []}]", []string{"1:39 would never apply"}},
		{"limits: [{name: a, rate: 1/s, routes: [x]}]", []string{"1:40 is not a pattern"}},
		{"limits: [{name: a, rate: 1/s, cost: 2}]", []string{"1:37 can never pass"}},
		{"limits: [{name: a, rate: 1/s, cost: header:X}]", []string{"1:37 not in this version"}},
		{"limits: [{name: a, rate: 1/s, cost: 0}]", []string{"1:37 whole number from 1"}},
		{"limits: [{name: a, rate: 10001/s, algorithm: sliding_window_log}]", []string{"1:26 too many"}},
		{"limits: [{name: a, rate: 1/s, algorithm: sliding_window_log, burst: 2}]", []string{"1:69 no burst"}},
		{"limits: [{name: a, rate: 9/s, algorithm: sliding_window_log, cost: 2}]", []string{"1:68 counts each request once"}},
		{"limits: [{name: a, rate: 1/366d, burst: 1000000000}]", []string{"1:10 burst"}},
		{"limits: [{name: a, rate: 1/s, on_unavailable: shut}]", []string{"1:47 none of its values"}},
		{"limits: [{name: a, rate: 1/s, local_share: 0}]", []string{"1:44 above 0 and up to 1"}},
		{"limits: [{name: a, rate: 1/s, local_share: 1.5}]", []string{"1:44 above 0 and up to 1"}},
		{"limits: [{name: a, rate: 1/s, local_share: .nan}]", []string{"1:44 above 0 and up to 1"}},
		{"limits: [{name: a, rate: 1/s, local_share: half}]", []string{"1:44 above 0 and up to 1"}},
		{"limits: [{name: a, rate: 1/s, on_unavailable: open, local_share: 0.5}]", []string{"1:66 counts only with on_unavailable: local"}},
		// Redis.
		{"redis: {prefix: \"a{b}\"}", []string{"1:17 not such a prefix"}},
		{"redis: {limit_deadline: 0s}", []string{"1:25 out of range"}},
		{"redis: {key_deadline: 2m}", []string{"1:23 out of range"}},
		{"redis: {allow_eviction: maybe}", []string{"1:25 true or false"}},
		{"redis: {spred: true}", []string{"1:9 did you mean spread?"}},
		{"idempotency: {confirm: two}", []string{"1:24 whole number from 0"}},
		// Several at once, in the order of the file.
		{"server: {drain: 1}\nlog: {format: x}\nfoo: 1", []string{"1:17 no unit", "2:15 none of its values", "3:1 no such field"}},
	} {
		_, err := Parse("f", []byte(tt.file), env)
		var faults Faults
		if !errors.As(err, &faults) {
			t.Errorf("%.200s\ngot %v", tt.file, err)
			continue
		}
		places := map[string]bool{}
		for _, want := range tt.faults {
			place, part, _ := strings.Cut(want, " ")
			places[place] = true
			found := false
			for _, f := range faults {
				at := fmt.Sprintf("%d:%d", f.Place.Line, f.Place.Column)
				found = found || at == place && strings.Contains(f.String(), part)
			}
			if !found {
				t.Errorf("%.200s\nwant %s\ngot  %v", tt.file, want, err)
			}
		}
		if len(faults) != len(places) {
			t.Errorf("%.200s\nwant %d faults, got %v", tt.file, len(places), err)
		}
	}
}

// A field that has no effect in this version is refused with that word, unless
// it has its default value.
func TestNotInThisVersion(t *testing.T) {
	for _, s := range []string{
		"limit_headers: [x-ratelimit]", "cors: {origins: [https://a]}", "plans: {a: {}}", "profiles: {a: {}}",
		"switch: [{to: a}]", "webhooks: {/a: {}}",
		"identity: {plan: header:X}", "identity: {jwks: x}", "identity: {user: claim:sub}",
		"idempotency: {on_mismatch: 409}", "idempotency: {on_in_progress: wait}", "idempotency: {wait: 5s}",
		"idempotency: {on_unknown: probe}", "idempotency: {on_unknown: fail}", "idempotency: {probe: {get: /x}}",
		"idempotency: {outcomes: stripe_v1}", "idempotency: {retryable: {after_window: final}}", "idempotency: {upstream_key: scoped}",
		"idempotency: {store_unavailable: execute}", "idempotency: {errors: stripe}",
		"limits: [{name: a, rate: 1/s, algorithm: concurrency}]", "limits: [{name: a, rate: 1/s, algorithm: sliding_window_counter}]",
		"limits: [{name: a, rate: 1/s, max: 3}]", "limits: [{name: a, rate: 1/s, mode: shadow}]",
		"limits: [{name: a, rate: 1/s, jitter: 1s}]",
	} {
		_, err := Parse("f", []byte(s), env)
		var faults Faults
		if !errors.As(err, &faults) || len(faults) != 1 || !strings.Contains(err.Error(), later) {
			t.Errorf("%s: got %v", s, err)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("")
	f.Add(string(Demo))
	f.Add("idempotency: {routes: {POST /o/{id}: {key: required}}}")
	f.Add("limits:\n  - {name: a, rate: 10/30s, burst: 4}\n  - name: b\n    by: [tenant]\n")
	f.Add("a: &x [*x, !!str 1, <<: {}]\n? |\n  b\n: >-\n  c\n---\n%YAML 1.2\n")
	f.Add("listen: ${PORT}\nserver: {drain: 1h30m, max_header: 64KiB}\n\"k\": 'v' # c\n")
	f.Add(strings.Repeat("- ", 300))
	f.Add("identity: {tenant: [header:A, cookie:b, const:c], missing: {user: ip}}")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := Parse("f", []byte(s), env)
		if err == nil {
			_ = c.Warnings()
			_ = c.HTTP()
			if _, err := Parse("f", []byte(c.YAML()), func(string) (string, bool) { return "0123456789abcdef", true }); err != nil {
				t.Fatalf("%q is read, and what is printed of it is not:\n%s\n%v", s, c.YAML(), err)
			}
			return
		}
		var faults Faults
		if !errors.As(err, &faults) || len(faults) == 0 {
			t.Fatalf("%q: %T %v", s, err, err)
		}
		lines := strings.Count(s, "\n") + strings.Count(s, "\r") + 1
		for _, f := range faults {
			if f.Place.File != "f" || f.Place.Line < 1 || f.Place.Line > lines+1 || f.Place.Column < 1 || f.Problem == "" {
				t.Fatalf("%q: fault %+v", s, f)
			}
		}
	})
}
