package httpgate

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"
)

// patterns finds the most specific of a set of patterns. It is nil if there
// are none.
type patterns struct{ mux *http.ServeMux }

var nowhere = http.NotFoundHandler()

// registered is the part of ServeMux's panic that names source lines, which
// say nothing here.
var registered = regexp.MustCompile(` \(registered at [^)]*\)|\n`)

// newPatterns returns the set of list, in which nothing is twice, and a fault
// for each that is no pattern or conflicts with an earlier one.
func newPatterns(list []string) (*patterns, error) {
	if len(list) == 0 {
		return nil, nil
	}
	p := &patterns{mux: http.NewServeMux()}
	var faults []error
	for _, s := range list {
		faults = append(faults, p.add(s))
	}
	return p, errors.Join(faults...)
}

func (p *patterns) add(s string) (err error) {
	if err := CheckPattern(s); err != nil {
		return err
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("pattern %q: %s", s, registered.ReplaceAllString(fmt.Sprint(v), " "))
		}
	}()
	p.mux.Handle(s, nowhere)
	return nil
}

// CheckPattern reports why s, though ServeMux accepts it, would never match a
// request here, so that its limit or policy would silently not apply. Methods
// are matched in capitals, hosts in small letters and without port or final
// dot, paths without query.
func CheckPattern(s string) error {
	rest := s
	if method, after, ok := strings.Cut(s, " "); ok {
		if method != strings.ToUpper(method) {
			return fmt.Errorf("pattern %q never matches: write the method as %s", s, strings.ToUpper(method))
		}
		rest = strings.TrimLeft(after, " \t")
	}
	host, route, _ := strings.Cut(rest, "/")
	if want := strings.TrimSuffix(strings.ToLower(hostname(host)), "."); host != "" && host != want {
		return fmt.Errorf("pattern %q never matches: write the host as %s", s, want)
	}
	if strings.ContainsAny(route, "?#") {
		return fmt.Errorf("pattern %q never matches: a path ends before ? and #", s)
	}
	return nil
}

// match returns the pattern that fits r, or "".
func (p *patterns) match(r *http.Request) string {
	if p == nil {
		return ""
	}
	_, s := p.mux.Handler(r)
	return s
}

// forms returns the requests that r may be taken for by an upstream that
// tidies what it receives; r itself, where it is tidy already. The first is r
// as it came; the others have its escapes decoded (%2F too), backslashes
// turned, path parameters (;v=1) dropped, dot segments and empty ones removed;
// the second has no slash at the end. In all of them the method is in capitals
// and the host in small letters, without a dot at its end.
//
// Rules are looked for under each form, so that no spelling of a path slips
// past the rule for it.
func forms(r *http.Request) []*http.Request {
	if tidy(r) {
		return []*http.Request{r}
	}
	form := func(u *url.URL) *http.Request {
		return &http.Request{
			Method: strings.ToUpper(r.Method), URL: u,
			Host: strings.TrimSuffix(strings.ToLower(hostname(r.Host)), "."),
		}
	}
	asked := r.URL.Path
	if !strings.HasPrefix(asked, "/") {
		asked = "/" + asked
	}
	out := []*http.Request{form(&url.URL{Path: asked, RawPath: r.URL.RawPath})}
	p := strings.ReplaceAll(asked, `\`, "/")
	if strings.Contains(p, ";") {
		segments := strings.Split(p, "/")
		for i, s := range segments {
			segments[i], _, _ = strings.Cut(s, ";")
		}
		p = strings.Join(segments, "/")
	}
	clean := path.Clean(p)
	if clean != asked || r.URL.RawPath != "" {
		out = append(out, form(&url.URL{Path: clean}))
	}
	if clean != "/" && strings.HasSuffix(p, "/") && (clean+"/" != asked || r.URL.RawPath != "") {
		out = append(out, form(&url.URL{Path: clean + "/"}))
	}
	return out
}

// hostname returns host without its port.
func hostname(host string) string {
	u := url.URL{Host: host}
	name := u.Hostname()
	if strings.Contains(name, ":") {
		return "[" + name + "]"
	}
	return name
}

// tidy reports whether every upstream reads r's method, host and path alike.
func tidy(r *http.Request) bool {
	for i := range len(r.Method) {
		if c := r.Method[i]; 'a' <= c && c <= 'z' {
			return false
		}
	}
	for i := range len(r.Host) {
		if c := r.Host[i]; 'A' <= c && c <= 'Z' {
			return false
		}
	}
	if strings.HasSuffix(r.Host, ".") || strings.Contains(r.Host, ".:") || r.URL.RawPath != "" {
		return false
	}
	p := r.URL.Path
	if p == "" || p[0] != '/' {
		return false
	}
	if len(p) > 1 && p[len(p)-1] == '/' {
		return false
	}
	for i := 1; i < len(p); i++ {
		switch p[i] {
		case ';', '\\':
			return false
		case '/', '.':
			if p[i-1] == '/' {
				return false
			}
		}
	}
	return true
}

// scopePath returns the path as it counts in a key's scope: escaped, with
// escapes only where they are needed and in capitals (RFC 3986, 6.2.2), without
// empty and dot segments, and without a slash at the end. An escaped slash
// stays one. So the spellings that an upstream may take for one path share
// their keys; where they are different operations after all, the fingerprint,
// which has the path as it came, says so.
func scopePath(r *http.Request) string {
	escaped := r.URL.EscapedPath()
	if tidy(r) {
		return escaped
	}
	segments := strings.Split(escaped, "/")
	for i, s := range segments {
		if v, err := url.PathUnescape(s); err == nil {
			segments[i] = url.PathEscape(v)
		}
	}
	return path.Clean("/" + strings.Join(segments, "/"))
}
