package httpgate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// identity is an Identity made ready.
type identity struct {
	tenant, user, apiKey Sources
	trusted              []netip.Prefix
	prefix               int
	missing              map[string]Missing
}

func newIdentity(i Identity) (*identity, error) {
	id := &identity{
		tenant: i.Tenant, user: i.User, apiKey: i.APIKey,
		prefix: i.IPv6Prefix, missing: make(map[string]Missing),
	}
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if id.apiKey == nil {
		id.apiKey = MustSources(DefaultAPIKeySource)
	}
	for _, s := range slices.Concat(i.Tenant, i.User, i.APIKey) {
		if s.kind == fromNowhere {
			bad("a source is empty: see ParseSource")
		}
	}
	for _, p := range i.TrustedProxies {
		if !p.IsValid() {
			bad("a trusted proxy is not a prefix")
			continue
		}
		if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 { // addresses are compared as IPv4
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		id.trusted = append(id.trusted, p.Masked())
	}
	switch {
	case id.prefix == 0:
		id.prefix = DefaultIPv6Prefix
	case id.prefix < 0 || id.prefix > 128:
		bad("IPv6Prefix is %d: want 1 to 128", id.prefix)
	}
	for s, what := range i.Missing {
		name, header := entry(s)
		switch {
		case name == "tenant", name == "user", name == "api_key", header != "":
		default:
			bad("Missing has %q: want tenant, user, api_key or header:NAME", name)
		}
		if what > MissingShared {
			bad("Missing[%q] is %d: want MissingIP, MissingRefuse or MissingShared", name, what)
		}
		if _, ok := id.missing[name]; ok {
			bad("Missing has %q twice, in two spellings", name)
		}
		id.missing[name] = what
	}
	return id, errors.Join(faults...)
}
