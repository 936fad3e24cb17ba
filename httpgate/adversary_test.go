package httpgate

import (
	"net/http"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/ratelimit"
)

// All spellings of one path share the bucket of their route.
func TestSpellingsShareARoutesBucket(t *testing.T) {
	h := &counter{}
	r := newRig(t, h.ServeHTTP, func(c *Config, _ *escapement.Options) {
		c.Limits = []Limit{{
			Rule:   ratelimit.Rule{Name: "r", Quota: 1, Window: time.Hour},
			Routes: []string{"POST /v1/orders"}, By: []string{"route"},
		}}
	})
	if rep := r.do("POST", "/v1/orders", "{}"); rep.status != http.StatusCreated {
		t.Fatal(rep)
	}
	for _, p := range []string{
		"/v1/orders", "/v1//orders/", "/v1/orders/", "//v1/orders", "/v1/orders;x", "/v1/orders;x/", "/v1%2Forders/", "/v1/x/../orders/",
	} {
		r.do("POST", p, "{}").problem(t, http.StatusTooManyRequests, "quota-exceeded")
	}
}
