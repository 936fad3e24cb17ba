package config

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestTheDocument: every example of the document is accepted, and its table of
// all fields gives the defaults.
func TestTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/CONFIGURATION.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 3 {
		t.Fatalf("%d examples", len(blocks))
	}
	for _, b := range blocks {
		parse(t, b[1])
	}
	all := blocks[0][1]
	have := parse(t, all).YAML()
	want := parse(t, "upstream: http://127.0.0.1:3000\nidentity: {tenant: const:shop}\n").YAML()
	if have != want {
		t.Errorf("the table of defaults gives\n%s\nand the defaults are\n%s", have, want)
	}
	// Every field that the program knows and has a use for stands in the table.
	for _, line := range strings.Split(want, "\n") {
		name, _, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok && !regexp.MustCompile(`(?m)\b`+regexp.QuoteMeta(name)+`:`).MatchString(all) {
			t.Errorf("the table lacks %s", name)
		}
	}
}
