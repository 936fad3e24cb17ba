package httpgate

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

func TestReplayFields(t *testing.T) {
	replayed := http.Header{
		"Location": {"/v1/orders/7"}, "Etag": {`"7"`}, "Link": {"</a>; rel=a", "</b>; rel=b", "</a>; rel=c"},
		"Content-Type": {"application/vnd.x+json"}, "Cache-Control": {"private"}, "Content-Language": {"de"},
		"Last-Modified": {"Tue, 06 May 2031 07:08:09 GMT"}, "X-Own": {""}, "Vary": {"Accept", "Origin"},
	}
	not := http.Header{
		"Set-Cookie": {"a=1", "b=2"}, "Age": {"3"}, "Www-Authenticate": {"Basic"}, "Proxy-Authenticate": {"Basic"},
		"Ratelimit": {`"up";r=1;t=1`}, "Ratelimit-Policy": {`"up";q=1;w=1`}, "Ratelimit-Limit": {"3"},
		"X-Ratelimit-Remaining": {"3"}, "Server-Timing": {"db;dur=53"}, "Traceparent": {"00-a"}, "Tracestate": {"a=b"},
		"Keep-Alive": {"timeout=5"}, "Upgrade": {"h2c"}, "X-Hop": {"1"}, "X-Drop-Me": {"secret"},
		"Date": {"Tue, 06 May 2031 07:08:09 GMT"},
	}
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		for _, h := range []http.Header{replayed, not} {
			for name, lines := range h {
				w.Header()[name] = lines
			}
		}
		w.Header().Set("Connection", "keep-alive, X-Hop")
		w.WriteHeader(201)
		io.WriteString(w, "\x00\xff{}")
	}, func(c *Config, _ *escapement.Options) { c.ReplayDrop = []string{"x-drop-me"} })
	first := r.post("/x", "k", "{}")
	again := r.post("/x", "k", "{}")
	again.replayed(t, first)
	for name, lines := range replayed {
		if fmt.Sprint(again.header[name]) != fmt.Sprint(lines) || fmt.Sprint(first.header[name]) != fmt.Sprint(lines) {
			t.Errorf("%s: first %q, replay %q, want %q", name, first.header[name], again.header[name], lines)
		}
	}
	for name := range not {
		if name == "Date" {
			if again.header.Get("Date") == not.Get("Date") {
				t.Error("the date of the first answer was replayed")
			}
			continue
		}
		if again.header[name] != nil {
			t.Errorf("%s was replayed: %q", name, again.header[name])
		}
		if first.header[name] == nil && name != "Keep-Alive" && name != "Upgrade" {
			t.Errorf("%s is not in the first answer", name)
		}
	}
	if again.header.Get("Content-Length") != "4" || first.header.Get("Content-Length") != "4" {
		t.Errorf("Content-Length: first %q, replay %q", first.header.Get("Content-Length"), again.header.Get("Content-Length"))
	}
}

func TestReplayRetryAfterAndCORS(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "120")
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		w.Header().Set("Access-Control-Expose-Headers", "X")
		w.WriteHeader(202)
	}, nil)
	r.post("/x", "k", "", "Origin", "https://a.example")
	r.clock.move(50 * time.Second)
	same := r.post("/x", "k", "", "Origin", "https://a.example")
	if same.header.Get("Access-Control-Allow-Origin") != "https://a.example" || same.header.Get("Retry-After") != "70" {
		t.Errorf("same origin: %v", same.header)
	}
	for _, fields := range [][]string{{"Origin", "https://b.example"}, nil} {
		for name := range r.post("/x", "k", "", fields...).header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%v: %s was replayed", fields, name)
			}
		}
	}
}

func TestFieldsOfOthersAreNotReplayed(t *testing.T) {
	n := 0
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.Header().Del("X-Removed")
		io.WriteString(w, "ok")
	}, nil)
	inner := r.srv.Config.Handler
	r.srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n++
		w.Header().Set("X-Outer", fmt.Sprint(n))
		w.Header().Set("X-Removed", "1")
		w.Header().Set("Vary", "Origin")
		inner.ServeHTTP(w, req)
	})
	first, again := r.post("/x", "k", ""), r.post("/x", "k", "")
	again.replayed(t, first)
	if first.header.Get("X-Outer") != "1" || again.header.Get("X-Outer") != "2" || first.header["X-Removed"] != nil {
		t.Errorf("first %v\nreplay %v", first.header, again.header)
	}
	for _, rep := range []reply{first, again} {
		if fmt.Sprint(rep.header["Vary"]) != "[Origin Accept]" {
			t.Errorf("Vary: %q", rep.header["Vary"])
		}
	}
}

func TestCorruptRecordIsNotRunAgain(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, nil)
	// The record is written as another version might have.
	req := httptest.NewRequest("POST", "/x", nil)
	req.Header.Set("X-Tenant", "acme")
	key, lacks, err := r.m.key(req, r.m.keys, "k")
	if err != nil || lacks != "" {
		t.Fatal(err)
	}
	ans, err := r.memory.Reserve(t.Context(), idempotency.Claim{Key: key, Owner: idempotency.NewOwner(), Terms: escapement.DefaultPolicy().Terms})
	if err != nil || ans.Outcome != idempotency.Started {
		t.Fatal(ans, err)
	}
	if err := r.memory.End(t.Context(), ans.Reservation, idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 299, Payload: []byte("rubbish")})); err != nil {
		t.Fatal(err)
	}
	if p := r.post("/x", "k", "{}").problem(t, 409, "idempotency-response-not-kept"); p["original_status"] != 299.0 {
		t.Error(p)
	}
	if c.calls() != 0 || !strings.Contains(r.logs.String(), "cannot be read") {
		t.Errorf("%d calls; log: %s", c.calls(), r.logs)
	}
}

func TestAnswerNotKept(t *testing.T) {
	const max = 1000
	sizes := map[string]int{"/fits": max, "/over": max + 1, "/streamed": 300_000}
	calls := 0
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.WriteHeader(202)
		io.WriteString(w, strings.Repeat("x", sizes[r.URL.Path]))
	}, func(c *Config, _ *escapement.Options) { c.Keys.MaxAnswer = max })
	for path, n := range sizes {
		calls = 0
		first := r.post(path, "k", "{}")
		first.want(t, 202, strings.Repeat("x", n))
		again := r.post(path, "k", "{}")
		if path == "/fits" {
			again.replayed(t, first)
		} else if p := again.problem(t, 409, "idempotency-response-not-kept"); p["original_status"] != 202.0 || p["retryable"] != false {
			t.Errorf("%s: %v", path, p)
		}
		if calls != 1 {
			t.Errorf("%s: %d calls", path, calls)
		}
	}
}

func TestArchivedAndExpired(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Routes = map[string]KeyPolicy{"/remembered": {Policy: policyWith(func(p *escapement.Policy) { p.Terms.Remember = time.Hour })}}
	})
	r.post("/x", "k", "{}").want(t, 201, "{\"order_id\":1}\n")
	r.post("/remembered", "k", "{}").want(t, 201, "{\"order_id\":2}\n")
	rep := r.post("/x", "k", "{}")
	if at, err := http.ParseTime(rep.header.Get(ExpiresField)); err != nil || !at.Equal(r.clock.now().Add(24*time.Hour)) {
		t.Errorf("%s is %q at %v", ExpiresField, rep.header.Get(ExpiresField), r.clock.now())
	}
	r.clock.move(24 * time.Hour)
	r.post("/remembered", "k", "{}").problem(t, 409, "idempotency-key-expired")
	r.post("/x", "k", "{}").want(t, 201, "{\"order_id\":3}\n")
}
