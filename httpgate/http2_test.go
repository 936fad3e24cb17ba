package httpgate

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/ratelimit"
)

// The same promises over HTTP/2: replay with trailers, a flushed answer whose
// end waits, a cut that the client sees, a time-out while the client does not
// read.
func TestHTTP2(t *testing.T) {
	hang := make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/trailers":
			io.WriteString(w, strings.Repeat("x", 100_000))
			http.NewResponseController(w).Flush()
			w.Header().Set(http.TrailerPrefix+"X-Sum", "7")
		case "/broken":
			io.WriteString(w, "half")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/stuck":
			for range 32 {
				w.Write(make([]byte, 1<<20))
			}
			<-hang
		}
	}, func(c *Config, _ *escapement.Options) {
		c.Limits = []Limit{{Rule: ratelimit.Rule{Name: "all", Quota: 1_000_000, Window: time.Hour}}}
		c.Routes = map[string]KeyPolicy{"/stuck": {Policy: policyWith(func(p *escapement.Policy) { p.Timeout = 200 * time.Millisecond })}}
	})
	srv := httptest.NewUnstartedServer(r.srv.Config.Handler)
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = r.srv.Config.ErrorLog
	srv.StartTLS()
	defer srv.Close()
	defer close(hang)
	r.srv, r.client = srv, srv.Client()

	first, again := r.post("/trailers", "k", ""), r.post("/trailers", "k", "")
	again.replayed(t, first)
	for _, rep := range []reply{first, again} {
		if rep.trailer.Get("X-Sum") != "7" || rep.header.Get("RateLimit-Policy") != `"all";q=1000000;w=3600` || rep.header.Get(KeyField) != "k" {
			t.Error(rep.header, rep.trailer)
		}
	}
	if rep, err := r.try("POST", "/broken", nil, KeyField, "k"); err == nil && rep.err == nil {
		t.Errorf("the client has an answer: %d %q", rep.status, rep.body)
	}
	r.post("/broken", "k", "").problem(t, 409, "idempotency-outcome-unknown")

	req, err := http.NewRequest("POST", srv.URL+"/stuck", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Tenant", "acme")
	req.Header.Set(KeyField, "k")
	res, err := r.client.Do(req) // and its body is not read until it is too late
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	eventually(t, "the time-out is recorded", func() bool {
		rep := r.post("/stuck", "k", "", "Content-Type", "")
		return strings.Contains(rep.body, "idempotency-outcome-unknown")
	})
	if n, err := io.Copy(io.Discard, res.Body); err == nil {
		t.Errorf("%d bytes came as a whole", n)
	}
	if res.ProtoMajor != 2 {
		t.Errorf("this was HTTP/%d", res.ProtoMajor)
	}
}
