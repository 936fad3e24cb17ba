package httpgate

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// spellings are request lines that an upstream may take for POST /v1/orders.
var spellings = []string{
	"/v1/orders", "//v1/orders", "/v1//orders", "/v1/./orders", "/./v1/orders", "/v1/orders/", "/v1/orders//", "/v1/orders/.",
	"/v1/%6frders", "/v1/%6Frders", "/v1/x/../orders", "/v1/x/%2e%2e/orders", "/v1/x/%2E./orders", "/v1/%2e/orders",
	"/v1%2Forders", "/v1%2forders", "/v1/orders%2F", "/../v1/orders", "/v1/orders;x=1", "/v1;a/orders", `/v1\orders`, "/v1/%5c/orders",
	"/v1/orders/?x=1", "http://api.example/v1/orders", "/%76%31/orders",
}

// rawRequest sends a request line as it stands and returns status and body.
func rawRequest(t *testing.T, r *rig, method, target, host, more string) (int, string) {
	t.Helper()
	conn, err := net.Dial("tcp", r.srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\nX-Tenant: acme\r\nContent-Length: 0\r\n%sConnection: close\r\n\r\n", method, target, host, more)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	defer res.Body.Close()
	var b strings.Builder
	if _, err := bufio.NewReader(res.Body).WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, b.String()
}

func TestNoSpellingSlipsPastARoute(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Routes = map[string]KeyPolicy{
			"POST api.example/v1/orders": {Mode: Required},
			"/":                          {Mode: Off},
			"/v1/":                       {Mode: Off},
		}
		c.Limits = []Limit{{Rule: ratelimit.Rule{Name: "orders", Quota: 1000, Window: time.Hour}, Routes: []string{"api.example/v1/orders"}}}
	})
	for _, target := range spellings {
		for _, host := range []string{"api.example", "API.Example", "api.example:8080", "api.example.", "Api.Example.:80"} {
			for _, method := range []string{"POST", "post"} {
				status, body := rawRequest(t, r, method, target, host, "")
				if status != 400 || !strings.Contains(body, "idempotency-key-missing") {
					t.Errorf("%s %s to %s slipped past: %d %s", method, target, host, status, body)
				}
			}
		}
	}
	if c.calls() != 0 {
		t.Errorf("%d calls", c.calls())
	}
	for _, target := range []string{"/v1/orders/1", "/v1", "/v1/orders1", "/v2/orders"} {
		if status, _ := rawRequest(t, r, "POST", target, "api.example", ""); status != 201 {
			t.Errorf("%s: %d", target, status)
		}
	}
}

func TestNoSpellingSlipsPastALimit(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Limits = []Limit{{Rule: ratelimit.Rule{Name: "orders", Quota: 3, Window: time.Hour}, Routes: []string{"POST /v1/orders"}}}
	})
	for i, target := range spellings {
		want := 201
		if i >= 3 {
			want = 429
		}
		if status, body := rawRequest(t, r, "POST", target, "api.example", ""); status != want {
			t.Errorf("%d: %s: %d %s", i, target, status, body)
		}
	}
}

func TestScopePath(t *testing.T) {
	for _, group := range [][]string{
		{"/v1/orders", "//v1/orders", "/v1/./orders", "/v1/%6frders", "/v1/orders/", "/v1/x/%2e%2e/orders", "/v1//orders//"},
		{"/v1%2Forders", "/v1%2forders"},
		{"/", "//", "/.", ""},
		{"/a%20b", "/a%20b/"},
		{"/caf%C3%A9", "/caf%c3%a9"},
		{"/a;b"},
		{"/a"},
		{"/A"},
		{"/a%25"},
		{"/a%2525"},
	} {
		for _, other := range group {
			u, err := url.ParseRequestURI(other)
			if err != nil {
				u = &url.URL{Path: other}
			}
			if have := scopePath(&http.Request{Method: "POST", URL: u}); have != scopePath(&http.Request{Method: "POST", URL: mustURL(t, group[0])}) {
				t.Errorf("%q has the scope %q, and %q another", other, have, group[0])
			}
		}
	}
	seen := map[string]string{}
	for _, p := range []string{"/v1/orders", "/v1%2Forders", "/", "/a%20b", "/a;b", "/a", "/A", "/a%25", "/a%2525", "/a/b", "/a%2Fb"} {
		s := scopePath(&http.Request{Method: "POST", URL: mustURL(t, p)})
		if q, ok := seen[s]; ok {
			t.Errorf("%q and %q share the scope %q", p, q, s)
		}
		seen[s] = p
	}
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.ParseRequestURI(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// The spellings of one path share its key; they have fingerprints of their own,
// so that a different operation is never answered with this one's answer.
func TestSpellingsShareTheirKey(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, nil)
	for i, target := range []string{"/v1/orders", "//v1/orders", "/v1/%6frders", "/v1/orders/"} {
		status, body := rawRequest(t, r, "POST", target, "h", KeyField+": k\r\n")
		if i == 0 && status != 201 || i > 0 && status != 422 {
			t.Errorf("%s: %d %s", target, status, body)
		}
	}
	if status, _ := rawRequest(t, r, "post", "/v1/orders", "h", KeyField+": k\r\n"); status != 422 {
		t.Errorf("another spelling of the method: %d", status)
	}
	if c.calls() != 1 {
		t.Errorf("%d calls", c.calls())
	}
}

func TestRoutesDoNotChangeKeys(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, nil)
	first := r.post("/v1/orders/7", "k", "{}")
	hasher, err := idempotency.NewHasher(testSecret)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{
		Gate: r.gate, Hasher: hasher, Identity: Identity{Tenant: MustSources("header:X-Tenant")},
		Routes: map[string]KeyPolicy{"POST /v1/orders/{id}": {Mode: Required, Scope: []string{"method", "path", "tenant"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	// Another order of the scope's parts is another scope; the pattern is none.
	m.policies["POST /v1/orders/{id}"].scope = m.keys.scope
	r.srv.Config.Handler = m.Wrap(&c)
	r.post("/v1/orders/7", "k", "{}").replayed(t, first)
	if rec := r.record(); rec.Origin.Method != "POST" || rec.Origin.Route != "" {
		t.Errorf("origin %+v", rec.Origin)
	}
}

func TestStrictestFormDecides(t *testing.T) {
	m := &Middleware{id: &identity{}, policies: map[string]*keyPolicy{}}
	var err error
	list := []string{"POST /a", "/", "POST /b", "POST /b/"}
	if m.routes, err = newPatterns(list); err != nil {
		t.Fatal(err)
	}
	m.keys = &keyPolicy{}
	m.policies["POST /a"] = &keyPolicy{pattern: "POST /a", mode: Required}
	m.policies["/"] = &keyPolicy{pattern: "/", mode: Optional}
	m.policies["POST /b"] = &keyPolicy{pattern: "POST /b", mode: Off}
	m.policies["POST /b/"] = &keyPolicy{pattern: "POST /b/", mode: Required}
	for target, want := range map[string]string{"/a": "POST /a", "/a/": "POST /a", "/c": "/", "/b": "POST /b", "/b/": "POST /b/"} {
		r := httptest.NewRequest("POST", target, nil)
		if p, _ := m.policyFor(forms(r)); p.pattern != want {
			t.Errorf("%s: have %q, want %q", target, p.pattern, want)
		}
	}
}
