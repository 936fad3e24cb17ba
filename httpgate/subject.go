package httpgate

import (
	"slices"
	"strconv"
	"strings"
)

// TenantOf returns a function that says to which tenant a subject of one of the
// limits belongs: the tenant that its charge was made with, if the rule has
// tenant in By; "" for any other, and where the request did not say its tenant
// or the subject was too long to be kept as it is. It is for stores that keep
// what belongs to one tenant together. The rules' names are unique.
func TenantOf(limits []Limit) func(rule, subject string) string {
	at := map[string]int{} // the tenant's place in By
	for _, l := range limits {
		if i := slices.Index(l.By, "tenant"); i >= 0 {
			at[l.Rule.Name] = i
		}
	}
	return func(rule, subject string) string {
		i, ok := at[rule]
		if !ok {
			return ""
		}
		for ; ; i-- {
			mark, value, rest, ok := cutSubject(subject)
			switch {
			case !ok:
				return ""
			case i > 0:
				subject = rest
			case mark == markPresent:
				return value
			default:
				return ""
			}
		}
	}
}

// cutSubject takes the first part off what appendSubject has made.
func cutSubject(s string) (mark byte, value, rest string, ok bool) {
	if s == "" {
		return 0, "", "", false
	}
	length, rest, ok := strings.Cut(s[1:], ":")
	n, err := strconv.Atoi(length)
	if !ok || err != nil || n < 0 || n > len(rest) {
		return 0, "", "", false
	}
	return s[0], rest[:n], rest[n:], true
}
