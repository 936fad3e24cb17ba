package httpgate

import (
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// clientIP returns the address of the client of r: that of the connection's
// peer, or, where the peer is trusted, the rightmost address of
// X-Forwarded-For that is not. What a client wrote there itself stands further
// left and is not believed. A peer that has no address (a Unix socket) is
// trusted if any proxy is. It is the zero Addr if nothing says an address.
func (id *identity) clientIP(r *http.Request) netip.Addr {
	var peer netip.Addr
	if ap, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		peer = ap.Addr()
	} else if a, err := netip.ParseAddr(r.RemoteAddr); err == nil {
		peer = a
	}
	peer = plain(peer)
	if len(id.trusted) == 0 || peer.IsValid() && !id.trusts(peer) {
		return peer
	}
	lines := r.Header["X-Forwarded-For"]
	client := peer
	for i := len(lines) - 1; i >= 0; i-- {
		rest := lines[i]
		for rest != "" {
			entry := rest
			if j := strings.LastIndexByte(rest, ','); j >= 0 {
				entry, rest = rest[j+1:], rest[:j]
			} else {
				rest = ""
			}
			a, ok := parseForwarded(strings.TrimSpace(entry))
			if !ok {
				return client // what stands left of nonsense is worth nothing
			}
			client = a
			if !id.trusts(a) {
				return client
			}
		}
	}
	return client
}

// parseForwarded reads one entry of X-Forwarded-For: an address, which some
// proxies write with a port or in brackets.
func parseForwarded(s string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")); err == nil {
		return plain(a), true
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return plain(ap.Addr()), true
	}
	return netip.Addr{}, false
}

// plain returns an IPv4-mapped address as IPv4, and none with a zone.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

func (id *identity) trusts(a netip.Addr) bool {
	for _, p := range id.trusted {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// ipSubject returns the part of the client's address that counts.
func (id *identity) ipSubject(r *http.Request) string {
	a := id.clientIP(r)
	if !a.IsValid() {
		return "?" + r.RemoteAddr
	}
	if a.Is4() {
		return a.String()
	}
	p, err := a.Prefix(id.prefix)
	if err != nil {
		return a.String()
	}
	return p.String()
}

// appendSubject appends one part of a subject: where it comes from, its
// length, and itself. So no two lists of parts give one subject, and a value
// never equals an address that takes a missing value's place.
func appendSubject(b []byte, mark byte, value string) []byte {
	b = append(b, mark)
	b = strconv.AppendInt(b, int64(len(value)), 10)
	b = append(b, ':')
	return append(b, value...)
}

// Marks of a subject's parts.
const (
	markPresent = '='
	markByIP    = '~' // the value is missing: its place is taken by the address
	markShared  = '!' // the value is missing: one bucket for all such
)
