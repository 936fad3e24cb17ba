package httpgate

import (
	"cmp"
	"math/bits"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/escapement-dev/escapement/ratelimit"
)

// Names of the fields of draft-ietf-httpapi-ratelimit-headers-08 and later.
const (
	rateLimitField       = "Ratelimit" // canonical in Go; case means nothing on the wire
	rateLimitPolicyField = "Ratelimit-Policy"
)

// appendPolicy appends rule's item of RateLimit-Policy: its capacity, and the
// time in which the whole capacity comes back.
func appendPolicy(b []byte, rule ratelimit.Rule) []byte {
	b = append(b, '"')
	b = append(b, rule.Name...) // of a-z, A-Z, 0-9, '.', '_', '-': needs no escapes
	b = append(b, `";q=`...)
	b = strconv.AppendInt(b, rule.Capacity(), 10)
	if w, ok := fullWindow(rule); ok {
		b = append(b, ";w="...)
		b = strconv.AppendInt(b, w, 10)
	}
	return b
}

// fullWindow is the time in whole seconds, rounded up, in which rule's whole
// capacity becomes available; false if it is out of all bounds.
func fullWindow(rule ratelimit.Rule) (int64, bool) {
	hi, lo := bits.Mul64(uint64(rule.Capacity()), uint64(rule.Window/time.Microsecond))
	unit := uint64(rule.Quota) * 1_000_000 // below 2^63: see ratelimit.MaxQuota
	if hi >= unit {
		return 0, false
	}
	q, rem := bits.Div64(hi, lo, unit)
	if rem > 0 {
		q++
	}
	return int64(max(q, 1)), q < 1<<49 // an Integer has 15 digits (RFC 9651, 3.3.1)
}

// appendLevel appends l's item of RateLimit. Its t is the time after which the
// refused cost can pass, so that it never contradicts Retry-After; or, of a
// level that passed, after which the whole capacity is back.
func appendLevel(b []byte, l ratelimit.Level) []byte {
	b = append(b, '"')
	b = append(b, l.Rule.Name...)
	b = append(b, `";r=`...)
	b = strconv.AppendInt(b, l.Remaining, 10)
	t := l.ResetAfter
	if !l.Allowed && !l.Never {
		t = l.RetryAfter
	}
	b = append(b, ";t="...)
	return strconv.AppendInt(b, seconds(t), 10)
}

// seconds rounds up.
func seconds(d time.Duration) int64 {
	return int64((max(d, 0) + time.Second - 1) / time.Second)
}

// rateFields returns the two fields' values for the levels of a request, ""
// for none. The tightest is first: those that refuse, by the longest wait,
// then the others by what remains. Of levels of one rule (several subjects)
// the tightest speaks for it.
func rateFields(levels []ratelimit.Level) (limit, policy string) {
	switch len(levels) {
	case 0:
		return "", ""
	case 1:
		var b [128]byte
		limit = string(appendLevel(b[:0], levels[0]))
		return limit, string(appendPolicy(b[:0], levels[0].Rule))
	}
	sorted := slices.Clone(levels)
	slices.SortStableFunc(sorted, func(a, b ratelimit.Level) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)),
			cmp.Compare(b.RetryAfter, a.RetryAfter),
			cmp.Compare(a.Remaining, b.Remaining),
		)
	})
	lb, pb := make([]byte, 0, 32*len(levels)), make([]byte, 0, 32*len(levels))
	for i, l := range sorted {
		if slices.ContainsFunc(sorted[:i], func(s ratelimit.Level) bool { return s.Rule.Name == l.Rule.Name }) {
			continue
		}
		if len(lb) > 0 {
			lb, pb = append(lb, ", "...), append(pb, ", "...)
		}
		lb, pb = appendLevel(lb, l), appendPolicy(pb, l.Rule)
	}
	return string(lb), string(pb)
}

func rank(l ratelimit.Level) int {
	switch {
	case l.Never:
		return 0
	case !l.Allowed:
		return 1
	}
	return 2
}

// mergeRateFields puts our items into h. What the handler said stays, before
// ours, if it is a structured List, as the fields are since draft 08; else it
// would spoil the whole field, and ours takes its place. An item of the
// handler's with the name of one of ours is left out where ours is tighter.
func mergeRateFields(h http.Header, levels []ratelimit.Level) {
	if len(levels) == 0 {
		return
	}
	if len(h[rateLimitField]) == 0 && len(h[rateLimitPolicyField]) == 0 {
		limit, policy := rateFields(levels)
		h[rateLimitField], h[rateLimitPolicyField] = []string{limit}, []string{policy}
		return
	}
	theirs, ok := parseItems(h[rateLimitField])
	policies, ok2 := parseItems(h[rateLimitPolicyField])
	if !ok || !ok2 {
		theirs, policies = nil, nil
	}
	ours := levels
	for _, l := range levels {
		name := l.Rule.Name
		i := slices.IndexFunc(theirs, func(it httpsfv.Item) bool { return it.Value == name })
		j := slices.IndexFunc(policies, func(it httpsfv.Item) bool { return it.Value == name })
		if i >= 0 {
			if r, ok := theirs[i].Params.Get("r"); ok && l.Allowed {
				if n, ok := r.(int64); ok && n < l.Remaining {
					ours = slices.DeleteFunc(slices.Clone(ours), func(o ratelimit.Level) bool { return o.Rule.Name == name })
					continue
				}
			}
			theirs = slices.Delete(theirs, i, i+1)
		}
		if j >= 0 {
			policies = slices.Delete(policies, j, j+1)
		}
	}
	limit, policy := rateFields(ours)
	h[rateLimitField] = join(theirs, limit)
	h[rateLimitPolicyField] = join(policies, policy)
}

// parseItems reads lines as a List of Items; false if they are anything else.
// No lines are an empty list.
func parseItems(lines []string) ([]httpsfv.Item, bool) {
	if len(lines) == 0 {
		return nil, true
	}
	list, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		return nil, false
	}
	var out []httpsfv.Item
	for _, m := range list {
		it, ok := m.(httpsfv.Item)
		if !ok {
			return nil, false
		}
		if tok, ok := it.Value.(httpsfv.Token); ok {
			it.Value = string(tok)
		}
		if _, ok := it.Value.(string); !ok {
			return nil, false // draft-03 to -07 had integers here
		}
		out = append(out, it)
	}
	return out, true
}

func join(theirs []httpsfv.Item, ours string) []string {
	var out []string
	if ours != "" {
		out = append(out, ours)
	}
	if len(theirs) > 0 {
		list := make(httpsfv.List, len(theirs))
		for i, it := range theirs {
			list[i] = it
		}
		if s, err := httpsfv.Marshal(list); err == nil {
			out = append(out, s)
		}
	}
	return out
}
