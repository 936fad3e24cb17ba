package config

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/escapement-dev/escapement/httpgate"
	"github.com/escapement-dev/escapement/ratelimit"
)

// Overrides are what flags and the environment say. An empty field says
// nothing.
type Overrides struct {
	Upstream, Listen, Admin, Tenant, Store, Limiter string
}

// Override applies o. The error is [Faults], whose places name the flags.
func (c *Config) Override(o Overrides) error {
	var faults Faults
	if c.places == nil {
		c.places = map[string]Place{}
	}
	apply := func(flag, field, s string, set func() *Fault) {
		if s == "" {
			return
		}
		c.places[field] = Place{File: flag}
		if f := set(); f != nil {
			f.Place = Place{File: flag}
			faults = append(faults, *f)
		}
	}
	apply("--upstream", "upstream", o.Upstream, func() *Fault {
		u, problem := ParseUpstream(o.Upstream)
		if problem != "" {
			return &Fault{Problem: problem, Want: "http://HOST:PORT or https://HOST", Write: fullUpstream(o.Upstream)}
		}
		c.Upstream = u
		return nil
	})
	address := func(s string, into *string) func() *Fault {
		return func() *Fault {
			if problem := checkAddress(s); problem != "" {
				return &Fault{Problem: problem, Want: "HOST:PORT, such as :8080", Write: fullAddress(s)}
			}
			*into = s
			return nil
		}
	}
	apply("--listen", "listen", o.Listen, address(o.Listen, &c.Listen))
	apply("--admin", "admin.listen", o.Admin, address(o.Admin, &c.Admin.Listen))
	apply("--tenant", "identity.tenant", o.Tenant, func() *Fault {
		s, f := ParseSource(o.Tenant)
		if f == nil {
			c.Identity.Tenant = httpgate.Sources{s}
		}
		return f
	})
	apply("--store", "store", o.Store, func() (f *Fault) { c.Store, f = ParseStore(o.Store); return f })
	apply("--limiter", "limiter", o.Limiter, func() (f *Fault) { c.Limiter, f = ParseLimiter(o.Limiter); return f })
	return faults.err()
}

// Complete reports what must be said and was not. The error is [Faults].
func (c *Config) Complete() error {
	var f Faults
	say := func(field, problem, want, inFile, flag string) {
		p := c.at(field)
		write := inFile
		if c.file == "" {
			write = flag
		}
		f = append(f, Fault{Place: p, Problem: problem, Want: want, Write: write})
	}
	if c.Upstream == nil {
		say("upstream", "the upstream is not said: where do requests go?", "",
			"upstream: http://127.0.0.1:3000", "--upstream http://127.0.0.1:3000")
	}
	if len(c.Identity.Tenant) == 0 {
		say("identity.tenant", "the tenant is not said: who is calling? Two tenants never share a key, and there is no default one",
			"header:NAME, hash:NAME, cookie:NAME, or const:NAME where there is only one",
			"identity: {tenant: header:X-Tenant-Id}", "--tenant header:X-Tenant-Id")
	}
	if c.Admin.Token == "" && !isLoopback(c.Admin.Listen) {
		say("admin.listen", "the admin listener is not on loopback ("+c.Admin.Listen+"), and has no token",
			"an address on loopback, or a token", `admin: {token: "${ESCAPEMENT_ADMIN_TOKEN}"}`,
			"--admin 127.0.0.1:8081, or -c FILE with admin: {token: …}")
	}
	if !c.Store.IsRedis() {
		for _, t := range append([]Route{c.Default}, c.Routes...) {
			if t.Confirm > 0 {
				field := "idempotency"
				if t.Pattern != "" {
					field = join("idempotency.routes", t.Pattern)
				}
				f = append(f, Fault{
					Place: c.at(field + ".confirm"), Field: field + ".confirm",
					Problem: "the store is " + c.Store.String() + ", which has no replicas that could confirm a write", Want: "a store in Redis, or no such line",
				})
				break // the routes inherit it
			}
		}
	}
	return append(f, c.limiterFaults()...).err()
}

// limiterFaults are the limits that the limiter cannot count.
func (c *Config) limiterFaults() (f Faults) {
	if !c.LimiterURL().IsPostgres() {
		return nil
	}
	for i, l := range c.Limits {
		if l.Rule.Algorithm == ratelimit.TokenBucket {
			continue
		}
		field := fmt.Sprintf("limits[%d].algorithm", i)
		f = append(f, Fault{
			Place: c.at(field), Field: field,
			Problem: fmt.Sprintf("the limiter is PostgreSQL, which counts token buckets only, and this is a %s", l.Rule.Algorithm),
			Want:    "a token_bucket, or the limiter in Redis or in memory",
			Write:   "algorithm: token_bucket, or limiter: redis://HOST:PORT",
		})
	}
	return f
}

// at returns where a field was said; see reader.at.
func (c *Config) at(field string) Place {
	file := c.file
	if file == "" {
		file = "serve"
	}
	p := nearestPlace(file, c.places, field)
	if c.file == "" && p.File == file {
		return Place{File: file}
	}
	return p
}

// isLoopback reports whether only this machine reaches the address.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}
