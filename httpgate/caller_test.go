package httpgate

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

func TestParseSource(t *testing.T) {
	for _, s := range []string{"header:X-Tenant-Id", "hash:Authorization", "cookie:sid", "const:public", "const:a:b c"} {
		src, err := ParseSource(s)
		if err != nil || src.String() != s {
			t.Errorf("%s: %v, %v", s, src, err)
		}
		var back Source
		if text, err := src.MarshalText(); err != nil || back.UnmarshalText(text) != nil || back != src {
			t.Errorf("%s: %v, %v", s, back, err)
		}
	}
	if src, err := ParseSource("header:x-tenant-id"); err != nil || src.String() != "header:X-Tenant-Id" {
		t.Error(src, err)
	}
	for s, want := range map[string]string{
		"": "not a source", "X-Tenant": "not a source", "header:": "name of a header field", "header:a b": "name of a header field",
		"hash:": "name of a header field", "cookie:a=b": "name of a cookie", "const:": "empty",
		"claim:sub": "verifies no tokens", "query:x": "not a kind of source", "HEADER:x": "not a kind of source",
	} {
		src, err := ParseSource(s)
		if err == nil || !strings.Contains(err.Error(), want) || src != (Source{}) {
			t.Errorf("%q: %v, %v", s, src, err)
		}
	}
	if name, ok := MustSources("header:x-a")[0].Header(); !ok || name != "X-A" {
		t.Error(name, ok)
	}
	if _, ok := MustSources("hash:x-a")[0].Header(); ok {
		t.Error("a hash is no plain header")
	}
}

func TestSources(t *testing.T) {
	h, err := idempotency.NewHasher(testSecret)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	list := MustSources("header:X-A", "hash:X-B", "cookie:c", "const:public")
	have := func(want string) {
		t.Helper()
		if v, ok := list.first(r, h, false); !ok || v != want {
			t.Errorf("have %q, %v, want %q", v, ok, want)
		}
	}
	have("public")
	r.AddCookie(&http.Cookie{Name: "c", Value: "secret"})
	have(h.Pseudonym("cookie:c", "secret"))
	r.Header.Set("X-B", "secret")
	have(h.Pseudonym("hash:X-B", "secret"))
	r.Header["X-A"] = []string{"  "}
	have(h.Pseudonym("hash:X-B", "secret"))
	r.Header["X-A"] = []string{" one ", "two"}
	have("one , two")
	if v, ok := MustSources("header:X-B").first(r, h, true); !ok || strings.Contains(v, "secret") {
		t.Errorf("a secret went through: %q", v)
	}
	if v, ok := (Sources{{}}).first(r, h, false); ok {
		t.Errorf("the zero source said %q", v)
	}
}

func TestClientIP(t *testing.T) {
	id, err := newIdentity(Identity{TrustedProxies: []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:1::/48"), netip.MustParsePrefix("::ffff:192.0.2.0/120"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	none, err := newIdentity(Identity{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id    *identity
		peer  string
		lines []string
		want  string
	}{
		{none, "203.0.113.9:1", []string{"1.2.3.4"}, "203.0.113.9"},
		{none, "[2001:db8:7:8:9::1]:1", nil, "2001:db8:7:8::/64"},
		{none, "[::ffff:203.0.113.9]:1", nil, "203.0.113.9"},
		{none, "[fe80::1%eth0]:1", nil, "fe80::/64"},
		{id, "203.0.113.9:1", []string{"1.2.3.4"}, "203.0.113.9"}, // the peer is not trusted
		{id, "10.1.1.1:1", []string{"1.2.3.4"}, "1.2.3.4"},
		{id, "[::ffff:10.1.1.1]:1", []string{"1.2.3.4"}, "1.2.3.4"},
		{id, "192.0.2.7:1", []string{"1.2.3.4"}, "1.2.3.4"},
		{id, "10.1.1.1:1", []string{"6.6.6.6, 1.2.3.4, 10.2.2.2"}, "1.2.3.4"},
		{id, "10.1.1.1:1", []string{"6.6.6.6", "1.2.3.4", "10.2.2.2"}, "1.2.3.4"},
		{id, "10.1.1.1:1", []string{"6.6.6.6, nonsense, 10.2.2.2"}, "10.2.2.2"},
		{id, "10.1.1.1:1", []string{"nonsense"}, "10.1.1.1"},
		{id, "10.1.1.1:1", nil, "10.1.1.1"},
		{id, "10.1.1.1:1", []string{""}, "10.1.1.1"},
		{id, "10.1.1.1:1", []string{"10.3.3.3, 10.2.2.2"}, "10.3.3.3"},
		{id, "10.1.1.1:1", []string{"1.2.3.4:5678"}, "1.2.3.4"},
		{id, "10.1.1.1:1", []string{"[2001:db8:7:8:9::1]:443"}, "2001:db8:7:8::/64"},
		{id, "10.1.1.1:1", []string{"2001:db8:7:8:9::1, 2001:db8:1::5"}, "2001:db8:7:8::/64"},
		{id, "@", []string{"1.2.3.4"}, "1.2.3.4"},
		{none, "@", []string{"1.2.3.4"}, "?@"},
	} {
		r := &http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": c.lines}}
		if have := c.id.ipSubject(r); have != c.want {
			t.Errorf("%s %q: have %s, want %s", c.peer, c.lines, have, c.want)
		}
	}
}

func limitRig(t *testing.T, by []string, missing map[string]Missing) *rig {
	var c counter
	return newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Identity.User = MustSources("header:X-User")
		c.Identity.Missing = missing
		c.Identity.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
		c.Limits = []Limit{{Rule: ratelimit.Rule{Name: "l", Quota: 1, Window: time.Hour}, By: by}}
		c.Routes = map[string]KeyPolicy{"GET /r1": {}, "GET /r2/{id}": {}}
	})
}

// Each pair of requests has one bucket each, or one together.
func TestSubjects(t *testing.T) {
	for _, c := range []struct {
		by      string
		missing map[string]Missing
		a, b    []string // path, and fields
		shared  bool
	}{
		{"", nil, []string{"/1"}, []string{"/2", "X-Tenant", "b"}, true},
		{"tenant", nil, []string{"/1", "X-Tenant", "a"}, []string{"/1", "X-Tenant", "b"}, false},
		{"tenant", nil, []string{"/1", "X-Tenant", "a"}, []string{"/2", "X-Tenant", "a"}, true},
		{"tenant user", nil, []string{"/", "X-Tenant", "ab", "X-User", "c"}, []string{"/", "X-Tenant", "a", "X-User", "bc"}, false},
		{"tenant user", nil, []string{"/", "X-Tenant", "a=1:b", "X-User", "c"}, []string{"/", "X-Tenant", "a", "X-User", "b=1:c"}, false},
		{"api_key", nil, []string{"/", "X-Api-Key", "1"}, []string{"/", "X-Api-Key", "2"}, false},
		{"api_key", nil, []string{"/", "X-Api-Key", "1"}, []string{"/", "X-Api-Key", "1"}, true},
		{"api_key", nil, []string{"/", "X-Forwarded-For", "1.1.1.1"}, []string{"/", "X-Forwarded-For", "1.1.1.2"}, false},
		{"api_key", nil, []string{"/", "X-Forwarded-For", "1.1.1.1"}, []string{"/", "X-Forwarded-For", "1.1.1.1"}, true},
		{"api_key", map[string]Missing{"api_key": MissingShared}, []string{"/", "X-Forwarded-For", "1.1.1.1"}, []string{"/", "X-Forwarded-For", "1.1.1.2"}, true},
		{"api_key", map[string]Missing{"api_key": MissingShared}, []string{"/"}, []string{"/", "X-Api-Key", "1"}, false},
		{"user", nil, []string{"/", "X-User", "127.0.0.1"}, []string{"/"}, false},
		{"header:X-Region", nil, []string{"/", "X-Region", "eu"}, []string{"/", "X-Region", "us"}, false},
		{"header:x-region", nil, []string{"/", "X-Region", "eu"}, []string{"/", "X-Region", "eu"}, true},
		{"ip", nil, []string{"/", "X-Forwarded-For", "2001:db8::1"}, []string{"/", "X-Forwarded-For", "2001:db8::2"}, true},
		{"ip", nil, []string{"/", "X-Forwarded-For", "2001:db8::1"}, []string{"/", "X-Forwarded-For", "2001:db8:0:1::1"}, false},
		{"route", nil, []string{"/r1"}, []string{"/r2/5"}, false},
		{"route", nil, []string{"/r2/4"}, []string{"/r2/5"}, true},
		{"tenant", nil, []string{"/", "X-Tenant", strings.Repeat("a", 3000)}, []string{"/", "X-Tenant", strings.Repeat("a", 2999)}, false},
		{"tenant", nil, []string{"/", "X-Tenant", strings.Repeat("a", 3000)}, []string{"/", "X-Tenant", strings.Repeat("a", 3000)}, true},
	} {
		r := limitRig(t, strings.Fields(c.by), c.missing)
		if rep := r.do("GET", c.a[0], "", c.a[1:]...); rep.status != 201 {
			t.Fatalf("%+v: %d %s", c, rep.status, rep.body)
		}
		want := 201
		if c.shared {
			want = 429
		}
		if rep := r.do("GET", c.b[0], "", c.b[1:]...); rep.status != want {
			t.Errorf("by %q: %v after %v: have %d, want %d", c.by, c.b, c.a, rep.status, want)
		}
		if rep := r.do("GET", c.a[0], "", c.a[1:]...); rep.status != 429 {
			t.Errorf("by %q: %v again: %d", c.by, c.a, rep.status)
		}
	}
	r := limitRig(t, []string{"api_key"}, map[string]Missing{"api_key": MissingRefuse})
	r.do("GET", "/", "").problem(t, 400, "caller-unknown")
	r.do("GET", "/", "", "X-Api-Key", "1").want(t, 201, "{\"order_id\":1}\n")
}

func TestSecretsAreNotInSubjects(t *testing.T) {
	r := limitRig(t, []string{"api_key"}, nil)
	req := httptest.NewRequest("GET", "/", nil)
	req.Header.Set("X-Api-Key", "top-secret")
	charges, lacks := r.m.charges(req, forms(req))
	if lacks != "" || len(charges) != 1 || strings.Contains(charges[0].Subject, "top-secret") || len(charges[0].Subject) < 32 {
		t.Errorf("%q %+v", lacks, charges)
	}
}

// The source texts gave all callers without an API key one bucket.
func TestFault12MissingSubjectIsNotOneBucket(t *testing.T) {
	r := limitRig(t, []string{"api_key"}, nil)
	for i := range 5 {
		if rep := r.do("GET", "/", "", "X-Forwarded-For", fmt.Sprintf("198.51.100.%d", i)); rep.status != 201 {
			t.Errorf("caller %d was refused: %d", i, rep.status)
		}
	}
}

func TestNewNamesEveryFault(t *testing.T) {
	_, err := New(Config{
		MaxRequest: -1, SpoolMemory: -1, ProblemBase: "not a url", SpoolDir: "/does/not/exist", ReplayDrop: []string{"a b"},
		Identity: Identity{IPv6Prefix: 200, Missing: map[string]Missing{"nobody": 0, "user": 9}, TrustedProxies: make([]netip.Prefix, 1), Tenant: make(Sources, 1)},
		Keys: KeyPolicy{
			Mode: 9, MaxAnswer: LargestMaxAnswer + 1, Scope: []string{"method", "method", "pattern"},
			Policy: escapement.Policy{Timeout: -1}, Print: idempotency.PrintOptions{Ignore: []string{"x"}},
		},
		Routes: map[string]KeyPolicy{"POST": {}, "/a/{x}": {}, "/{y}/b": {}, "/user": {Scope: []string{"tenant", "user"}}},
		Limits: []Limit{
			{Rule: ratelimit.Rule{Name: "a", Quota: 1, Window: time.Second}, By: []string{"nonsense"}, Cost: -1, Kind: 7, Routes: []string{"GET"}},
			{Rule: ratelimit.Rule{Name: "a"}, By: []string{"user"}},
		},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"Gate: is nil", "Hasher: is nil", "MaxRequest: is -1", "SpoolMemory: is -1", "ProblemBase: is not", "SpoolDir: ", `ReplayDrop: "a b"`,
		"IPv6Prefix is 200", `Missing has "nobody"`, `Missing["user"] is 9`, "trusted proxy is not a prefix", "a source is empty",
		"mode is 9", "max_answer is", "scope has no tenant", `"method" twice`, `scope has "pattern"`, "timeout is -1", "lease is 0", "pointer",
		`pattern "POST"`, `pattern "/{y}/b"`, `Routes["/user"]`, "set Identity.User",
		"Limits[0] (a)", `by has "nonsense"`, "kind is 7", `pattern "GET"`, "Limits[1] (a): an earlier limit has the same name", "by has user",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q", want)
		}
	}
	if strings.Contains(err.Error(), ".go:") {
		t.Errorf("the error names source lines:\n%v", err)
	}
	if t.Failed() {
		t.Log(err)
	}
}
