package idempotency

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
)

// printCase is one request of testdata/fingerprints.json.
type printCase struct {
	Method      string            `json:"method"`
	Path        string            `json:"path"`
	Query       string            `json:"query"`
	ContentType string            `json:"content_type"`
	Headers     map[string]string `json:"headers"`
	Body        []byte            `json:"body_base64"`
}

func (c printCase) print(p *Printer) Fingerprint {
	h := http.Header{}
	for k, v := range c.Headers {
		h.Set(k, v)
	}
	return printOf(p, Meaning{Method: c.Method, Path: c.Path, RawQuery: c.Query, ContentType: c.ContentType, Header: h.Values}, c.Body)
}

func printOf(p *Printer, m Meaning, body []byte) Fingerprint {
	d := p.Begin(m)
	d.Write(body) // fails only after Fingerprint
	return d.Fingerprint()
}

func jsonPrint(p *Printer, body string) Fingerprint {
	return printOf(p, Meaning{Method: "POST", Path: "/v1/orders", ContentType: "application/json"}, []byte(body))
}

func mustPrinter(t testing.TB, o PrintOptions) *Printer {
	t.Helper()
	p, err := NewPrinter(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestFingerprintVectors runs the pairs of testdata, but those that need the
// fields of multipart/form-data.
func TestFingerprintVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/fingerprints.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		About string `json:"about"`
		Cases []struct {
			Name    string    `json:"name"`
			Equal   bool      `json:"equal"`
			A       printCase `json:"a"`
			B       printCase `json:"b"`
			Options struct {
				Ignore  []string `json:"ignore"`
				Only    []string `json:"only"`
				Headers []string `json:"headers"`
				Query   *bool    `json:"query"`
				Stage   string   `json:"stage"`
			} `json:"options"`
		} `json:"cases"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		t.Fatal(err)
	}
	run, later := 0, 0
	for _, c := range file.Cases {
		if c.Options.Stage == "contract" {
			later++
			continue
		}
		run++
		t.Run(c.Name, func(t *testing.T) {
			p := mustPrinter(t, PrintOptions{
				Ignore:  c.Options.Ignore,
				Only:    c.Options.Only,
				Headers: c.Options.Headers,
				NoQuery: c.Options.Query != nil && !*c.Options.Query,
			})
			if got := c.A.print(p) == c.B.print(p); got != c.Equal {
				t.Errorf("equal = %v, want %v\na: %.200q\nb: %.200q", got, c.Equal, c.A.Body, c.B.Body)
			}
		})
	}
	if run != 51 || later != 2 {
		t.Errorf("%d cases ran and %d wait for their stage, want 51 and 2", run, later)
	}
}

// TestFault06NestedMemberChanges: a hash that takes the body's top-level names
// as a filter for all levels leaves nested members out, so that two different
// orders look alike.
func TestFault06NestedMemberChanges(t *testing.T) {
	p := mustPrinter(t, PrintOptions{})
	base := `{"amount":5,"card":{"owner":{"name":"Ada"},"items":[{"sku":"a","n":1},{"sku":"b","n":2}]}}`
	for _, other := range []string{
		strings.Replace(base, `"Ada"`, `"Bob"`, 1),
		strings.Replace(base, `"n":2`, `"n":3`, 1),
		strings.Replace(base, `"n":2`, `"m":2`, 1),
		strings.Replace(base, `"sku":"a",`, ``, 1),
		strings.Replace(base, `{"name":"Ada"}`, `{}`, 1),
	} {
		if other == base {
			t.Fatal("the case changes nothing")
		}
		if jsonPrint(p, base) == jsonPrint(p, other) {
			t.Errorf("equal fingerprints:\n%s\n%s", base, other)
		}
	}
}

// TestFingerprintGolden fails if an unchanged request gets another sum: then
// records that are stored would stop matching, and printVersion must change.
func TestFingerprintGolden(t *testing.T) {
	p := mustPrinter(t, PrintOptions{Headers: []string{"X-Api-Version"}})
	m := Meaning{
		Method: "POST", Path: "/v1/orders", RawQuery: "b=2&a=1", ContentType: "Application/JSON; charset=utf-8",
		Header: http.Header{"X-Api-Version": {"3"}}.Values,
	}
	got := []string{
		printOf(p, m, []byte(`{"b":[1.50,"\u00e9"],"a":null}`)).String(),
		printOf(p, m, []byte(`{"a":1,"a":1}`)).String(),
		jsonPrint(mustPrinter(t, PrintOptions{Ignore: []string{"/t"}}), `{"t":1}`).String(),
		jsonPrint(mustPrinter(t, PrintOptions{Only: []string{"/t"}, NoQuery: true}), `{"t":1}`).String(),
	}
	want := []string{
		"1.3ac2347e245cfd9b:fa14f1e8a0f3a3d30de6d14c4d19c4443fb1f4f28426c5c5b9e0b02096aac399",
		"1.3ac2347e245cfd9b:8ae16367a6b48997131eb96219174382491cdb14c10eb7f46c19977a4d6be955",
		"1.47ee1cdb76d7dfd8:96e3916f9f387c77601c806e1ec12fd4cb681970a6ff02eaa3d3a3d8aace37f5",
		"1.6e9ac02fb00b9660:06ff7fe6a500b61acb4c7632402308a0f748d762119371288bc67226cd7c408a",
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("print %d is %s, want %s", i, got[i], want[i])
		}
	}
}

// TestFingerprintApart lists requests all of which mean something else.
func TestFingerprintApart(t *testing.T) {
	const js, form, text = "application/json", "application/x-www-form-urlencoded", "text/plain"
	p := mustPrinter(t, PrintOptions{Headers: []string{"A", "B"}})
	h := func(kv ...string) func(string) []string {
		h := http.Header{}
		for i := 0; i < len(kv); i += 2 {
			h.Add(kv[i], kv[i+1])
		}
		return h.Values
	}
	at := func(m Meaning, body string) Fingerprint {
		if m.Method == "" {
			m.Method = "POST"
		}
		return printOf(p, m, []byte(body))
	}
	prints := map[string]Fingerprint{
		"nothing":                 at(Meaning{}, ""),
		"other method":            at(Meaning{Method: "PATCH"}, ""),
		"method's case":           at(Meaning{Method: "post"}, ""),
		"path":                    at(Meaning{Path: "/a"}, ""),
		"path, escaped":           at(Meaning{Path: "/%61"}, ""),
		"path with query inside":  at(Meaning{Path: "/a?b=1"}, ""),
		"path and query":          at(Meaning{Path: "/a", RawQuery: "b=1"}, ""),
		"query, other value":      at(Meaning{Path: "/a", RawQuery: "b=2"}, ""),
		"query, other name":       at(Meaning{Path: "/a", RawQuery: "c=1"}, ""),
		"query, more":             at(Meaning{Path: "/a", RawQuery: "b=1&c=1"}, ""),
		"query, moved border":     at(Meaning{Path: "/a", RawQuery: "b=1%26c=1"}, ""),
		"query, broken":           at(Meaning{Path: "/a", RawQuery: "b=%"}, ""),
		"query, broken, spelt":    at(Meaning{Path: "/a", RawQuery: "b=%25"}, ""),
		"query, broken otherwise": at(Meaning{Path: "/a", RawQuery: "b=%4"}, ""),
		"query, broken digit":     at(Meaning{Path: "/a", RawQuery: "b=%4g"}, ""),
		"query, broken order":     at(Meaning{Path: "/a", RawQuery: "c=2&b=%"}, ""),
		"query, broken order 2":   at(Meaning{Path: "/a", RawQuery: "b=%&c=2"}, ""),
		"empty text":              at(Meaning{ContentType: text}, ""),
		"text":                    at(Meaning{ContentType: text}, "1"),
		"text, charset":           at(Meaning{ContentType: text + "; charset=utf-8"}, "1"),
		"no type":                 at(Meaning{}, "1"),
		"broken type":             at(Meaning{ContentType: "application/json;;"}, "1"),
		"broken type 2":           at(Meaning{ContentType: ";"}, "1"),
		"empty JSON":              at(Meaning{ContentType: js}, ""),
		"JSON":                    at(Meaning{ContentType: js}, "1"),
		"JSON, broken":            at(Meaning{ContentType: js}, "1 1"),
		"JSON, cut":               at(Meaning{ContentType: js}, `{"a":1`),
		"JSON, latin 1":           at(Meaning{ContentType: js + "; charset=latin1"}, "1"),
		"JSON, latin 1, spaced":   at(Meaning{ContentType: js + "; charset=latin1"}, " 1"),
		"JSON, parameter":         at(Meaning{ContentType: js + "; profile=a"}, "1"),
		"JSON, other parameter":   at(Meaning{ContentType: js + "; profile=A"}, "1"),
		"text/json":               at(Meaning{ContentType: "text/json"}, "1"),
		"empty form":              at(Meaning{ContentType: form}, ""),
		"form":                    at(Meaning{ContentType: form}, "a=1&a=2"),
		"form, order of one name": at(Meaning{ContentType: form}, "a=2&a=1"),
		"form, broken":            at(Meaning{ContentType: form}, "a=%&b=1"),
		"form, broken, order":     at(Meaning{ContentType: form}, "b=1&a=%"),
		"form, empty name":        at(Meaning{ContentType: form}, "=1"),
		"form, name 1":            at(Meaning{ContentType: form}, "1"),
		"form, = in value":        at(Meaning{ContentType: form}, "1=="),
		"form, not UTF-8":         at(Meaning{ContentType: form}, "1=%ff"),
		"form, not UTF-8 2":       at(Meaning{ContentType: form}, "1=%fe"),
		"form, empty fields":      at(Meaning{ContentType: form}, "="),
		"form, two empty fields":  at(Meaning{ContentType: form}, "=&="),
		"form, empty names":       at(Meaning{ContentType: form}, "=&=v"),
		"form, empty names 2":     at(Meaning{ContentType: form}, "=v&="),
		"header":                  at(Meaning{Header: h("A", "1")}, ""),
		"header, empty":           at(Meaning{Header: h("A", "")}, ""),
		"header, two values":      at(Meaning{Header: h("A", "1", "A", "2")}, ""),
		"header, other order":     at(Meaning{Header: h("A", "2", "A", "1")}, ""),
		"header, one value":       at(Meaning{Header: h("A", "1, 2")}, ""),
		"other header":            at(Meaning{Header: h("B", "1")}, ""),
		"both headers":            at(Meaning{Header: h("A", "1", "B", "2")}, ""),
	}
	seen := map[Fingerprint]string{}
	for _, name := range slices.Sorted(maps.Keys(prints)) {
		if prints[name] == (Fingerprint{}) || prints[name].Tag != p.Tag() {
			t.Errorf("%s: not a fingerprint of the printer: %v", name, prints[name])
		}
		if other, ok := seen[prints[name]]; ok {
			t.Errorf("%q and %q are equal", name, other)
		}
		seen[prints[name]] = name
	}
}

// TestFingerprintAlike lists pairs that mean the same.
func TestFingerprintAlike(t *testing.T) {
	const js, form = "application/json", "application/x-www-form-urlencoded"
	p := mustPrinter(t, PrintOptions{Headers: []string{"x-version"}})
	type request struct {
		m    Meaning
		body string
	}
	for name, c := range map[string][2]request{
		"query: + and %20":         {{m: Meaning{RawQuery: "a=x+y"}}, {m: Meaning{RawQuery: "a=x%20y"}}},
		"query: empty fields":      {{m: Meaning{RawQuery: "&&a=1&"}}, {m: Meaning{RawQuery: "a=1"}}},
		"query: nothing":           {{m: Meaning{RawQuery: "&"}}, {m: Meaning{RawQuery: ""}}},
		"query: no value":          {{m: Meaning{RawQuery: "a"}}, {m: Meaning{RawQuery: "a="}}},
		"query: case of escapes":   {{m: Meaning{RawQuery: "a=%2F"}}, {m: Meaning{RawQuery: "a=%2f"}}},
		"form: names escaped":      {{m: Meaning{ContentType: form}, body: "b%5B%5D=1&a=2"}, {m: Meaning{ContentType: form + "; charset=UTF-8"}, body: "a=2&b[]=1"}},
		"form: mixed names":        {{m: Meaning{ContentType: form}, body: "b=1&a=1&b=2&a=2"}, {m: Meaning{ContentType: form}, body: "a=1&a=2&b=1&b=2"}},
		"type: order and case":     {{m: Meaning{ContentType: "a/b; q=1; r=2; s=3; t=4; u=5; v=6"}}, {m: Meaning{ContentType: "A/B;V=6;u=5;s=3;t=4;R=2;Q=\"1\""}}},
		"type: charset and others": {{m: Meaning{ContentType: js + ";charset=\"utf-8\";p=1"}, body: " 1"}, {m: Meaning{ContentType: js + ";p=1"}, body: "1"}},
		"type: text/json":          {{m: Meaning{ContentType: "text/json"}, body: " 1"}, {m: Meaning{ContentType: "text/json"}, body: "1.0"}},
		"other headers":            {{m: Meaning{Header: http.Header{"Date": {"1"}}.Values}}, {}},
	} {
		if a, b := printOf(p, c[0].m, []byte(c[0].body)), printOf(p, c[1].m, []byte(c[1].body)); a != b {
			t.Errorf("%s: fingerprints differ", name)
		}
	}
	named := func(n string) []string {
		if n != "X-Version" {
			t.Errorf("Header is asked for %q, want the canonical X-Version", n)
		}
		return nil
	}
	if printOf(p, Meaning{Header: named}, nil) != printOf(p, Meaning{}, nil) {
		t.Error("a field that is absent differs from no fields at all")
	}
}

func TestPrinterFaults(t *testing.T) {
	_, err := NewPrinter(PrintOptions{
		Ignore:  []string{"a", "/ok", ""},
		Only:    []string{"/a~2", "/b~", "/\xff", strings.Repeat("/a", 513)},
		Headers: []string{"", "X Y", "X-Ok", "É"},
	})
	if err == nil {
		t.Fatal("no error")
	}
	faults := strings.Split(err.Error(), "\n")
	for _, want := range []string{
		"ignore and only exclude each other",
		`ignore: "a" is not a JSON pointer that can be used: want "/" in front`,
		`ignore: "" is not a JSON pointer that can be used: the empty pointer`,
		`only: "/a~2" is not a JSON pointer that can be used: want "~0"`,
		`only: "/b~" is not a JSON pointer that can be used: want "~0"`,
		`only: "/\xff" is not a JSON pointer that can be used: it is not UTF-8`,
		`/a" is not a JSON pointer that can be used: it is deeper than the 512`,
		`headers: "" is not a field's name`,
		`headers: "X Y" is not a field's name`,
		`headers: "É" is not a field's name`,
	} {
		i := slices.IndexFunc(faults, func(f string) bool { return strings.Contains(f, want) })
		if i < 0 {
			t.Errorf("no fault says %q", want)
			continue
		}
		faults = slices.Delete(faults, i, i+1)
	}
	if len(faults) > 0 {
		t.Errorf("more faults than there are: %q", faults)
	}
}

func TestPrinterTag(t *testing.T) {
	tag := func(o PrintOptions) string { return mustPrinter(t, o).Tag() }
	seen := map[string]int{}
	for i, o := range []PrintOptions{
		{},
		{NoQuery: true},
		{Ignore: []string{"/a"}},
		{Ignore: []string{"/a", "/b"}},
		{Ignore: []string{"/a/b"}},
		{Ignore: []string{"/ab"}},
		{Ignore: []string{"/A"}},
		{Only: []string{"/a"}},
		{Headers: []string{"A"}},
		{Headers: []string{"A", "B"}},
		{Headers: []string{"AB"}},
		{Ignore: []string{"/a"}, Headers: []string{"A"}},
	} {
		got := tag(o)
		if len(got) > 24 || !strings.HasPrefix(got, printVersion+".") {
			t.Errorf("tag %q: want at most 24 bytes that start with the version", got)
		}
		if j, ok := seen[got]; ok {
			t.Errorf("options %d and %d have one tag", i, j)
		}
		seen[got] = i
	}
	for _, c := range [][2]PrintOptions{
		{{Ignore: []string{"/b", "/a", "/b"}}, {Ignore: []string{"/a", "/b"}}},
		{{Only: []string{"/a/b", "/a", "/a/b/c", "/ab"}}, {Only: []string{"/ab", "/a"}}},
		{{Headers: []string{"x-b", "X-A", "X-B"}}, {Headers: []string{"X-A", "X-B"}}},
		{{Ignore: []string{}}, {}},
	} {
		if tag(c[0]) != tag(c[1]) {
			t.Errorf("%+v and %+v have different tags", c[0], c[1])
		}
	}
}

// TestPrinterKeepsItsOptions: what the caller does with its slices later does
// not matter.
func TestPrinterKeepsItsOptions(t *testing.T) {
	o := PrintOptions{Ignore: []string{"/b", "/a"}, Headers: []string{"X-B", "X-A"}}
	p := mustPrinter(t, o)
	if o.Ignore[0] != "/b" || o.Headers[0] != "X-B" {
		t.Error("NewPrinter reordered its caller's options")
	}
	before := jsonPrint(p, `{"a":1,"c":2}`)
	o.Ignore[1], o.Headers[1] = "/c", "X-C"
	if jsonPrint(p, `{"a":1,"c":2}`) != before {
		t.Error("a change of the options changed the printer")
	}
}

func TestDigestPieces(t *testing.T) {
	p := mustPrinter(t, PrintOptions{})
	big := []byte(`{"a":"` + strings.Repeat("x", PrintLimit) + `"}`)
	for _, ct := range []string{"application/json", "application/x-www-form-urlencoded", "text/plain"} {
		for _, body := range [][]byte{nil, []byte(`{"b":1,"a":2}`), []byte("b=1&a=2"), big[:PrintLimit-1], big[:PrintLimit], big[:PrintLimit+1], big} {
			m := Meaning{Method: "POST", ContentType: ct}
			want := printOf(p, m, body)
			for _, size := range []int{1, 7, 4096, PrintLimit, PrintLimit + 1} {
				if size == 1 && len(body) > 100 {
					continue
				}
				d := p.Begin(m)
				for chunk := range slices.Chunk(body, size) {
					if n, err := d.Write(chunk); n != len(chunk) || err != nil {
						t.Fatalf("Write = %d, %v; want %d, nil", n, err, len(chunk))
					}
				}
				if got := d.Fingerprint(); got != want {
					t.Errorf("%s, %d bytes in pieces of %d: another fingerprint", ct, len(body), size)
				}
			}
		}
	}
}

// TestDigestLimit: at the limit JSON counts by its value, one byte more and it
// counts by its bytes.
func TestDigestLimit(t *testing.T) {
	p := mustPrinter(t, PrintOptions{Ignore: []string{"/t"}})
	body := func(size, x int) string {
		s := fmt.Sprintf(`{"t":%d,"a":"`, x)
		return s + strings.Repeat("x", size-len(s)-2) + `"}`
	}
	if jsonPrint(p, body(PrintLimit, 1)) != jsonPrint(p, body(PrintLimit, 2)) {
		t.Error("a body of PrintLimit bytes is not read")
	}
	if jsonPrint(p, body(PrintLimit+1, 1)) == jsonPrint(p, body(PrintLimit+1, 2)) {
		t.Error("a body over PrintLimit bytes is read")
	}
	d := p.Begin(Meaning{ContentType: "application/json"})
	chunk := bytes.Repeat([]byte{'['}, 64<<10)
	for range 64 {
		d.Write(chunk)
	}
	if got := cap(d.scratch.body); got > 2*PrintLimit {
		t.Errorf("the digest of a body of 4 MiB holds %d bytes", got)
	}
}

func TestDigestEnds(t *testing.T) {
	d := mustPrinter(t, PrintOptions{}).Begin(Meaning{ContentType: "application/json"})
	d.Write([]byte("1"))
	first := d.Fingerprint()
	if n, err := d.Write([]byte("2")); n != 0 || err == nil {
		t.Errorf("Write after Fingerprint = %d, %v; want 0 and an error", n, err)
	}
	if d.Fingerprint() != first {
		t.Error("the second fingerprint is another one")
	}
}

// TestDigestsShareNothing: digests that are open at the same time, and memory
// that is used again, do not mix bodies.
func TestDigestsShareNothing(t *testing.T) {
	p := mustPrinter(t, PrintOptions{})
	want := map[string]Fingerprint{}
	body := func(i int) string {
		return fmt.Sprintf(`{"z":%d,"a":[%q,1.50],"\u0041":"\n"}`, i, strings.Repeat("x", i%97))
	}
	for i := range 200 {
		want[body(i)] = jsonPrint(mustPrinter(t, PrintOptions{}), body(i))
	}
	done := make(chan error)
	for w := range 4 {
		go func() {
			seed := uint64(w)
			rng := rand.New(rand.NewPCG(seed, 1))
			var err error
			for range 300 {
				a, b := body(rng.IntN(200)), body(rng.IntN(200))
				da := p.Begin(Meaning{Method: "POST", Path: "/v1/orders", ContentType: "application/json"})
				db := p.Begin(Meaning{Method: "POST", Path: "/v1/orders", ContentType: "application/json"})
				da.Write([]byte(a[:len(a)/2]))
				db.Write([]byte(b))
				da.Write([]byte(a[len(a)/2:]))
				if da.Fingerprint() != want[a] || db.Fingerprint() != want[b] {
					err = fmt.Errorf("seed %d: %s and %s are mixed", seed, a, b)
				}
			}
			done <- err
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
