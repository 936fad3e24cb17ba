package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

const rateWant = "N/s, N/m, N/h, N/d, or N per a time such as N/30s or N/30d"

// ParseRate reads a rate: so many per window.
func ParseRate(s string) (quota int64, window time.Duration, err error) {
	n, per, ok := strings.Cut(s, "/")
	if !ok {
		return 0, 0, fmt.Errorf("is not a rate")
	}
	quota, err = strconv.ParseInt(n, 10, 64)
	if err != nil || strconv.FormatInt(quota, 10) != n {
		return 0, 0, fmt.Errorf("has no whole number before the /")
	}
	if quota < 1 || quota > ratelimit.MaxQuota {
		return 0, 0, fmt.Errorf("has a number that is not from 1 to %d", int64(ratelimit.MaxQuota))
	}
	switch per {
	case "s", "m", "h", "d":
		per = "1" + per
	}
	window, err = ParseDuration(per)
	if err != nil || window%time.Second != 0 {
		return 0, 0, fmt.Errorf("has no time after the /")
	}
	if window < time.Second || window > ratelimit.MaxWindow {
		return 0, 0, fmt.Errorf("has a time that is not from 1s to %s", FormatDuration(ratelimit.MaxWindow))
	}
	return quota, window, nil
}

// FormatRate writes what ParseRate reads.
func FormatRate(quota int64, window time.Duration) string {
	for _, u := range durationUnits[1:] {
		if window == u.d {
			return strconv.FormatInt(quota, 10) + "/" + u.name
		}
	}
	return strconv.FormatInt(quota, 10) + "/" + FormatDuration(window)
}

func (r *reader) limits(v value, c *Config) {
	items, ok := r.items(v, "a list, such as [{name: client, by: [api_key], rate: 10/s}]")
	if !ok {
		return
	}
	names := map[string]Place{}
	for _, it := range items {
		faults := len(r.faults)
		l := r.limit(it)
		if before, dup := names[l.Rule.Name]; dup && l.Rule.Name != "" {
			r.fault(Fault{
				Place: r.at(it.path + ".name"), Field: it.path + ".name",
				Problem: fmt.Sprintf("%q is also the name of the limit in line %d", l.Rule.Name, before.Line), Want: "a name of its own",
			})
		}
		names[l.Rule.Name] = r.at(it.path + ".name")
		if len(r.faults) == faults {
			c.Limits = append(c.Limits, l)
		}
	}
}

func (r *reader) limit(v value) Limit {
	l := Limit{Routes: []string{"/"}, By: []string{"api_key"}, Cost: 1, Charge: "requests", OnUnavailable: "local", LocalShare: 1}
	if k := sort(v.node); k != "a mapping" {
		r.bad(v, "is "+k, "a mapping, such as {name: client, by: [api_key], rate: 10/s}", "")
		return l
	}
	faults := len(r.faults)
	algorithm, enforce := "token_bucket", ""
	r.fields(v, map[string]func(value){
		"name":   func(v value) { r.limitName(v, &l.Rule.Name) },
		"routes": func(v value) { r.limitRoutes(v, &l.Routes) },
		"by":     func(v value) { r.by(v, &l.By) },
		"algorithm": func(v value) {
			r.choice(v, []string{"token_bucket", "sliding_window_log"}, []string{"sliding_window_counter", "concurrency"}, &algorithm)
		},
		"rate":  func(v value) { r.rate(v, &l.Rule) },
		"burst": func(v value) { r.number(v, 1, ratelimit.MaxQuota, &l.Rule.Burst) },
		"max":   r.absent,
		"cost": func(v value) {
			if t, ok := r.text(v, "a whole number"); ok && strings.HasPrefix(t.s, "header:") {
				r.bad(v, fmt.Sprintf("%q %s", t.raw, later), "a whole number", "")
				return
			} else if !ok {
				return
			}
			r.number(v, 1, ratelimit.MaxQuota, &l.Cost)
		},
		"charge":         func(v value) { r.choice(v, []string{"requests", "executions"}, nil, &l.Charge) },
		"mode":           func(v value) { r.choice(v, []string{"enforce"}, []string{"shadow"}, &enforce) },
		"on_unavailable": func(v value) { r.choice(v, []string{"local", "open", "closed"}, nil, &l.OnUnavailable) },
		"local_share":    func(v value) { r.share(v, &l.LocalShare) },
		"jitter":         func(v value) { r.onlyDuration(v, 0) },
	})
	if _, there := r.places[v.path+".name"]; !there {
		r.bad(v, "the limit has no name", "a name, which stands in answers and in metrics", "name: client")
	}
	if _, there := r.places[v.path+".rate"]; !there {
		r.bad(v, "the limit has no rate", rateWant, "rate: 10/s")
	}
	if l.OnUnavailable != "local" && l.LocalShare != 1 {
		r.fault(Fault{
			Place: r.at(v.path + ".local_share"), Field: v.path + ".local_share",
			Problem: "counts only with on_unavailable: local, and that is " + l.OnUnavailable, Want: "no such line",
		})
	}
	if algorithm == "sliding_window_log" {
		l.Rule.Algorithm = ratelimit.SlidingWindowLog
		if l.Rule.Burst != 0 {
			r.fault(Fault{
				Place: r.at(v.path + ".burst"), Field: v.path + ".burst",
				Problem: "a sliding_window_log has no burst: it never admits more than its rate's number in any window", Want: "no such line",
			})
		}
		if l.Rule.Quota > ratelimit.MaxLogQuota {
			r.fault(Fault{
				Place: r.at(v.path + ".rate"), Field: v.path + ".rate",
				Problem: fmt.Sprintf("a sliding_window_log remembers each request, and %d are too many", l.Rule.Quota),
				Want:    fmt.Sprintf("at most %d; above, a token_bucket (sliding_window_counter %s)", ratelimit.MaxLogQuota, later),
			})
		}
		if l.Cost != 1 {
			r.fault(Fault{
				Place: r.at(v.path + ".cost"), Field: v.path + ".cost",
				Problem: "a sliding_window_log counts each request once", Want: "no such line, or a token_bucket",
			})
		}
	}
	if l.Rule.Quota > 0 && len(r.faults) == faults {
		if err := l.Rule.Validate(); err != nil {
			r.bad(v, err.Error(), "", "")
		}
		if l.Cost > l.Rule.Capacity() {
			r.fault(Fault{
				Place: r.at(v.path + ".cost"), Field: v.path + ".cost",
				Problem: fmt.Sprintf("a cost of %d can never pass: the capacity is %d", l.Cost, l.Rule.Capacity()),
				Write:   fmt.Sprintf("burst: %d", l.Cost),
			})
		}
	}
	return l
}

// share reads a part of a limit.
func (r *reader) share(v value, into *float64) {
	const want = "a number above 0 and up to 1, such as 0.25 on four nodes"
	t, ok := r.text(v, want)
	if !ok {
		return
	}
	f, err := strconv.ParseFloat(t.s, 64)
	if err != nil || !(f >= 0.000001 && f <= 1) { // also what is no number
		r.bad(v, fmt.Sprintf("%q is no such number", t.raw), want, "")
		return
	}
	*into = f
}

func (r *reader) limitName(v value, into *string) {
	const want = "1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'"
	t, ok := r.text(v, want)
	if !ok {
		return
	}
	good := len(t.s) >= 1 && len(t.s) <= 64
	for i := range len(t.s) {
		c := t.s[i]
		good = good && ('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-')
	}
	if !good {
		r.bad(v, fmt.Sprintf("%q is not a limit's name", t.raw), want, "")
		return
	}
	*into = t.s
}

func (r *reader) limitRoutes(v value, into *[]string) {
	items, ok := r.items(v, "a list of patterns, such as [GET /search]")
	if !ok {
		return
	}
	if len(items) == 0 {
		r.bad(v, "is an empty list: the limit would never apply", "a list of patterns; [/] is every request", "")
		return
	}
	var out []string
	for _, it := range items {
		t, ok := r.text(it, patternWant)
		if !ok {
			continue
		}
		if problem := patternProblem(t.s); problem != "" {
			r.bad(it, fmt.Sprintf("%q %s", t.raw, problem), patternWant, "")
			continue
		}
		out = append(out, t.s)
	}
	*into = out
}

func (r *reader) by(v value, into *[]string) {
	const want = "a list of tenant, user, api_key, ip, route and header:NAME; [] is one bucket for all"
	items, ok := r.items(v, want)
	if !ok {
		return
	}
	known := []string{"tenant", "user", "api_key", "ip", "route"}
	out := []string{}
	for _, it := range items {
		t, ok := r.text(it, want)
		if !ok {
			continue
		}
		header := strings.HasPrefix(t.s, "header:") && isFieldName(t.s[len("header:"):])
		switch {
		case !header && !slices.Contains(known, t.s):
			f := Fault{Place: it.place, Field: it.path, Problem: fmt.Sprintf("%q is no subject", t.raw), Want: want}
			if n := nearest(t.s, known); n != "" {
				f.Want, f.Write = "", n
			}
			r.fault(f)
		case slices.Contains(out, t.s):
			r.bad(it, fmt.Sprintf("%q is there twice", t.raw), "each subject once", "")
		default:
			out = append(out, t.s)
		}
	}
	*into = out
}

func (r *reader) rate(v value, rule *ratelimit.Rule) {
	t, ok := r.text(v, rateWant)
	if !ok {
		return
	}
	quota, window, err := ParseRate(t.s)
	if err != nil {
		f := Fault{Place: v.place, Field: v.path, Problem: fmt.Sprintf("%q %v", t.raw, err), Want: rateWant}
		if n, e := strconv.ParseInt(t.s, 10, 64); e == nil && n > 0 {
			f.Write = fmt.Sprintf("rate: %d/s", n)
		}
		r.fault(f)
		return
	}
	rule.Quota, rule.Window = quota, window
}
