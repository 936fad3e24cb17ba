package httpgate

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/ratelimit"
)

func TestRateFieldValues(t *testing.T) {
	rule := func(name string, quota int64, window time.Duration, burst int64) ratelimit.Rule {
		return ratelimit.Rule{Name: name, Quota: quota, Window: window, Burst: burst}
	}
	for _, c := range []struct {
		levels        []ratelimit.Level
		limit, policy string
	}{
		{nil, "", ""},
		{
			[]ratelimit.Level{{Rule: rule("client", 10, time.Second, 20), Allowed: true, Remaining: 5, ResetAfter: 600 * time.Millisecond}},
			`"client";r=5;t=1`, `"client";q=20;w=2`,
		},
		{
			[]ratelimit.Level{
				{Rule: rule("wide", 100, time.Minute, 0), Allowed: true, Remaining: 7},
				{Rule: rule("tight", 1, 3*time.Second, 0), Allowed: true, Remaining: 2, ResetAfter: 1},
				{Rule: rule("wait", 5, time.Second, 0), RetryAfter: 1001 * time.Millisecond, ResetAfter: time.Minute},
				{Rule: rule("never", 3, 30*24*time.Hour, 0), Never: true, Remaining: 3},
				{Rule: rule("longer", 5, time.Second, 0), RetryAfter: 2 * time.Second},
			},
			`"never";r=3;t=0, "longer";r=0;t=2, "wait";r=0;t=2, "tight";r=2;t=1, "wide";r=7;t=0`,
			`"never";q=3;w=2592000, "longer";q=5;w=1, "wait";q=5;w=1, "tight";q=1;w=3, "wide";q=100;w=60`,
		},
		{ // two subjects of one rule: the tighter speaks
			[]ratelimit.Level{
				{Rule: rule("a", 10, time.Second, 0), Allowed: true, Remaining: 9},
				{Rule: rule("a", 10, time.Second, 0), Allowed: true, Remaining: 1},
			},
			`"a";r=1;t=0`, `"a";q=10;w=1`,
		},
		{ // at the bounds of the numbers
			[]ratelimit.Level{{Rule: rule("m", 1, ratelimit.MaxWindow, ratelimit.MaxQuota), Allowed: true, Remaining: ratelimit.MaxQuota}},
			`"m";r=1000000000000;t=0`, `"m";q=1000000000000`,
		},
		{
			[]ratelimit.Level{{Rule: rule("m", ratelimit.MaxQuota, time.Microsecond, 0), Allowed: true}},
			`"m";r=0;t=0`, `"m";q=1000000000000;w=1`,
		},
	} {
		limit, policy := rateFields(c.levels)
		if limit != c.limit || policy != c.policy {
			t.Errorf("have %s · %s\nwant %s · %s", limit, policy, c.limit, c.policy)
		}
		for _, v := range []string{limit, policy} {
			if _, err := httpsfv.UnmarshalList([]string{v}); err != nil && v != "" {
				t.Errorf("%s is not a List: %v", v, err)
			}
		}
	}
}

func TestRateFieldsAreMerged(t *testing.T) {
	ours := []ratelimit.Level{{Rule: ratelimit.Rule{Name: "client", Quota: 10, Window: time.Second}, Allowed: true, Remaining: 5}}
	for _, c := range []struct {
		limit, policy         []string // the handler's
		wantLimit, wantPolicy string
	}{
		{nil, nil, `"client";r=5;t=0`, `"client";q=10;w=1`},
		{[]string{`"up";r=3;t=9`}, []string{`"up";q=30;w=9`}, `"client";r=5;t=0, "up";r=3;t=9`, `"client";q=10;w=1, "up";q=30;w=9`},
		{[]string{`"up";r=3`, `"up2";r=4`}, nil, `"client";r=5;t=0, "up";r=3, "up2";r=4`, `"client";q=10;w=1`},
		{[]string{`up;r=3`}, nil, `"client";r=5;t=0, "up";r=3`, `"client";q=10;w=1`},
		// of one name the tighter stays
		{[]string{`"client";r=9;t=1`}, []string{`"client";q=99;w=1`}, `"client";r=5;t=0`, `"client";q=10;w=1`},
		{[]string{`"client";r=2;t=1`}, []string{`"client";q=4;w=1`}, `"client";r=2;t=1`, `"client";q=4;w=1`},
		// forms of earlier drafts, and nonsense, would spoil the field
		{[]string{`limit=10, remaining=5, reset=5`}, []string{"10;w=1"}, `"client";r=5;t=0`, `"client";q=10;w=1`},
		{[]string{`"open`}, nil, `"client";r=5;t=0`, `"client";q=10;w=1`},
	} {
		h := http.Header{}
		if c.limit != nil {
			h["Ratelimit"] = c.limit
		}
		if c.policy != nil {
			h["Ratelimit-Policy"] = c.policy
		}
		mergeRateFields(h, ours)
		if have := strings.Join(h["Ratelimit"], ", "); have != c.wantLimit {
			t.Errorf("%q: RateLimit is %s, want %s", c.limit, have, c.wantLimit)
		}
		if have := strings.Join(h["Ratelimit-Policy"], ", "); have != c.wantPolicy {
			t.Errorf("%q: RateLimit-Policy is %s, want %s", c.policy, have, c.wantPolicy)
		}
	}
}

// T5: 10 per second, bursts of 20.
func TestT5BurstThenRate(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Limits = []Limit{{Rule: ratelimit.Rule{Name: "client", Quota: 10, Window: time.Second, Burst: 20}, By: []string{"api_key"}}}
	})
	for i := range 20 {
		rep := r.do("GET", "/", "", "X-Api-Key", "a")
		if rep.status != 201 || rep.header.Get("RateLimit-Policy") != `"client";q=20;w=2` {
			t.Fatalf("%d: %d %v", i, rep.status, rep.header)
		}
		if want := fmt.Sprintf(`"client";r=%d;t=`, 19-i); !strings.HasPrefix(rep.header.Get("RateLimit"), want) {
			t.Fatalf("%d: RateLimit is %s", i, rep.header.Get("RateLimit"))
		}
	}
	rep := r.do("GET", "/", "", "X-Api-Key", "a")
	p := rep.problem(t, 429, "quota-exceeded")
	if p["retryable"] != true || fmt.Sprint(p["violated-policies"]) != "[client]" || rep.header.Get("Retry-After") != "1" ||
		rep.header.Get("RateLimit") != `"client";r=0;t=1` || rep.header.Get("RateLimit-Policy") != `"client";q=20;w=2` {
		t.Errorf("%v %v", p, rep.header)
	}
	r.do("GET", "/", "", "X-Api-Key", "b").want(t, 201, "{\"order_id\":21}\n")
	for range 5 {
		r.clock.move(time.Second)
		for range 10 {
			if rep := r.do("GET", "/", "", "X-Api-Key", "a"); rep.status != 201 {
				t.Fatal(rep)
			}
		}
		if rep := r.do("GET", "/", "", "X-Api-Key", "a"); rep.status != 429 {
			t.Fatal(rep)
		}
	}
}

// The source texts' Retry-After was the time to a full bucket. Ours is enough,
// and less than a second too much.
func TestFault07RetryAfterIsTheNextToken(t *testing.T) {
	var c counter
	for _, rule := range []ratelimit.Rule{
		{Name: "r", Quota: 10, Window: time.Second, Burst: 20},
		{Name: "r", Quota: 5, Window: time.Hour},
		{Name: "r", Quota: 7, Window: 10 * time.Second},
		{Name: "r", Algorithm: ratelimit.SlidingWindowLog, Quota: 3, Window: 90 * time.Second},
	} {
		r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) { c.Limits = []Limit{{Rule: rule}} })
		for range rule.Capacity() {
			if rep := r.do("GET", "/", ""); rep.status != 201 {
				t.Fatal(rep)
			}
		}
		r.clock.move(100 * time.Millisecond)
		for r.do("GET", "/", "").status == 201 {
			continue
		}
		n, err := strconv.Atoi(r.do("GET", "/", "").header.Get("Retry-After"))
		if err != nil || n < 1 {
			t.Fatal(n, err)
		}
		r.clock.move(time.Duration(n-1) * time.Second)
		if rep := r.do("GET", "/", ""); rep.status != 429 {
			t.Errorf("%+v: a second before Retry-After it passes", rule)
		}
		r.clock.move(time.Second)
		if rep := r.do("GET", "/", ""); rep.status != 201 {
			t.Errorf("%+v: Retry-After was not enough", rule)
		}
	}
}

func TestLimitThatCanNeverPass(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Limits = []Limit{
			{Rule: ratelimit.Rule{Name: "big", Quota: 5, Window: time.Minute}, Cost: 6},
			{Rule: ratelimit.Rule{Name: "ok", Quota: 5, Window: time.Minute}},
		}
	})
	rep := r.do("GET", "/", "")
	if p := rep.problem(t, 429, "quota-exceeded"); p["retryable"] != false || rep.header["Retry-After"] != nil || fmt.Sprint(p["violated-policies"]) != "[big]" {
		t.Errorf("%v %v", p, rep.header)
	}
}

func TestAllOrNothingNamesAllThatRefuse(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Limits = []Limit{
			{Rule: ratelimit.Rule{Name: "a", Quota: 2, Window: time.Minute}},
			{Rule: ratelimit.Rule{Name: "b", Quota: 1, Window: time.Second}, Routes: []string{"/b"}},
			{Rule: ratelimit.Rule{Name: "c", Quota: 9, Window: time.Second}},
		}
	})
	r.do("GET", "/b", "")
	rep := r.do("GET", "/b", "")
	if p := rep.problem(t, 429, "quota-exceeded"); fmt.Sprint(p["violated-policies"]) != "[b]" {
		t.Error(p)
	}
	r.do("GET", "/", "").want(t, 201, "{\"order_id\":2}\n") // b's refusal cost nothing of a
	rep = r.do("GET", "/b", "")
	if p := rep.problem(t, 429, "quota-exceeded"); fmt.Sprint(p["violated-policies"]) != "[a b]" || rep.header.Get("Retry-After") != "30" {
		t.Error(p, rep.header)
	}
	if have := rep.header.Get("RateLimit"); !strings.HasPrefix(have, `"a";r=0;t=30, "b";r=0;t=1, "c";r=`) {
		t.Errorf("RateLimit: %s", have)
	}
}

func TestReplaysCostOnlyRequests(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Limits = []Limit{
			{Rule: ratelimit.Rule{Name: "req", Quota: 4, Window: time.Hour}},
			{Rule: ratelimit.Rule{Name: "exec", Quota: 2, Window: time.Hour}, Kind: ratelimit.Executions},
		}
	})
	first := r.post("/x", "k", "{}")
	if have := first.header.Get("RateLimit"); !strings.HasPrefix(have, `"exec";r=1;`) || !strings.Contains(have, `"req";r=3;`) {
		t.Errorf("RateLimit: %s", have)
	}
	again := r.post("/x", "k", "{}")
	again.replayed(t, first)
	if have := again.header.Get("RateLimit"); !strings.HasPrefix(have, `"req";r=2;`) || strings.Contains(have, "exec") {
		t.Errorf("RateLimit: %s", have)
	}
	r.post("/x", "k2", "{}").want(t, 201, "{\"order_id\":2}\n")
	rep := r.post("/x", "k3", "{}")
	if p := rep.problem(t, 429, "quota-exceeded"); fmt.Sprint(p["violated-policies"]) != "[exec]" {
		t.Error(p)
	}
	if p := r.post("/x", "k", "{}").problem(t, 429, "quota-exceeded"); fmt.Sprint(p["violated-policies"]) != "[req]" {
		t.Error(p)
	}
	if c.calls() != 2 || r.recordCount() != 2 { // a 429 is never recorded
		t.Errorf("%d calls, %d records", c.calls(), r.recordCount())
	}
}

func TestRefusalsAreCharged(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Keys.Mode = Required
		c.MaxRequest = 10
		c.Limits = []Limit{{Rule: ratelimit.Rule{Name: "req", Quota: 4, Window: time.Hour}}}
	})
	r.do("POST", "/x", "{}").problem(t, 400, "idempotency-key-missing")
	r.post("/x", "a,b", "{}").problem(t, 400, "idempotency-key-malformed")
	r.post("/x", "k", "{}", "X-Tenant", "").problem(t, 400, "caller-unknown")
	rep := r.post("/x", "k", "0123456789ab")
	rep.problem(t, 413, "request-too-large")
	if !strings.HasPrefix(rep.header.Get("RateLimit"), `"req";r=0;`) {
		t.Error(rep.header)
	}
	r.post("/x", "k", "{}").problem(t, 429, "quota-exceeded")
}

func TestPreflightsAreNotLimited(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Limits = []Limit{{Rule: ratelimit.Rule{Name: "req", Quota: 1, Window: time.Hour}}}
	})
	for range 3 {
		rep := r.do("OPTIONS", "/x", "", "Origin", "https://a.example", "Access-Control-Request-Method", "POST")
		if rep.status != 201 || rep.header["Ratelimit"] != nil {
			t.Fatalf("%d %v", rep.status, rep.header)
		}
	}
	if rep := r.do("OPTIONS", "/x", "", "Origin", "https://a.example"); rep.status != 201 {
		t.Fatal(rep)
	}
	r.do("OPTIONS", "/x", "").problem(t, 429, "quota-exceeded")
}

func TestUpstreamsItemsStay(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("RateLimit", `"up";r=1;t=9`)
		w.Header().Set("RateLimit-Policy", `"up";q=2;w=9`)
	}, func(c *Config, _ *escapement.Options) {
		c.Limits = []Limit{{Rule: ratelimit.Rule{Name: "own", Quota: 9, Window: time.Second}}}
	})
	for _, rep := range []reply{r.do("GET", "/", ""), r.post("/", "k", "")} {
		limit, policy := strings.Join(rep.header["Ratelimit"], ", "), strings.Join(rep.header["Ratelimit-Policy"], ", ")
		if !strings.HasPrefix(limit, `"own";r=`) || !strings.HasSuffix(limit, `, "up";r=1;t=9`) || policy != `"own";q=9;w=1, "up";q=2;w=9` {
			t.Errorf("%s · %s", limit, policy)
		}
	}
	if rep := r.post("/", "k", ""); strings.Contains(strings.Join(rep.header["Ratelimit"], ", "), "up") {
		t.Errorf("the upstream's item was replayed: %v", rep.header)
	}
}
