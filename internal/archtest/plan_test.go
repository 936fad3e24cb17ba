package archtest

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"testing"
)

// planned is a test as docs/TESTPLAN.md names it: its directory and its name.
var planned = regexp.MustCompile("`([a-z0-9_./]+)/(Test[A-Za-z0-9_]+)`")

// The test plan names no test that does not exist.
func TestPlanNamesExistingTests(t *testing.T) {
	plan, err := os.ReadFile(filepath.Join(top(t), "docs", "TESTPLAN.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, all := files(t)
	there := map[string]bool{}
	for _, f := range all {
		if !f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				there[path.Join(f.dir, fn.Name.Name)] = true
			}
		}
	}
	names := planned.FindAllSubmatch(plan, -1)
	if len(names) < 40 {
		t.Fatalf("the plan names %d tests: this test reads it wrongly", len(names))
	}
	for _, n := range names {
		if name := path.Join(string(n[1]), string(n[2])); !there[name] {
			t.Errorf("docs/TESTPLAN.md names %s, which does not exist", name)
		}
	}
}
