package idempotency

import (
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

// normalJSON returns the normal form of a text, or "raw".
func normalJSON(t testing.TB, text string, o PrintOptions) string {
	t.Helper()
	p := mustPrinter(t, o)
	var d jsonDocument
	if !d.parse([]byte(text)) {
		return "raw"
	}
	return string(d.appendNormal(nil, p.ignore, p.only))
}

func TestJSONNormalForm(t *testing.T) {
	for in, want := range map[string]string{
		// Order and escapes as in the example of RFC 8785, 3.2.3.
		`{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}`: `{"\r":2,"1":4,"` + "\u0080" + `":6,"ö":7,"€":1,"😀":5,"` + "\ufb33" + `":3}`,
		`{"aa":1,"a":2,"":3,"b":4}`:              `{"":3,"a":2,"aa":1,"b":4}`,
		`"\u0000\u001f\b\t\n\f\r\"\\\/\u007f\/"`: `"\u0000\u001f\b\t\n\f\r\"\\/` + "\x7f" + `/"`,
		`"\u003c\u2028\uD83D\uDE00"`:             `"<` + "\u2028" + `😀"`,
		`"\ufffd"`:                               `"` + "\ufffd" + `"`,
		" [ ] ":                                  `[]`,
		"\t{\r\n}\n":                             `{}`,
		`[[],{},[{}],"",null,true,false]`:        `[[],{},[{}],"",null,true,false]`,
		`{"a":{"c":[1,{"e":1,"d":2}],"b":1}}`:    `{"a":{"b":1,"c":[1,{"d":2,"e":1}]}}`,
		`{"\u0061":1,"A":2}`:                     `{"A":2,"a":1}`,
	} {
		if got := normalJSON(t, in, PrintOptions{}); got != want {
			t.Errorf("%s\nis   %q\nwant %q", in, got, want)
		}
	}
}

// TestJSONUncertain lists texts whose value is not certain.
func TestJSONUncertain(t *testing.T) {
	for _, text := range []string{
		// broken
		"", " ", "{", "[", "]", "}", `"`, `"\`, `"\u`, `"\u12`, `"\u123g"`, `"\x"`, `"a`, "\"\t\"", "\"\\n\n\"", `"\na`,
		"nul", "nulll", "True", "tru", "f", "NaN", "Infinity", "undefined", "'a'",
		"[1,]", "[,1]", "[1 2]", "[1", "[1,", "{,}", `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1 "b":2}`, `{a:1}`, `{1:1}`, `{"a":1`, `{"a":1,`, `{"a"`, `{"a":`, `{"a" 1}`,
		"1 2", "{}{}", "1,", "\ufeff1", "1\x00", "\x00", "\v1", "// a\n1", "[1]]",
		"+1", "-", "--1", "01", "-01", "00", ".5", "1.", "1.e1", "-.5", "1e", "1e+", "1e-", "1e+-1", "0x10", "1_000", "1e1.5", "１",
		// duplicate members
		`{"a":1,"a":1}`, `{"a":1,"b":2,"a":3}`, `{"a":1,"\u0061":1}`, `[{"x":{"":1,"":2}}]`, `{"\ud83d\ude00":1,"😀":1}`,
		// not text
		"\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "[\"\xe2\x82\"]", "{\"\xff\":1}",
		`"\ud800"`, `"\udc00"`, `"\ud800x"`, `"\ud800\n"`, `"\ud800\u0041"`, `"\ud800\ud800"`, `"\udc00\ud800"`, `"\ud800\u"`, `"\ud800\`, `{"\udfff":1}`,
		// beyond what is read
		strings.Repeat("[", 513) + strings.Repeat("]", 513),
		strings.Repeat(`{"a":`, 513) + "1" + strings.Repeat("}", 513),
		"1e1000000000000000000", "1e-1000000000000000000", "[0.1E+9999999999999999999]",
	} {
		if got := normalJSON(t, text, PrintOptions{}); got != "raw" {
			t.Errorf("%.60q has the form %.60q", text, got)
		}
	}
	for _, text := range []string{
		strings.Repeat("[", 512) + strings.Repeat("]", 512),
		strings.Repeat(`{"a":`, 512) + "1" + strings.Repeat("}", 512),
		"[" + strings.Repeat("[],", 1000) + "[{}]]", // many, not deep
		"[" + strings.Repeat("{},", 1000) + "[{}]]",
	} {
		if normalJSON(t, text, PrintOptions{}) == "raw" {
			t.Errorf("%.60q is not read", text)
		}
	}
}

func TestJSONNumbers(t *testing.T) {
	for in, want := range map[string]string{
		"0": "0", "-0": "0", "0.0": "0", "-0.00": "0", "0e5": "0", "-0.0e-7": "0",
		"0e99999999999999999999999": "0",
		"1":                         "1", "-1": "-1", "10": "1e1", "-100": "-1e2", "1e2": "1e2", "1E+2": "1e2", "1e-0": "1", "1e000": "1",
		"100e-2": "1", "1.0": "1", "1.10": "11e-1", "-1.50": "-15e-1", "0.1e1": "1", "0.001": "1e-3", "0.0010e3": "1", "0.10": "1e-1",
		"1050": "105e1", "10.50": "105e-1", "100.001": "100001e-3", "1e-2": "1e-2", "0.01e0000000000000000000000002": "1",
		"1e1000000": "1e1000000", "10e999999": "1e1000000", "1e1000001": "1e1000001",
		"9007199254740993":        "9007199254740993",
		"1e999999999999999999":    "1e999999999999999999",
		"10e999999999999999999":   "1e1000000000000000000",
		"0.1e-999999999999999999": "1e-1000000000000000000",
	} {
		if got := normalJSON(t, in, PrintOptions{}); got != want {
			t.Errorf("%s is %s, want %s", in, got, want)
		}
	}
}

// TestJSONNumbersAreExact compares with math/big: two numbers have one form if,
// and only if, they have one value.
func TestJSONNumbersAreExact(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	digits := func(n int) string {
		b := make([]byte, rng.IntN(n)+1)
		for i := range b {
			b[i] = "0001259"[rng.IntN(7)]
		}
		return string(b)
	}
	number := func() string {
		var b strings.Builder
		if rng.IntN(3) == 0 {
			b.WriteByte('-')
		}
		if whole := strings.TrimLeft(digits(3), "0"); whole == "" {
			b.WriteByte('0')
		} else {
			b.WriteString(whole)
		}
		if rng.IntN(2) == 0 {
			b.WriteString("." + digits(3))
		}
		if rng.IntN(2) == 0 {
			b.WriteString([]string{"e", "E", "e+", "e-", "E-"}[rng.IntN(5)] + digits(1))
		}
		return b.String()
	}
	byValue, byForm := map[string]string{}, map[string]string{}
	for range 20_000 {
		text := number()
		r, ok := new(big.Rat).SetString(text)
		if !ok || !json.Valid([]byte(text)) {
			t.Fatalf("seed %d: %q is not a number", seed, text)
		}
		value, form := r.RatString(), normalJSON(t, text, PrintOptions{})
		if f, ok := byValue[value]; ok && f != form {
			t.Fatalf("seed %d: %s has the forms %s and %s", seed, value, f, form)
		}
		if v, ok := byForm[form]; ok && v != value {
			t.Fatalf("seed %d: %s is the form of %s and %s", seed, form, v, value)
		}
		byValue[value], byForm[form] = form, value
	}
	if len(byValue) < 1000 {
		t.Errorf("seed %d: only %d different values", seed, len(byValue))
	}
}

func TestJSONPointers(t *testing.T) {
	for _, c := range []struct{ ignore, in, want string }{
		{"/a", `{"a":1,"b":2}`, `{"b":2}`},
		{"/a", `{"a":1}`, `{}`},
		{"/a", `{"b":{"a":1}}`, `{"b":{"a":1}}`},
		{"/b /a", `{"a":1,"b":2,"c":3}`, `{"c":3}`},
		{"/a", `{"\u0061":1,"b":2}`, `{"b":2}`},
		{"/a", `{"a":{"x":[1,2]},"b":2}`, `{"b":2}`},
		{"/a", `[1]`, `[1]`},
		{"/a", `1`, `1`},
		{"/a/b", `{"a":{"b":1,"c":2}}`, `{"a":{"c":2}}`},
		{"/a/b", `{"a":{"b":1}}`, `{"a":{}}`},
		{"/a/b", `{"a":1}`, `{"a":1}`},
		{"/a/b", `{"a":[1]}`, `{"a":[1]}`},
		{"/", `{"":1,"a":2}`, `{"a":2}`},
		{"//", `{"":{"":1,"a":2}}`, `{"":{"a":2}}`},
		{"/0", `[1,2,3]`, `[2,3]`},
		{"/2 /0", `[1,2,3]`, `[2]`},
		{"/0", `{"0":1,"a":2}`, `{"a":2}`},
		{"/00", `[1,2]`, `[1,2]`},
		{"/-", `[1,2]`, `[1,2]`},
		{"/1/a", `[{"a":1},{"a":1,"b":2}]`, `[{"a":1},{"b":2}]`},
		{"/10", `[0,1,2,3,4,5,6,7,8,9,10,11]`, `[0,1,2,3,4,5,6,7,8,9,11]`},
		{"/~01", `{"~1":1,"/":2}`, `{"/":2}`},
		{"/~1", `{"~1":1,"/":2}`, `{"~1":1}`},
		{"/ö", `{"\u00f6":1,"o":2}`, `{"o":2}`},
		{"/a", `{"a":1,"a":2}`, "raw"},
		{"/a", `{"a":{"b":1,"b":2}}`, "raw"},
	} {
		if got := normalJSON(t, c.in, PrintOptions{Ignore: strings.Fields(c.ignore)}); got != c.want {
			t.Errorf("%s without %s is %s, want %s", c.in, c.ignore, got, c.want)
		}
	}
	for _, c := range []struct{ only, in, want string }{
		{"/a", `{"b":2,"a":1.0}`, `"/a":1,`},
		{"/a /b", `{"b":2,"a":1,"c":3}`, `"/a":1,"/b":2,`},
		{"/a", `{"a":null}`, `"/a":null,`},
		{"/a /b", `{"a":null}`, `"/a":null,`},
		{"/a/b", `{"a":{"c":1,"b":{"z":1,"y":2}}}`, `"/a/b":{"y":2,"z":1},`},
		{"/a/b /a", `{"a":{"c":1,"b":2}}`, `"/a":{"b":2,"c":1},`},
		{"/1 /0/a", `[{"a":1,"b":2},"x","y"]`, `"/0/a":1,"/1":"x",`},
		{"/~1", `{"/":"\n"}`, `"/~1":"\n",`},
		// Nothing is there: the whole counts.
		{"/a", `{"b":2, "c":[]}`, `{"b":2,"c":[]}`},
		{"/a/b", `{"a":1}`, `{"a":1}`},
		{"/a", `"x"`, `"x"`},
		{"/a", `{"b":1,"b":2}`, "raw"},
	} {
		if got := normalJSON(t, c.in, PrintOptions{Only: strings.Fields(c.only)}); got != c.want {
			t.Errorf("%s of %s is %s, want %s", c.only, c.in, got, c.want)
		}
	}
}

// randomJSON returns a value of at most the given depth.
func randomJSON(rng *rand.Rand, depth int) any {
	text := func() string {
		b := make([]rune, rng.IntN(4))
		for i := range b {
			b[i] = []rune("ab\"\\/\n\x00é€\ufb33😀<")[rng.IntN(12)]
		}
		return string(b)
	}
	kind := rng.IntN(7)
	if depth == 0 {
		kind = rng.IntN(5)
	}
	switch kind {
	case 0:
		return nil
	case 1:
		return rng.IntN(2) == 0
	case 2:
		return json.Number(fmt.Sprint(rng.IntN(200) - 100))
	case 3:
		return json.Number(fmt.Sprintf("%d.%de%d", rng.IntN(20), rng.IntN(20), rng.IntN(5)-2))
	case 4:
		return text()
	case 5:
		a := make([]any, rng.IntN(4))
		for i := range a {
			a[i] = randomJSON(rng, depth-1)
		}
		return a
	default:
		o := map[string]any{}
		for range rng.IntN(5) {
			o[text()] = randomJSON(rng, depth-1)
		}
		return o
	}
}

// spellJSON writes a value in one of its many spellings.
func spellJSON(rng *rand.Rand, b *strings.Builder, v any) {
	space := func() { b.WriteString([]string{"", "", " ", "\n\t", "\r"}[rng.IntN(5)]) }
	space()
	defer space()
	switch v := v.(type) {
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		b.WriteByte('{')
		for i, name := range names {
			if i > 0 {
				b.WriteByte(',')
			}
			spellJSON(rng, b, name)
			b.WriteByte(':')
			spellJSON(rng, b, v[name])
		}
		space()
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			spellJSON(rng, b, e)
		}
		space()
		b.WriteByte(']')
	case string:
		b.WriteByte('"')
		for _, r := range v {
			switch {
			case r >= 0x10000 && rng.IntN(2) == 0:
				fmt.Fprintf(b, `\u%04x\u%04X`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
			case r < 0x10000 && (r < 0x20 || r == '"' || r == '\\' || rng.IntN(3) == 0):
				fmt.Fprintf(b, `\u%04x`, r)
			default:
				b.WriteRune(r)
			}
		}
		b.WriteByte('"')
	case json.Number:
		b.WriteString(string(v))
		if !strings.ContainsAny(string(v), ".e") {
			b.WriteString([]string{"", ".0", "e0", "E+00", ".00e-0"}[rng.IntN(5)])
		}
	default:
		fmt.Fprint(b, map[any]string{nil: "null", true: "true", false: "false"}[v])
	}
}

// TestJSONSpellings: all spellings of one value have one form, and it has the
// same value.
func TestJSONSpellings(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		v := randomJSON(rng, 4)
		var a, b strings.Builder
		spellJSON(rng, &a, v)
		spellJSON(rng, &b, v)
		formA, formB := normalJSON(t, a.String(), PrintOptions{}), normalJSON(t, b.String(), PrintOptions{})
		if formA != formB || formA == "raw" {
			t.Fatalf("seed %d: one value, two forms\n%s\n%s\n%s\n%s", seed, a.String(), formA, b.String(), formB)
		}
		if again := normalJSON(t, formA, PrintOptions{}); again != formA {
			t.Fatalf("seed %d: the form of the form %s is %s", seed, formA, again)
		}
		if x, y := valueOf(t, a.String()), valueOf(t, formA); x != y {
			t.Fatalf("seed %d: the form has another value\n%s\n%s", seed, x, y)
		}
	}
}

// TestJSONLeafCounts: a change anywhere in a value changes the form.
func TestJSONLeafCounts(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		v := map[string]any{"a": randomJSON(rng, 4), "b": []any{randomJSON(rng, 4)}}
		before, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		changeJSON(rng, v)
		after, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		x, y := normalJSON(t, string(before), PrintOptions{}), normalJSON(t, string(after), PrintOptions{})
		if x == y {
			t.Fatalf("seed %d: two values, one form %s\n%s\n%s", seed, x, before, after)
		}
	}
}

// changeJSON changes one thing in a container that is not empty.
func changeJSON(rng *rand.Rand, v any) {
	deeper := func(e any) bool {
		switch e := e.(type) {
		case map[string]any:
			if len(e) == 0 {
				return false
			}
			changeJSON(rng, e)
			return true
		case []any:
			if len(e) == 0 {
				return false
			}
			changeJSON(rng, e)
			return true
		}
		return false
	}
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			if rng.IntN(4) == 0 {
				delete(v, name)
			} else if !deeper(e) {
				v[name] = []any{e}
			}
			return
		}
	case []any:
		i := rng.IntN(len(v))
		if !deeper(v[i]) {
			v[i] = map[string]any{"new": v[i]}
		}
	}
}

// valueOf spells a text's value through encoding/json and math/big, which know
// nothing of this package.
func valueOf(t testing.TB, text string) string {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	var exact func(any) any
	exact = func(v any) any {
		switch v := v.(type) {
		case json.Number:
			r, ok := new(big.Rat).SetString(string(v))
			if !ok {
				t.Fatalf("%q is not a number", v)
			}
			return map[string]any{"\uffffnumber": r.RatString()}
		case []any:
			for i := range v {
				v[i] = exact(v[i])
			}
		case map[string]any:
			for k := range v {
				v[k] = exact(v[k])
			}
		}
		return v
	}
	b, err := json.Marshal(exact(v))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
