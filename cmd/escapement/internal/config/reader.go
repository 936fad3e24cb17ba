package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// reader walks over a document and gathers faults.
type reader struct {
	file   string
	env    func(string) (string, bool)
	faults Faults
	places map[string]Place // of each field that is there, by its path
}

// value is a node with its field's path. A nil node stands for nothing.
type value struct {
	node  ast.Node
	place Place
	path  string
}

func (r *reader) fault(f Fault) { r.faults = append(r.faults, f) }

// bad reports a fault of v.
func (r *reader) bad(v value, problem, want, write string) {
	r.fault(Fault{Place: v.place, Field: v.path, Problem: problem, Want: want, Write: write})
}

// at returns where the field path stands, or the place of the nearest field
// around it, or the file's beginning.
func (r *reader) at(path string) Place { return nearestPlace(r.file, r.places, path) }

func nearestPlace(file string, places map[string]Place, path string) Place {
	for path != "" {
		if p, ok := places[path]; ok {
			return p
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			break
		}
		path = path[:i]
	}
	return Place{file, 1, 1}
}

func (r *reader) placeOf(n ast.Node) Place {
	p := Place{r.file, 1, 1}
	if n == nil {
		return p
	}
	// A mapping's own token is the colon of its first member.
	switch m := n.(type) {
	case *ast.MappingNode:
		if !m.IsFlowStyle && len(m.Values) > 0 {
			return r.placeOf(m.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return r.placeOf(m.Key)
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		p.Line, p.Column = max(1, t.Position.Line), max(1, t.Position.Column)
	}
	return p
}

// member is one name and value of a mapping.
type member struct {
	name string
	key  Place
	val  value
}

// members returns the members of a mapping, or reports why v is none. A name
// that is there twice is a fault; its first value counts.
func (r *reader) members(v value, want string) ([]member, bool) {
	var pairs []*ast.MappingValueNode
	switch n := r.plain(v).(type) {
	case *ast.MappingNode:
		pairs = n.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{n}
	case *ast.NullNode:
		r.bad(v, "has no value", want, "{}, or remove the line")
		return nil, false
	case nil:
		return nil, false
	default:
		r.bad(v, "is "+sort(n), want, "")
		return nil, false
	}
	out := make([]member, 0, len(pairs))
	first := map[string]Place{}
	for _, p := range pairs {
		key := value{node: p.Key, place: r.placeOf(p.Key), path: v.path}
		name, ok := r.name(key)
		if !ok {
			continue
		}
		if before, dup := first[name]; dup {
			r.fault(Fault{
				Place: key.place, Field: join(v.path, name),
				Problem: fmt.Sprintf("is there twice; the first is in line %d", before.Line), Want: "each name once",
			})
			continue
		}
		first[name] = key.place
		val := value{node: p.Value, place: r.placeOf(p.Value), path: join(v.path, name)}
		if _, null := p.Value.(*ast.NullNode); null {
			val.place = key.place
		}
		r.places[val.path] = val.place
		out = append(out, member{name, key.place, val})
	}
	return out, true
}

// join appends a member's name to a path; names that are no words in brackets.
func join(path, name string) string {
	for i := range len(name) {
		c := name[i]
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '_') {
			return fmt.Sprintf("%s[%q]", path, name)
		}
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// name reads a mapping's key.
func (r *reader) name(v value) (string, bool) {
	switch n := v.node.(type) {
	case *ast.StringNode:
		return unshield(n.Value), true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return unshield(n.GetToken().Value), true
	case *ast.MergeKeyNode:
		r.bad(v, "<< merges one mapping into another, which is not read here", "each field written out", "")
	default:
		r.bad(v, "a name is "+sort(n), "a plain name", "")
	}
	return "", false
}

// plain returns v's node without what YAML can wrap around it, all of which is
// a fault here: then it returns nil.
func (r *reader) plain(v value) ast.Node {
	switch n := v.node.(type) {
	case nil:
		r.bad(v, "has no value", "a value", "")
		return nil
	case *ast.AnchorNode, *ast.AliasNode:
		r.bad(v, "anchors and aliases are not read here", "the value written out", "")
		return nil
	case *ast.TagNode:
		r.bad(v, "tags are not read here", "the value alone", "")
		return nil
	default:
		return n
	}
}

// fields reads a mapping whose names are known: each name's function is called
// with its value.
func (r *reader) fields(v value, known map[string]func(value)) {
	ms, ok := r.members(v, "a mapping of fields")
	if !ok {
		return
	}
	for _, m := range ms {
		if f := known[m.name]; f != nil {
			f(m.val)
			continue
		}
		r.unknown(v.path, m, known)
	}
}

// elsewhere says in which section a name is, for those that are easily put
// into the wrong one.
var elsewhere = map[string]string{
	"ttl": "idempotency", "routes": "idempotency", "key": "idempotency", "lease": "idempotency", "timeout": "idempotency",
	"on_unknown": "idempotency", "scope": "idempotency", "max_answer": "idempotency", "fingerprint": "idempotency",
	"tenant": "identity", "user": "identity", "api_key": "identity", "ip": "identity", "trusted_proxies": "identity.ip",
	"drain": "server", "max_running": "server", "max_request": "server",
	"upstream": "the top level", "store": "the top level", "limiter": "the top level", "limits": "the top level",
	"identity": "the top level", "secret": "the top level",
}

func (r *reader) unknown(path string, m member, known map[string]func(value)) {
	names := make([]string, 0, len(known))
	for n := range known {
		names = append(names, n)
	}
	slices.Sort(names)
	f := Fault{Place: m.key, Field: m.val.path, Problem: "there is no such field", Want: "one of " + strings.Join(names, ", ")}
	if n := nearest(m.name, names); n != "" {
		f.Problem += fmt.Sprintf("; did you mean %s?", n)
		f.Want, f.Write = "", n+":"
	} else if s, ok := elsewhere[m.name]; ok && s != path {
		f.Problem += fmt.Sprintf(" here; %s is a field of %s", m.name, s)
		if s != "the top level" {
			f.Want, f.Write = "", s+": {"+m.name+": …}"
		}
	}
	r.fault(f)
}

// items returns the items of a sequence, or reports why v is none.
func (r *reader) items(v value, want string) ([]value, bool) {
	n := r.plain(v)
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		if n != nil {
			r.bad(v, "is "+sort(n), want, "")
		}
		return nil, false
	}
	out := make([]value, len(s.Values))
	for i, n := range s.Values {
		out[i] = value{node: n, place: r.placeOf(n), path: fmt.Sprintf("%s[%d]", v.path, i)}
		if n == nil {
			out[i].place = v.place
		}
		r.places[out[i].path] = out[i].place
	}
	return out, true
}

// sort says in words what a node is.
func sort(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.StringNode, *ast.LiteralNode:
		return "a text"
	}
	return "something else"
}
