package idempotency

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzFingerprint checks what holds for every body and every pair of options:
//
//   - no panic, and the same fingerprint again, in whatever pieces the body comes;
//   - what is read as JSON is JSON for encoding/json too, and what it writes of
//     it has the same fingerprint;
//   - what encoding/json takes and is not read is one of the uncertain cases;
//   - the normal form is JSON, and its own normal form.
func FuzzFingerprint(f *testing.F) {
	for _, body := range []string{
		"", "{}", "[]", "null", "1", "-0", "1e2", "100", "1.10", "1e1000000", "1e9999999999999999999", `"a"`, `"\ud83d\ude00"`, `"\ud83d"`, "\"\xff\"",
		`{"a":1,"b":[{"c":1,"d":2}]}`, `{"b":[{"d":2,"c":1}],"a":1.0}`, `{"a":1,"a":2}`, `{"a":1`, ` {"a" : "\u0041\/" }`, `{"":{"":{"":0}}}`,
		`{"meta":{"t":1,"k":2},"items":[0,1,2]}`, "a=1&b=2", "a=%41+%&b", strings.Repeat("[", 600), strings.Repeat("[", 512) + strings.Repeat("]", 512),
		`{"` + "\ufb33" + `":1,"😀":2,"€":3}`, `[1,2.50,-3e-7,0.0]`, string(orderBody()),
	} {
		f.Add([]byte(body), "/a", "a=1&b=2", "application/json", uint16(3))
		f.Add([]byte(body), "/meta/t", "", "application/x-www-form-urlencoded", uint16(1))
		f.Add([]byte(body), "/items/0", "b=%zz", "Text/JSON; charset=\"UTF-8\"; a=b", uint16(0))
	}
	f.Fuzz(func(t *testing.T, body []byte, pointer, query, contentType string, cut uint16) {
		printers := []*Printer{mustPrinter(t, PrintOptions{})}
		for _, o := range []PrintOptions{{Ignore: []string{pointer}, NoQuery: true}, {Only: []string{pointer}}} {
			if p, err := NewPrinter(o); err == nil {
				printers = append(printers, p)
			}
		}
		again := slices.Clone(body)
		for _, p := range printers {
			m := Meaning{Method: "POST", Path: "/p", RawQuery: query, ContentType: contentType}
			want := printOf(p, m, body)
			if !bytes.Equal(body, again) {
				t.Fatal("the body was changed")
			}
			at := min(int(cut), len(body))
			d := p.Begin(m)
			for _, piece := range [][]byte{body[:at], nil, body[at:]} {
				if n, err := d.Write(piece); n != len(piece) || err != nil {
					t.Fatalf("Write = %d, %v; want %d", n, err, len(piece))
				}
			}
			if d.Fingerprint() != want {
				t.Fatalf("cut at %d, another fingerprint", at)
			}
			if want.Tag != p.Tag() {
				t.Fatalf("the tag is %q, want %q", want.Tag, p.Tag())
			}
			checkJSONBody(t, p, body)
		}
	})
}

// checkJSONBody checks a printer's view of a body against encoding/json.
func checkJSONBody(t *testing.T, p *Printer, body []byte) {
	var d jsonDocument
	valid := json.Valid(body)
	if !d.parse(body) {
		if valid && len(body) <= PrintLimit && !uncertain(body) {
			t.Fatalf("%q is not read, and nothing is uncertain about it", body)
		}
		return
	}
	if !valid {
		t.Fatalf("%q is read, and encoding/json does not take it", body)
	}
	whole := d.appendNormal(nil, nil, nil)
	if !json.Valid(whole) {
		t.Fatalf("the normal form %q is not JSON", whole)
	}
	var second jsonDocument
	if !second.parse(whole) || !bytes.Equal(second.appendNormal(nil, nil, nil), whole) {
		t.Fatalf("the normal form of the normal form %q is another one", whole)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	spelt, err := json.MarshalIndent(v, " ", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if len(body) <= PrintLimit && len(spelt) <= PrintLimit && jsonPrint(p, string(body)) != jsonPrint(p, string(spelt)) {
		t.Fatalf("encoding/json spells %q as %q, and the fingerprint differs", body, spelt)
	}
	if jsonPrint(p, string(body)) == printOf(p, Meaning{Method: "POST", Path: "/v1/orders", ContentType: "application/json"}, append(slices.Clone(body), '!')) {
		t.Fatalf("%q has the fingerprint of broken JSON", body)
	}
}

// uncertain reports whether encoding/json is more lenient with a text than a
// fingerprint may be.
func uncertain(body []byte) bool {
	if !utf8.Valid(body) {
		return true
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	type level struct {
		names map[string]bool // nil in an array
		value bool            // a name was read
	}
	var levels []level
	for {
		token, err := dec.Token()
		if err != nil {
			return false // the end
		}
		top := len(levels) - 1
		name, isString := token.(string)
		if isString && strings.ContainsRune(name, utf8.RuneError) {
			return true // perhaps half a surrogate pair
		}
		if isString && top >= 0 && levels[top].names != nil && !levels[top].value {
			if levels[top].names[name] {
				return true
			}
			levels[top].names[name], levels[top].value = true, true
			continue
		}
		if n, ok := token.(json.Number); ok {
			if i := strings.IndexAny(string(n), "eE"); i >= 0 && len(strings.TrimLeft(string(n[i+1:]), "+-0")) > jsonExponent {
				return true
			}
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{names: map[string]bool{}})
		case json.Delim('['):
			levels = append(levels, level{})
		case json.Delim('}'), json.Delim(']'):
			levels = levels[:top]
			top--
			if top >= 0 {
				levels[top].value = false
			}
		default:
			if top >= 0 {
				levels[top].value = false
			}
		}
		if len(levels) > jsonDepth {
			return true
		}
	}
}
