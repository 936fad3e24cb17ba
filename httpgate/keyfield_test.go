package httpgate

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/escapement-dev/escapement/idempotency"
)

func TestKeyFieldVectors(t *testing.T) {
	raw, err := os.ReadFile("testdata/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Field string
			Key   *string
			Error string
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 25 {
		t.Fatalf("only %d cases", len(file.Cases))
	}
	for _, c := range file.Cases {
		key, err := parseKey([]string{c.Field})
		switch {
		case c.Key != nil && (err != nil || key != *c.Key):
			t.Errorf("%q: have %q, %v, want %q", c.Field, key, err, *c.Key)
		case c.Key == nil && err == nil:
			t.Errorf("%q: have %q, want %s", c.Field, key, c.Error)
		case err != nil && len(c.Field) > 8 && strings.Contains(err.Error(), c.Field):
			t.Errorf("%q: the error repeats the field: %v", c.Field, err)
		}
	}
}

func TestKeyFieldLines(t *testing.T) {
	for _, lines := range [][]string{{"a", "b"}, {"a", "a"}, {`"a"`, ""}, {"a", "b, c"}, {`"a";p=(`}, {`("a")x,`}, {`"a";P`}} {
		if key, err := parseKey(lines); err == nil {
			t.Errorf("%q: have the key %q", lines, key)
		}
	}
	for field, want := range map[string]string{
		`"k";a;b=?0;c=:YQ==:;d=1.5;e="x;y"`: "k",
		"\t k \t":                           "k",
		"(a)":                               "(a)",
		"k=v&w":                             "k=v&w",
	} {
		if key, err := parseKey([]string{field}); err != nil || key != want {
			t.Errorf("%q: have %q, %v", field, key, err)
		}
	}
}

func FuzzKeyField(f *testing.F) {
	for _, s := range []string{"", `"a"`, "a", `"a\"b";x=1`, "a,b", `"` + strings.Repeat("x", 255) + `"`, "\x00", `"a";`, "  b "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := parseKey([]string{s})
		if err != nil {
			if key != "" {
				t.Fatalf("%q: a key %q with an error", s, key)
			}
			return
		}
		if err := idempotency.ValidateKey(key); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err := parseKey([]string{quoted}); err != nil || again != key {
			t.Fatalf("%q names %q, and in quotes %q, %v", s, key, again, err)
		}
	})
}
