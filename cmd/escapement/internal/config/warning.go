package config

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// longWindow is where a burst of a whole window's quota is a surprise.
const longWindow = time.Hour

// Warnings are what is no fault and still worth a look.
func (c *Config) Warnings() []Fault {
	var w Faults
	warn := func(field, problem, write string) {
		w = append(w, Fault{Place: c.at(field), Field: field, Problem: problem, Write: write})
	}
	scoped := func(name string) bool {
		for _, t := range append([]Route{c.Default}, c.Routes...) {
			if t.Key != "off" && !slices.Contains(t.Scope, name) {
				return false
			}
		}
		return true
	}
	for _, s := range c.Identity.Tenant {
		name, plain := s.Header()
		switch {
		case plain && len(c.Identity.TrustedProxies) == 0 && !scoped("user"):
			warn("identity.tenant", fmt.Sprintf("the tenant comes from the plain field %s, no user is in the scope, and no proxy in front is named: "+
				"whoever sends another's tenant and key gets the stored answer", name),
				"identity.ip.trusted_proxies: [the proxy that sets the field], or a source that a client cannot choose, such as hash:Authorization")
		case s.String() == "hash:Authorization":
			warn("identity.tenant", "the tenant is the hash of Authorization: where its token is renewed, a repeat with the new one is another tenant's and runs again",
				"a source that stays the same while a client repeats")
		}
	}
	hasty := func(field string, t Route) bool {
		if t.Key == "off" || t.OnUnknown != "hold" || t.Quiet == nil || *t.Quiet >= t.Timeout {
			return false
		}
		warn(field, fmt.Sprintf("quiet is %s and shorter than timeout, %s: a key could be settled while its request is still on its way",
			FormatDuration(*t.Quiet), FormatDuration(t.Timeout)), "quiet: "+FormatDuration(t.Timeout)+", or no such line")
		return true
	}
	if !hasty("idempotency.quiet", c.Default) {
		for _, t := range c.Routes {
			hasty(join("idempotency.routes", t.Pattern)+".quiet", t)
		}
	}
	keys := c.Default.Key != "off"
	for _, t := range c.Routes {
		keys = keys || t.Key != "off"
	}
	bounded := slices.ContainsFunc(c.Limits, func(l Limit) bool { return l.Charge == "executions" })
	if keys && !bounded {
		warn("limits", "no limit counts executions: one tenant can fill the store with new keys",
			"limits: [{name: new-keys, by: [tenant], rate: 100000/d, charge: executions}]")
	}
	for i, l := range c.Limits {
		field := fmt.Sprintf("limits[%d]", i)
		if l.Rule.Algorithm == ratelimit.TokenBucket && l.Rule.Window >= longWindow && l.Rule.Capacity() >= l.Rule.Quota {
			warn(field+".rate", fmt.Sprintf("the burst is a whole window's number: up to %d can pass in the first %s, twice the rate",
				l.Rule.Capacity()+l.Rule.Quota, FormatDuration(l.Rule.Window)), "a smaller burst, or algorithm: sliding_window_log (up to 10000)")
		}
		for _, by := range l.By {
			if name, ok := strings.CutPrefix(by, "header:"); ok && len(c.Identity.TrustedProxies) == 0 {
				warn(field+".by", fmt.Sprintf("the subject is the plain field %s: a client that changes it has a new bucket", http.CanonicalHeaderKey(name)), "")
			}
		}
	}
	w.sort()
	return w
}
