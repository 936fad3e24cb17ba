package config

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/escapement-dev/escapement/httpgate"
)

const sourceWant = "header:NAME, hash:NAME, cookie:NAME or const:VALUE"

func (r *reader) identity(v value, id *Identity) {
	r.fields(v, map[string]func(value){
		"tenant":  func(v value) { r.sources(v, &id.Tenant) },
		"user":    func(v value) { r.sources(v, &id.User) },
		"api_key": func(v value) { r.sources(v, &id.APIKey) },
		"plan":    r.absent,
		"jwks":    r.absent,
		"ip": func(v value) {
			r.fields(v, map[string]func(value){
				"trusted_proxies": func(v value) { r.prefixes(v, &id.TrustedProxies) },
				"ipv6_prefix":     func(v value) { r.number(v, 1, 128, &id.IPv6Prefix) },
			})
		},
		"missing": func(v value) { r.missing(v, id) },
	})
}

// sources reads one source, or a list of which the first that is present wins.
func (r *reader) sources(v value, into *httpgate.Sources) {
	items := []value{v}
	if sort(v.node) == "a list" {
		var ok bool
		if items, ok = r.items(v, sourceWant); !ok {
			return
		}
		if len(items) == 0 {
			r.bad(v, "is an empty list", sourceWant+", or a list of them", "")
			return
		}
	}
	var out httpgate.Sources
	for i, it := range items {
		t, ok := r.text(it, sourceWant)
		if !ok {
			continue
		}
		s, f := ParseSource(t.s)
		if f != nil {
			f.Place, f.Field = it.place, it.path
			r.fault(*f)
			continue
		}
		if strings.HasPrefix(t.s, "const:") && i < len(items)-1 {
			r.bad(it, "is always present: what stands behind it is never asked", "const: at the end of the list", "")
		}
		out = append(out, s)
	}
	*into = out
}

// ParseSource reads a source of identity; the fault has no place.
func ParseSource(s string) (httpgate.Source, *Fault) {
	kind, name, colon := strings.Cut(s, ":")
	kinds := []string{"header", "hash", "cookie", "const"}
	f := &Fault{Want: sourceWant}
	switch {
	case kind == "claim" && colon:
		f.Problem = "claim: " + later
		f.Want = ""
		f.Write = "header:NAME, a field that the authenticating proxy in front sets"
		return httpgate.Source{}, f
	case !colon && isFieldName(s):
		f.Problem = fmt.Sprintf("%q says no kind of source", s)
		f.Write = "header:" + s
		return httpgate.Source{}, f
	case !colon:
		f.Problem = "is not a source"
		return httpgate.Source{}, f
	}
	src, err := httpgate.ParseSource(s)
	if err == nil {
		return src, nil
	}
	for _, k := range kinds {
		if k == kind {
			f.Problem = fmt.Sprintf("%s: is followed by %q, which is no name", kind, name)
			return src, f
		}
	}
	f.Problem = fmt.Sprintf("%q is not a kind of source", kind)
	if n := nearest(kind, kinds); n != "" {
		f.Want, f.Write = "", n+":"+name
	}
	return src, f
}

func (r *reader) prefixes(v value, into *[]netip.Prefix) {
	const want = "a list of networks, such as [127.0.0.1/32, 10.0.0.0/8]"
	items, ok := r.items(v, want)
	if !ok {
		return
	}
	out := make([]netip.Prefix, 0, len(items))
	for _, it := range items {
		t, ok := r.text(it, want)
		if !ok {
			continue
		}
		p, err := netip.ParsePrefix(t.s)
		if err != nil {
			f := Fault{Place: it.place, Field: it.path, Problem: fmt.Sprintf("%q is not a network", t.raw), Want: "ADDRESS/BITS"}
			if a, err := netip.ParseAddr(t.s); err == nil && a.Zone() == "" {
				f.Write = fmt.Sprintf("%s/%d", a, a.BitLen())
			}
			r.fault(f)
			continue
		}
		if p != p.Masked() {
			r.bad(it, fmt.Sprintf("%q has bits after the network's", t.raw), "ADDRESS/BITS", p.Masked().String())
			continue
		}
		out = append(out, p)
	}
	*into = out
}

func (r *reader) missing(v value, id *Identity) {
	ms, ok := r.members(v, "a mapping, such as {api_key: ip}")
	if !ok {
		return
	}
	for _, m := range ms {
		name := m.name
		switch {
		case name == "tenant", name == "user", name == "api_key":
		case strings.HasPrefix(name, "header:") && isFieldName(name[len("header:"):]):
		default:
			r.fault(Fault{
				Place: m.key, Field: m.val.path, Problem: fmt.Sprintf("%q is no subject that can be missing", name),
				Want: "tenant, user, api_key or header:NAME",
			})
			continue
		}
		how := ""
		r.choice(m.val, []string{"ip", "refuse", "shared"}, nil, &how)
		if how != "" {
			id.Missing[name] = how
		}
	}
}
