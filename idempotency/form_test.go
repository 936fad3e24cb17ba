package idempotency

import (
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// TestFormAgainstNetURL compares with net/url: two queries have one form if,
// and only if, it reads the same values from them.
func TestFormAgainstNetURL(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	pieces := []string{"a", "b", "=", "=", "&", "&", "+", "%20", "%41", "%61", "%3d", "%26", "%00", "%f", "%", "\xff", "é"}
	byValue, byForm := map[string]string{}, map[string]string{}
	broken := 0
	for range 30_000 {
		var b strings.Builder
		for range rng.IntN(8) {
			b.WriteString(pieces[rng.IntN(len(pieces))])
		}
		text := b.String()
		values, err := url.ParseQuery(text)
		var f formFields
		out, ok := f.appendFields([]byte("before"), []byte(text))
		if ok != (err == nil) {
			t.Fatalf("seed %d: %q: read %v, net/url says %v", seed, text, ok, err)
		}
		if !ok {
			broken++
			if string(out) != "before" {
				t.Fatalf("seed %d: %q is broken and left %q", seed, text, out)
			}
			continue
		}
		value, form := spellValues(values), string(out)
		if got, ok := byValue[value]; ok && got != form {
			t.Fatalf("seed %d: %q: one value, two forms %q and %q", seed, text, got, form)
		}
		if got, ok := byForm[form]; ok && got != value {
			t.Fatalf("seed %d: %q: one form, two values %q and %q", seed, text, got, value)
		}
		byValue[value], byForm[form] = form, value
	}
	if broken == 0 || len(byForm) < 1000 {
		t.Errorf("seed %d: %d broken, %d forms: the texts are too simple", seed, broken, len(byForm))
	}
}

// TestFormOrderWithinName: with many fields, too, the order within one name is
// kept, of empty fields as well.
func TestFormOrderWithinName(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var text []string
		values := map[string][]string{}
		for range 60 {
			name, value := []string{"", "a", "b"}[rng.IntN(3)], []string{"", "", "v", "w"}[rng.IntN(4)]
			text = append(text, name+"="+value)
			values[name] = append(values[name], value)
		}
		var want []byte
		for _, name := range []string{"", "a", "b"} {
			for _, value := range values[name] {
				want = appendCounted(appendCounted(want, name), value)
			}
		}
		var f formFields
		if got, ok := f.appendFields(nil, []byte(strings.Join(text, "&"))); !ok || string(got) != string(want) {
			t.Fatalf("seed %d: %q\nis   %q\nwant %q", seed, text, got, want)
		}
	}
}

// spellValues is [url.Values.Encode] that tells each field from its neighbour.
func spellValues(v url.Values) string {
	names := make([]string, 0, len(v))
	for name := range v {
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		for _, value := range v[name] {
			b.WriteString(url.QueryEscape(name) + "=" + url.QueryEscape(value) + "&")
		}
	}
	return b.String()
}
