package config

import (
	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/httpgate"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// HTTP returns what c says to the middleware. The caller sets Gate, Hasher and
// Logger.
func (c *Config) HTTP() httpgate.Config {
	h := httpgate.Config{
		Identity: httpgate.Identity{
			Tenant:         c.Identity.Tenant,
			User:           c.Identity.User,
			APIKey:         c.Identity.APIKey,
			TrustedProxies: c.Identity.TrustedProxies,
			IPv6Prefix:     int(c.Identity.IPv6Prefix),
			Missing:        map[string]httpgate.Missing{},
		},
		Keys:        c.Default.policy(),
		Routes:      map[string]httpgate.KeyPolicy{},
		ProblemBase: c.ProblemBase,
		ReplayDrop:  c.ReplayDrop,
		MaxRequest:  c.Server.MaxRequest,
	}
	missing := map[string]httpgate.Missing{
		"ip": httpgate.MissingIP, "refuse": httpgate.MissingRefuse, "shared": httpgate.MissingShared,
	}
	for name, how := range c.Identity.Missing {
		h.Identity.Missing[name] = missing[how]
	}
	for _, t := range c.Routes {
		h.Routes[t.Pattern] = t.policy()
	}
	for _, l := range c.Limits {
		kind := ratelimit.Requests
		if l.Charge == "executions" {
			kind = ratelimit.Executions
		}
		h.Limits = append(h.Limits, httpgate.Limit{Rule: l.Rule, Routes: l.Routes, By: l.By, Kind: kind, Cost: l.Cost})
	}
	return h
}

func (r Route) policy() httpgate.KeyPolicy {
	p := httpgate.KeyPolicy{
		Scope: r.Scope,
		Print: r.Print,
		Policy: escapement.Policy{
			Terms: idempotency.Terms{
				Lease: r.Lease, Retention: r.TTL, Remember: r.Remember, Quiet: r.QuietTime(), OnUnknown: idempotency.Hold,
			},
			Timeout: r.Timeout,
		},
		MaxAnswer:       r.MaxAnswer,
		RetryableWindow: r.RetryWindow,
	}
	if r.OnUnknown == "retry" {
		p.Policy.Terms.OnUnknown = idempotency.Retry
	}
	if r.RetryWindow == 0 {
		p.RetryableWindow = -1 // there, 0 is the default
	}
	switch r.Key {
	case "required":
		p.Mode = httpgate.Required
	case "off":
		p.Mode = httpgate.Off
	}
	return p
}
