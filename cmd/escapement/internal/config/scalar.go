package config

import (
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// text is a scalar: as it is written, and with ${NAME} replaced. Faults show
// what is written, so that nothing from the environment appears in them.
type text struct{ raw, s string }

// text reads a scalar.
func (r *reader) text(v value, want string) (text, bool) {
	var raw string
	switch n := r.plain(v).(type) {
	case nil:
		return text{}, false
	case *ast.StringNode:
		raw = n.Value
	case *ast.LiteralNode:
		raw = n.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		raw = n.GetToken().Value
	case *ast.NullNode:
		r.bad(v, "has no value", want, "")
		return text{}, false
	default:
		r.bad(v, "is "+sort(n), want, "")
		return text{}, false
	}
	raw = unshield(raw)
	s, ok := r.expand(v, raw)
	return text{raw, s}, ok
}

// expand replaces each ${NAME} by the environment's value.
func (r *reader) expand(v value, raw string) (string, bool) {
	var b strings.Builder
	ok := true
	for rest := raw; ; {
		i := strings.Index(rest, "${")
		if i < 0 {
			b.WriteString(rest)
			return b.String(), ok
		}
		b.WriteString(rest[:i])
		name, after, closed := strings.Cut(rest[i+2:], "}")
		if !closed || !isEnvName(name) {
			r.bad(v, "${ without a name and }", "${NAME}, a name of letters, digits and _", "")
			return "", false
		}
		val, set := r.env(name)
		if !set {
			r.bad(v, fmt.Sprintf("the environment variable %s is not set", name), "", "export "+name+"=… before the start")
			ok = false
		}
		b.WriteString(val)
		rest = after
	}
}

func isEnvName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || i > 0 && '0' <= c && c <= '9') {
			return false
		}
	}
	return s != ""
}

// later is the end of the sentence about what this version cannot do.
const later = "is not in this version"

// choice reads one of the words now; those of the list soon are known, but are
// not in this version.
func (r *reader) choice(v value, now, soon []string, into *string) {
	want := strings.Join(now, ", ")
	if len(now) > 1 {
		want = strings.Join(now[:len(now)-1], ", ") + " or " + now[len(now)-1]
	}
	t, ok := r.text(v, want)
	switch {
	case !ok:
	case slices.Contains(now, t.s):
		*into = t.s
	case slices.Contains(soon, t.s):
		r.bad(v, fmt.Sprintf("%q %s", t.raw, later), want, "")
	default:
		f := Fault{Place: v.place, Field: v.path, Problem: fmt.Sprintf("%q is none of its values", t.raw), Want: want}
		if n := nearest(t.s, now); n != "" {
			f.Write = lastName(v.path) + ": " + n
		}
		r.fault(f)
	}
}

// only accepts the one value that this version has, in words that say so.
func (r *reader) only(v value, standard string) {
	t, ok := r.text(v, standard)
	if ok && t.s != standard {
		r.bad(v, fmt.Sprintf("%q %s", t.raw, later), standard+" (the default), or no such line", "")
	}
}

// onlyDuration is only, for durations: 60s and 1m are the same.
func (r *reader) onlyDuration(v value, standard time.Duration) {
	t, ok := r.text(v, durationWant)
	if !ok {
		return
	}
	if d, err := ParseDuration(t.s); err != nil || d != standard {
		r.bad(v, fmt.Sprintf("%q %s", t.raw, later), FormatDuration(standard)+" (the default), or no such line", "")
	}
}

// absent reports a field that this version does not have at all.
func (r *reader) absent(v value) {
	r.fault(Fault{Place: v.place, Field: v.path, Problem: later, Want: "no such line"})
}

// empty accepts only an empty list or mapping.
func (r *reader) empty(v value) {
	switch n := r.plain(v).(type) {
	case nil:
	case *ast.MappingNode:
		if len(n.Values) > 0 {
			r.absent(v)
		}
	case *ast.SequenceNode:
		if len(n.Values) > 0 {
			r.absent(v)
		}
	default:
		r.absent(v)
	}
}

const (
	durationWant = "a whole number and a unit: ms, s, m, h or d, such as 30s or 7d"
	maxDuration  = 100 * 366 * 24 * time.Hour
)

var durationUnits = []struct {
	name string
	d    time.Duration
}{{"ms", time.Millisecond}, {"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour}}

// ParseDuration reads a duration of whole numbers with the units ms, s, m, h
// and d (24 hours), such as 90s, 7d or 1h30m. 0 needs no unit. The error says
// what is wrong, without the text itself.
func ParseDuration(s string) (time.Duration, error) {
	if s == "0" {
		return 0, nil
	}
	if s == "" {
		return 0, fmt.Errorf("is empty")
	}
	var total time.Duration
	for rest := s; rest != ""; {
		i := 0
		for i < len(rest) && '0' <= rest[i] && rest[i] <= '9' {
			i++
		}
		j := i
		for j < len(rest) && !('0' <= rest[j] && rest[j] <= '9') {
			j++
		}
		n, err := strconv.ParseInt(rest[:i], 10, 64)
		unit := time.Duration(0)
		for _, u := range durationUnits {
			if u.name == rest[i:j] {
				unit = u.d
			}
		}
		switch {
		case i == 0:
			return 0, fmt.Errorf("is not a duration")
		case j == i:
			return 0, fmt.Errorf("has no unit")
		case unit == 0:
			return 0, fmt.Errorf("has the unit %q", rest[i:j])
		case err != nil || n > int64(maxDuration/unit) || total+time.Duration(n)*unit > maxDuration:
			return 0, fmt.Errorf("is longer than 100 years")
		}
		total += time.Duration(n) * unit
		rest = rest[j:]
	}
	return total, nil
}

// FormatDuration writes d, in whole milliseconds, with the greatest unit that
// needs no fraction; ParseDuration reads it.
func FormatDuration(d time.Duration) string {
	for i := len(durationUnits) - 1; i >= 0; i-- {
		if u := durationUnits[i]; d >= u.d && d%u.d == 0 && !(u.name == "d" && d == u.d) {
			return strconv.FormatInt(int64(d/u.d), 10) + u.name
		}
	}
	return "0s"
}

// duration reads a duration between least and most.
func (r *reader) duration(v value, least, most time.Duration, into *time.Duration) {
	t, ok := r.text(v, durationWant)
	if !ok {
		return
	}
	d, err := ParseDuration(t.s)
	if err != nil {
		write := ""
		if n, e := strconv.Atoi(t.s); e == nil && n > 0 {
			write = fmt.Sprintf("%s: %ds", lastName(v.path), n)
		}
		r.bad(v, fmt.Sprintf("%q %v", t.raw, err), durationWant, write)
		return
	}
	if d < least || d > most {
		r.bad(v, t.raw+" is out of range", fmt.Sprintf("%s to %s", FormatDuration(least), FormatDuration(most)), "")
		return
	}
	*into = d
}

const sizeWant = "a whole number and a unit: B, KiB, MiB or GiB, such as 64KiB"

var sizeUnits = []struct {
	name string
	n    int64
}{{"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}

// ParseSize reads a size in bytes, such as 64KiB.
func ParseSize(s string) (int64, error) {
	i := 0
	for i < len(s) && '0' <= s[i] && s[i] <= '9' {
		i++
	}
	n, err := strconv.ParseInt(s[:i], 10, 64)
	for _, u := range sizeUnits {
		if u.name != s[i:] || i == 0 {
			continue
		}
		if err != nil || n > math.MaxInt64/u.n {
			return 0, fmt.Errorf("is too large")
		}
		return n * u.n, nil
	}
	if i == len(s) && i > 0 {
		return 0, fmt.Errorf("has no unit")
	}
	return 0, fmt.Errorf("is not a size")
}

// FormatSize writes n with the greatest unit that needs no fraction.
func FormatSize(n int64) string {
	for i := len(sizeUnits) - 1; i > 0; i-- {
		if u := sizeUnits[i]; n >= u.n && n%u.n == 0 {
			return strconv.FormatInt(n/u.n, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

func (r *reader) size(v value, least, most int64, into *int64) {
	t, ok := r.text(v, sizeWant)
	if !ok {
		return
	}
	n, err := ParseSize(t.s)
	if err != nil {
		r.bad(v, fmt.Sprintf("%q %v", t.raw, err), sizeWant, "")
		return
	}
	if n < least || n > most {
		r.bad(v, t.raw+" is out of range", fmt.Sprintf("%s to %s", FormatSize(least), FormatSize(most)), "")
		return
	}
	*into = n
}

func (r *reader) number(v value, least, most int64, into *int64) {
	want := fmt.Sprintf("a whole number from %d to %d", least, most)
	t, ok := r.text(v, want)
	if !ok {
		return
	}
	n, err := strconv.ParseInt(t.s, 10, 64)
	if err != nil || n < least || n > most {
		r.bad(v, fmt.Sprintf("%q is no such number", t.raw), want, "")
		return
	}
	*into = n
}

func (r *reader) truth(v value, into *bool) {
	s := ""
	r.choice(v, []string{"true", "false"}, nil, &s)
	if s != "" {
		*into = s == "true"
	}
}

// address reads host:port.
func (r *reader) address(v value, into *string) {
	const want = "HOST:PORT, such as :8080 or 127.0.0.1:8081"
	t, ok := r.text(v, want)
	if !ok {
		return
	}
	if err := checkAddress(t.s); err != "" {
		r.bad(v, fmt.Sprintf("%q %s", t.raw, err), want, "")
		return
	}
	*into = t.s
}

func checkAddress(s string) (problem string) {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return "is not an address"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return "has no port from 0 to 65535"
	}
	return ""
}

// lastName is the last name of a field's path.
func lastName(path string) string {
	if strings.HasSuffix(path, "]") {
		return path
	}
	return path[strings.LastIndexByte(path, '.')+1:]
}
