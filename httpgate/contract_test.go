package httpgate

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

func TestReplayIsTheFirstAnswer(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, nil)
	first := r.post("/v1/orders", `"k-1"`, `{"a":1}`)
	first.want(t, 201, "{\"order_id\":1}\n")
	for _, again := range []reply{
		r.post("/v1/orders", `"k-1"`, `{"a":1}`),
		r.post("/v1/orders", `k-1`, `{"a":1}`), // the bare form names the same key
	} {
		again.replayed(t, first)
	}
	r.post("/v1/orders", "k-2", `{"a":1}`).want(t, 201, "{\"order_id\":2}\n")
	r.post("/v1/orders", "k-1", `{"a":1}`, "X-Tenant", "other").want(t, 201, "{\"order_id\":3}\n")
	r.post("/v1/notes", "k-1", `{"a":1}`).want(t, 201, "{\"order_id\":4}\n")
	r.do("PATCH", "/v1/orders", `{"a":1}`, KeyField, "k-1").want(t, 201, "{\"order_id\":5}\n")
	if n := c.calls(); n != 5 {
		t.Errorf("%d calls", n)
	}
}

func TestKeyFieldIsEchoedOnEveryAnswer(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(KeyField, "the handler's own")
		if r.Header.Get("X-Panic") != "" {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(201)
	}, func(c *Config, _ *escapement.Options) {
		c.Limits = []Limit{{Rule: ratelimit.Rule{Name: "two", Quota: 2, Window: time.Minute}, Routes: []string{"/limited"}}}
		c.MaxRequest = 1000
	})
	for _, c := range []struct {
		method, path, field, body string
		status                    int
		more                      []string
	}{
		{"POST", "/a", ` "k";x=1 `, "", 201, nil},
		{"POST", "/a", ` "k";x=1 `, "", 201, nil}, // replay
		{"POST", "/a", "k", "other", 422, nil},
		{"POST", "/a", "a,b", "", 400, nil},
		{"POST", "/a", "k9", "", 400, []string{"X-Tenant", ""}},
		{"POST", "/a", "k2", strings.Repeat("x", 1001), 413, nil},
		{"GET", "/a", "k", "", 201, nil},
		{"GET", "/limited", "k", "", 201, nil},
		{"GET", "/limited", "k", "", 201, nil},
		{"GET", "/limited", "k", "", 429, nil},
		{"POST", "/limited", "k", "", 429, nil},
	} {
		rep := r.do(c.method, c.path, c.body, append([]string{KeyField, c.field}, c.more...)...)
		if rep.status != c.status || fmt.Sprint(rep.header[KeyField]) != fmt.Sprint([]string{strings.TrimSpace(c.field)}) {
			t.Errorf("%s %s %q: have %d, %q", c.method, c.path, c.field, rep.status, rep.header[KeyField])
		}
	}
	if rep := r.do("POST", "/a", "", KeyField, "one", KeyField, "two"); rep.status != 400 || fmt.Sprint(rep.header[KeyField]) != "[one two]" {
		t.Errorf("two lines: have %d, %q", rep.status, rep.header[KeyField])
	}
	if rep := r.do("POST", "/a", ""); rep.status != 201 || fmt.Sprint(rep.header[KeyField]) != "[the handler's own]" {
		t.Errorf("no field: %v", rep.header)
	}
}

func TestKeyMissingAndMalformed(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Routes = map[string]KeyPolicy{"POST /must": {Mode: Required}, "POST /off": {Mode: Off}}
	})
	p := r.do("POST", "/must", "{}").problem(t, 400, "idempotency-key-missing")
	if p["retryable"] != false {
		t.Error("a missing key is not cured by a repeat")
	}
	for _, field := range []string{"", `""`, "a,b", `"open`, strings.Repeat("k", 256), "a\tb", "caf\u00e9"} {
		rep := r.post("/must", field, "{}")
		rep.problem(t, 400, "idempotency-key-malformed")
		if len(field) > 3 && strings.Contains(rep.body, field) {
			t.Errorf("the text repeats the field %q", field)
		}
		r.post("/optional", field, "{}").problem(t, 400, "idempotency-key-malformed")
	}
	r.do("POST", "/must", "{}", KeyField, "a", KeyField, "a").problem(t, 400, "idempotency-key-malformed")
	if c.calls() != 0 || r.recordCount() != 0 {
		t.Fatalf("%d calls, %d records", c.calls(), r.recordCount())
	}
	r.post("/must", strings.Repeat("k", 255), "{}").want(t, 201, "{\"order_id\":1}\n")
	r.post("/off", "a,b", "{}").want(t, 201, "{\"order_id\":2}\n")
	r.post("/off", "a,b", "{}").want(t, 201, "{\"order_id\":3}\n")
	r.do("POST", "/optional", "{}").want(t, 201, "{\"order_id\":4}\n")
}

func TestCallerUnknown(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Identity.User = MustSources("cookie:sid")
		c.Routes = map[string]KeyPolicy{"/user/": {Scope: []string{"tenant", "user"}}}
	})
	r.post("/x", "k", "{}", "X-Tenant", "").problem(t, 400, "caller-unknown")
	r.post("/user/x", "k", "{}").problem(t, 400, "caller-unknown")
	r.do("POST", "/x", "{}", "X-Tenant", "").want(t, 201, "{\"order_id\":1}\n") // unkeyed: no tenant is needed
	r.post("/user/x", "k", "{}", "Cookie", "sid=1").want(t, 201, "{\"order_id\":2}\n")
	r.post("/user/x", "k", "{}", "Cookie", "sid=2").want(t, 201, "{\"order_id\":3}\n")
	r.post("/user/x", "k", "{}", "Cookie", "sid=1").want(t, 201, "{\"order_id\":2}\n")
	if strings.Contains(r.record0Tenant(), "sid") {
		t.Error("the cookie is in the record")
	}
}

func (r *rig) record0Tenant() string {
	page, err := r.memory.List(r.t.Context(), idempotency.Filter{})
	if err != nil || len(page.Records) == 0 {
		r.t.Fatal(err)
	}
	return page.Records[0].Key.Tenant
}

func TestKeyReusedInEveryState(t *testing.T) {
	enter, leave := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			enter <- struct{}{}
			<-leave
		}
		if r.URL.Path == "/unknown" {
			w.WriteHeader(502)
			return
		}
		io.WriteString(w, "done")
	}, nil)
	done := make(chan reply)
	go func() { done <- r.post("/slow", "k", `{"a": 1, "b": 2}`) }()
	<-enter
	p := r.post("/slow", "k", `{"a":2,"b":2}`).problem(t, 422, "idempotency-key-reused")
	if p["retryable"] != false {
		t.Error("a reused key is not cured by a repeat")
	}
	rep := r.post("/slow", "k", `{"b":2,"a":1}`) // means the same
	if p := rep.problem(t, 409, "idempotency-request-in-progress"); p["retryable"] != true || rep.header.Get("Retry-After") != "1" {
		t.Errorf("%v %v", p, rep.header)
	}
	close(leave)
	(<-done).want(t, 200, "done")
	r.post("/slow", "k", `{"a":2,"b":2}`).problem(t, 422, "idempotency-key-reused")
	r.post("/slow?x=1", "k", `{"a":1,"b":2}`).problem(t, 422, "idempotency-key-reused")
	r.post("/slow", "k", `{"a":1,"b":2}`, "Content-Type", "text/plain").problem(t, 422, "idempotency-key-reused")
	r.post("/unknown", "k", `1`)
	r.post("/unknown", "k", `2`).problem(t, 422, "idempotency-key-reused")
	r.post("/unknown", "k", `1`).problem(t, 409, "idempotency-outcome-unknown")
}

// TestOutcomes is the table deterministic_4xx.
func TestOutcomes(t *testing.T) {
	const (
		final, free, unknown, retryable = "final", "as it was found", "unknown", "retryable"
	)
	for _, c := range []struct {
		status  int
		after   string // Retry-After
		finding Finding
		want    string
		class   idempotency.Class
	}{
		{200, "", 0, final, idempotency.Succeeded},
		{201, "", 0, final, idempotency.Succeeded},
		{202, "5", 0, final, idempotency.Succeeded},
		{204, "", 0, final, idempotency.Succeeded},
		{302, "", 0, final, idempotency.Succeeded},
		{304, "", 0, final, idempotency.Succeeded},
		{400, "", 0, final, idempotency.FailedFinal},
		{401, "", 0, free, 0},
		{402, "", 0, final, idempotency.FailedFinal},
		{403, "", 0, free, 0},
		{404, "", 0, final, idempotency.FailedFinal},
		{408, "", 0, retryable, idempotency.FailedRetryable},
		{409, "", 0, final, idempotency.FailedFinal},
		{422, "", 0, final, idempotency.FailedFinal},
		{425, "", 0, free, 0},
		{429, "3", 0, free, 0},
		{500, "", 0, final, idempotency.FailedFinal},
		{501, "", 0, final, idempotency.FailedFinal},
		{502, "", 0, unknown, 0},
		{503, "", 0, unknown, 0},
		{503, "7", 0, retryable, idempotency.FailedRetryable},
		{504, "", 0, unknown, 0},
		{505, "", 0, final, idempotency.FailedFinal},
		{502, "", NotExecuted, free, 0},
		{200, "", Unknown, unknown, 0},
		{500, "", Retryable, retryable, idempotency.FailedRetryable},
		{429, "", Final, final, idempotency.FailedFinal},
	} {
		t.Run(fmt.Sprintf("%d%s%v", c.status, c.after, c.finding), func(t *testing.T) {
			calls := 0
			r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
				calls++
				if c.after != "" {
					w.Header().Set("Retry-After", c.after)
				}
				if c.finding != ByStatus && !Report(r.Context(), c.finding) {
					t.Error("Report says that this request has no operation")
				}
				w.WriteHeader(c.status)
				if hasBody(c.status) {
					io.WriteString(w, "body")
				}
			}, nil)
			first := r.post("/x", "k", "{}")
			body := ""
			if hasBody(c.status) {
				body = "body"
			}
			first.want(t, c.status, body)
			if first.header.Get("Retry-After") != c.after {
				t.Errorf("Retry-After is %q", first.header.Get("Retry-After"))
			}
			again := r.post("/x", "k", "{}")
			switch c.want {
			case final:
				again.replayed(t, first)
			case retryable:
				again.replayed(t, first)
				if ra := again.header.Get("Retry-After"); ra != "2" {
					t.Errorf("Retry-After of the replay is %q, and the window 2 s", ra)
				}
				r.clock.move(1500 * time.Millisecond)
				if ra := r.post("/x", "k", "{}").header.Get("Retry-After"); ra != "1" {
					t.Errorf("Retry-After is %q after 1.5 s of 2", ra)
				}
			case unknown:
				if p := again.problem(t, 409, "idempotency-outcome-unknown"); p["retryable"] != false {
					t.Error("an unknown outcome is not cured by a repeat")
				}
			case free:
				again.want(t, c.status, body)
				if again.header.Get(ReplayedField) != "" || r.recordCount() != 0 {
					t.Error("it was recorded")
				}
			}
			wantCalls := 1
			if c.want == free {
				wantCalls = 2
			}
			if calls != wantCalls {
				t.Errorf("%d calls, want %d", calls, wantCalls)
			}
			if c.class != 0 {
				if res := r.record().Result; res.Class != c.class || res.Status != c.status {
					t.Errorf("recorded %v %d", res.Class, res.Status)
				}
			}
			if c.want == retryable {
				r.clock.move(2 * time.Second)
				if rep := r.post("/x", "k", "{}"); rep.header.Get(ReplayedField) != "" || calls != 2 {
					t.Errorf("after the window: %d calls, %v", calls, rep.header)
				}
			}
		})
	}
	if Report(t.Context(), Final) {
		t.Error("Report found an operation where there is none")
	}
}

func TestUnknownWithRetryRunsAgain(t *testing.T) {
	calls := 0
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		if calls++; calls == 1 {
			w.WriteHeader(504)
			return
		}
		io.WriteString(w, "second")
	}, func(c *Config, _ *escapement.Options) {
		c.Keys.Policy = policyWith(func(p *escapement.Policy) { p.Terms.OnUnknown, p.Terms.Quiet = idempotency.Retry, 0 })
	})
	if rep := r.post("/x", "k", "{}"); rep.status != 504 {
		t.Fatal(rep)
	}
	first := r.post("/x", "k", "{}")
	first.want(t, 200, "second")
	r.post("/x", "k", "{}").replayed(t, first)
}

func TestStoresAway(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, nil)
	r.records.set(errAway, nil)
	rep := r.post("/x", "k", "{}")
	if p := rep.problem(t, 503, "store-unavailable"); p["retryable"] != true || rep.header.Get("Retry-After") != "1" {
		t.Errorf("%v %v", p, rep.header)
	}
	if c.calls() != 0 {
		t.Fatal("it was executed")
	}
	r.do("POST", "/x", "{}").want(t, 201, "{\"order_id\":1}\n")
	r.records.set(nil, nil)
	r.post("/x", "k2", "{}").want(t, 201, "{\"order_id\":2}\n")

	r = newRig(t, c.ServeHTTP, func(c *Config, o *escapement.Options) {
		o.Limits = brokenLimits{}
		c.Limits = []Limit{{Rule: ratelimit.Rule{Name: "a", Quota: 1, Window: time.Second}}}
	})
	for _, rep := range []reply{r.post("/x", "k", "{}"), r.do("GET", "/x", "")} {
		if p := rep.problem(t, 503, "limiter-unavailable"); p["retryable"] != true || rep.header.Get("Retry-After") != "1" {
			t.Errorf("%v %v", p, rep.header)
		}
	}
	if c.calls() != 2 {
		t.Fatal("it was executed")
	}
}

func TestResultNotRecorded(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(_ *Config, o *escapement.Options) { o.RecordsDeadline = 50 * time.Millisecond })
	r.records.set(nil, errAway)
	rep := r.post("/x", "k", "{}")
	if p := rep.problem(t, 503, "idempotency-result-not-recorded"); p["retryable"] != true || rep.header.Get("Retry-After") != "1" {
		t.Errorf("%v %v", p, rep.header)
	}
	r.records.set(nil, nil)
	// The Gate's background brings the record in; then the repeat has it.
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- r.gate.Run(ctx) }()
	eventually(t, "the answer is recorded", func() bool {
		rep = r.post("/x", "k", "{}")
		return rep.status == 201
	})
	if rep.header.Get(ReplayedField) != "true" || c.calls() != 1 {
		t.Errorf("%d calls, %v", c.calls(), rep.header)
	}
	cancel()
	<-ran
}

func TestTooMuchRunning(t *testing.T) {
	enter, leave := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(KeyField) != "" {
			enter <- struct{}{}
			<-leave
		}
	}, func(_ *Config, o *escapement.Options) { o.MaxRunning = 1 })
	done := make(chan reply)
	go func() { done <- r.post("/x", "k", "{}") }()
	<-enter
	rep := r.post("/x", "k2", "{}")
	if p := rep.problem(t, 503, "temporary-reduced-capacity"); p["retryable"] != true || rep.header.Get("Retry-After") != "1" {
		t.Errorf("%v %v", p, rep.header)
	}
	r.do("POST", "/x", "{}").want(t, 200, "")
	close(leave)
	(<-done).want(t, 200, "")
}

func TestKeysCountOnSomeMethods(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Routes = map[string]KeyPolicy{
			"PUT /named/{id}": {}, "DELETE /named/{id}": {Mode: Required},
			"/unnamed/": {Mode: Required}, "GET /g": {Mode: Required},
		}
	})
	runs := func(method, path string, twice bool, fields ...string) {
		t.Helper()
		before := c.calls()
		for range 2 {
			if rep := r.do(method, path, "", append(fields, KeyField, "k-"+method)...); rep.status != 201 {
				t.Fatalf("%s %s: %d %s", method, path, rep.status, rep.body)
			}
		}
		want := 1
		if twice {
			want = 2
		}
		if n := c.calls() - before; n != want {
			t.Errorf("%s %s: %d calls, want %d", method, path, n, want)
		}
	}
	runs("POST", "/any", false)
	runs("PATCH", "/any", false)
	runs("PUT", "/any", true)
	runs("DELETE", "/any", true)
	runs("PUT", "/named/1", false)
	runs("DELETE", "/named/1", false)
	runs("PUT", "/unnamed/1", true)
	runs("POST", "/unnamed/1", false)
	for _, m := range []string{"GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND"} {
		runs(m, "/any", true)
		runs(m, "/unnamed/1", true)
	}
	runs("GET", "/g", true)
	// Some clients offer an upgrade with every request: keys count all the same.
	runs("POST", "/upgrade", false, "Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c")
	r.do("DELETE", "/named/1", "").problem(t, 400, "idempotency-key-missing")
	r.do("POST", "/unnamed/1", "").problem(t, 400, "idempotency-key-missing")
}

func TestProblemBaseAndMembers(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.ProblemBase = "https://errors.example/p/"
		c.Keys.Mode = Required
		c.Limits = []Limit{{Rule: ratelimit.Rule{Name: "one", Quota: 1, Window: time.Hour}, Routes: []string{"GET /"}}}
	})
	rep := r.do("POST", "/x", "")
	if !strings.Contains(rep.body, `"type":"https://errors.example/p/idempotency-key-missing"`) || rep.status != 400 {
		t.Error(rep.body)
	}
	r.do("GET", "/x", "")
	r.do("GET", "/x", "").problem(t, 429, "quota-exceeded")
	if rep.header.Get("Cache-Control") != "no-store" {
		t.Errorf("a refusal may be cached: %v", rep.header)
	}
}
