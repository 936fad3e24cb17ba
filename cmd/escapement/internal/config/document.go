package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxFile is the greatest size of a configuration, in bytes.
const maxFile = 1 << 20

// parse returns the document's top node, or nil if it is empty. On a fault it
// returns false.
func (r *reader) parse(data []byte) (top ast.Node, ok bool) {
	first := Place{r.file, 1, 1}
	if len(data) > maxFile {
		r.fault(Fault{Place: first, Problem: fmt.Sprintf("the file has %d bytes", len(data)), Want: fmt.Sprintf("at most %d", maxFile)})
		return nil, false
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if p, problem := badByte(data); problem != "" {
		p.File = r.file
		r.fault(Fault{Place: p, Problem: problem, Want: "a text in UTF-8"})
		return nil, false
	}
	if p, deep := tooDeep(data); deep {
		p.File = r.file
		r.fault(Fault{Place: p, Problem: "brackets are nested too deep", Want: fmt.Sprintf("at most %d levels", maxDepth)})
		return nil, false
	}
	// The parser is not ours: a panic of it is a fault of the file.
	defer func() {
		if p := recover(); p != nil {
			r.fault(Fault{Place: first, Problem: "the file cannot be read as YAML"})
			top, ok = nil, false
		}
	}()
	file, err := parser.ParseBytes(shield(data), 0, parser.AllowDuplicateMapKey())
	if err != nil {
		r.syntax(data, err)
		return nil, false
	}
	docs := 0
	for _, d := range file.Docs {
		if d.Body == nil {
			continue
		}
		switch d.Body.(type) {
		case *ast.DirectiveNode, *ast.CommentGroupNode:
			continue
		}
		docs++
		if docs > 1 {
			r.fault(Fault{Place: r.placeOf(d.Body), Problem: "a second document", Want: "one document in a file"})
			return nil, false
		}
		top = d.Body
	}
	return top, true
}

// syntax reports an error of the parser, with the reason that is most common
// in this file's values where it is that.
func (r *reader) syntax(data []byte, err error) {
	f := Fault{Place: Place{r.file, 1, 1}, Problem: "not valid YAML"}
	var s *yaml.SyntaxError
	if errors.As(err, &s) {
		f.Problem = "not valid YAML: " + unshield(s.Message)
		if s.Token != nil && s.Token.Position != nil {
			f.Place.Line, f.Place.Column = max(1, s.Token.Position.Line), max(1, s.Token.Position.Column)
		}
	}
	if p, word := bareBrace(data); p.Line != 0 && p.Line <= f.Place.Line {
		p.File = r.file
		f = Fault{
			Place:   p,
			Problem: "inside {…} or […], a value or a name with { in it needs quotes",
			Write:   `"` + word + `"`,
		}
	}
	r.fault(f)
}

// maxDepth bounds the nesting of flow style, so that no file exhausts the stack.
const maxDepth = 64

// scan walks over data as far as flow style goes: it skips quoted text and
// comments, and calls f with each other byte, the depth of brackets before it,
// and whether it is inside a plain word.
func scan(data []byte, f func(i, depth int, inWord bool) bool) {
	depth, word, quote := 0, false, byte(0)
	for i := 0; i < len(data); i++ {
		c := data[i]
		if quote != 0 {
			switch {
			case c == '\\' && quote == '"':
				i++
			case c == quote:
				quote = 0
			}
			continue
		}
		blank := i == 0 || data[i-1] == ' ' || data[i-1] == '\n' || data[i-1] == '\t' || data[i-1] == '\r'
		switch {
		case (c == '"' || c == '\'') && !word:
			quote = c
			continue
		case c == '#' && blank:
			for i+1 < len(data) && data[i+1] != '\n' {
				i++
			}
			continue
		}
		if !f(i, depth, word) {
			return
		}
		switch c {
		case '{', '[':
			if !word || depth > 0 {
				depth++
				word = false
			}
		case '}', ']':
			if depth > 0 {
				depth--
				word = false
			}
		case ',':
			word = word && depth == 0
		case ':':
			// A colon before white space ends a name; else it is part of a word.
			if i+1 == len(data) || strings.IndexByte(" \n\t\r", data[i+1]) >= 0 {
				word = false
			}
		case '\n':
			word = false
		case ' ', '\t', '\r':
		case '-', '?':
			if i+1 < len(data) && data[i+1] != ' ' {
				word = true
			}
		default:
			word = true
		}
	}
}

// bareBrace finds the first plain word in flow style that has a { in it, which
// YAML reads as the start of a mapping.
func bareBrace(data []byte) (Place, string) {
	at := -1
	scan(data, func(i, depth int, word bool) bool {
		if data[i] == '{' && depth > 0 && word {
			at = i
			return false
		}
		return true
	})
	if at < 0 {
		return Place{}, ""
	}
	start := at
	for start > 0 && strings.IndexByte("{[,\n\"'", data[start-1]) < 0 &&
		!(data[start-1] == ' ' && start > 1 && data[start-2] == ':') {
		start--
	}
	for start < at && data[start] == ' ' {
		start++
	}
	end, open := at, 0
	for end < len(data) && data[end] != '\n' && !(open == 0 && strings.IndexByte(",]}", data[end]) >= 0) &&
		!(open == 0 && data[end] == ':' && end+1 < len(data) && data[end+1] == ' ') {
		switch data[end] {
		case '{':
			open++
		case '}':
			open--
		}
		end++
	}
	return placeAt(data, start), strings.TrimSpace(string(data[start:end]))
}

// colon stands for a colon inside a plain word of flow style while the parser
// looks at it: inside {…} it reads [header:A] as a mapping, which YAML does not
// (YAML 1.2.2, section 7.3.3: a colon is an indicator only before white space
// or a flow indicator). The character is for private use and one column wide.
const colon = "\ue000"

// shield replaces such colons; unshield brings them back.
func shield(data []byte) []byte {
	out := make([]byte, 0, len(data))
	from := 0
	scan(data, func(i, depth int, word bool) bool {
		if depth > 0 && data[i] == ':' && i+1 < len(data) && strings.IndexByte(" \n\t\r,[]{}\"'", data[i+1]) < 0 &&
			(word || data[i-1] != '"' && data[i-1] != '\'') {
			out = append(append(out, data[from:i]...), colon...)
			from = i + 1
		}
		return true
	})
	return append(out, data[from:]...)
}

func unshield(s string) string { return strings.ReplaceAll(s, colon, ":") }

func tooDeep(data []byte) (p Place, deep bool) {
	// Lists in lists, and the like, also nest without brackets: - - - a.
	for at := 0; at < len(data); {
		end := bytes.IndexByte(data[at:], '\n')
		if end < 0 {
			end = len(data) - at
		}
		n := 0
		for _, w := range bytes.Fields(data[at : at+end]) {
			if strings.IndexByte("-?:!&", w[0]) < 0 {
				break
			}
			if n++; n > maxDepth {
				return placeAt(data, at), true
			}
		}
		at += end + 1
	}
	scan(data, func(i, depth int, _ bool) bool {
		if depth > maxDepth {
			p, deep = placeAt(data, i), true
		}
		return !deep
	})
	return p, deep
}

// badByte finds the first byte that no configuration has.
func badByte(data []byte) (Place, string) {
	for i := 0; i < len(data); {
		c, n := utf8.DecodeRune(data[i:])
		switch {
		case c == utf8.RuneError && n <= 1:
			return placeAt(data, i), fmt.Sprintf("the byte 0x%02x is not UTF-8", data[i])
		case c == []rune(colon)[0]:
			return placeAt(data, i), "a character for private use"
		case c < 0x20 && c != '\n' && c != '\t' && c != '\r', c == 0x7f:
			return placeAt(data, i), fmt.Sprintf("the control character 0x%02x", c)
		}
		i += n
	}
	return Place{}, ""
}

func placeAt(data []byte, i int) Place {
	before := data[:i]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return Place{Line: line, Column: column}
}
