package httpgate

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every code of a refusal stands in the document for clients, and no other.
func TestTheDocumentForClients(t *testing.T) {
	text, err := os.ReadFile("../docs/CLIENTS.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) > 3 && regexp.MustCompile(`^ [45]\d\d`).MatchString(cells[1]) {
			for _, m := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(cells[2], -1) {
				told[m[1]] = true
			}
		}
	}
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]bool{}
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\b(?:Code: |problemLater\()"([^"]+)"`).FindAllStringSubmatch(string(src), -1) {
			codes[m[1]] = true
		}
	}
	if len(codes) < 10 {
		t.Fatalf("found %d codes: this test looks in the wrong place", len(codes))
	}
	for c := range codes {
		if !told[c] {
			t.Errorf("the document lacks %s", c)
		}
	}
	for c := range told {
		if !codes[c] {
			t.Errorf("the document has %s, which nothing answers", c)
		}
	}
}
