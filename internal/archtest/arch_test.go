package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/escapement-dev/escapement"

// allowed says what the packages under a directory may import, in code that
// ships and, where tests is set, in their tests: nothing else. The first
// element of an import path that has a dot is somebody else's module.
var allowed = []struct {
	dir    string   // relative to the top; "." is the root package alone
	only   []string // of ours, only these (and what is under the directory itself)
	third  []string // of others, only modules with these prefixes
	tests  bool     // whether the rule also holds for its tests
	reason string
}{
	{dir: "idempotency", tests: true, reason: "a ground is pure and free of dependencies"},
	{dir: "ratelimit", tests: true, reason: "a ground is pure and free of dependencies"},
	{dir: ".", only: []string{"idempotency", "ratelimit"}, reason: "the Gate knows the grounds and no store, no HTTP"},
	{dir: "httpgate", only: []string{".", "idempotency", "ratelimit"}, third: []string{"github.com/dunglas/httpsfv", "github.com/klauspost/compress"}, reason: "HTTP stands on the Gate, and on no store"},
	{dir: "store/memstore", only: []string{"idempotency", "ratelimit"}, tests: true, reason: "a store imports the grounds and nothing else of ours"},
	{dir: "internal/rowtext", only: []string{"idempotency"}, third: []string{}, tests: true, reason: "what the SQL stores share knows records, and no store"},
	{dir: "store/sqlitestore", only: []string{"idempotency", "internal/rowtext"}, third: []string{"modernc.org/sqlite"}, reason: "a store imports the grounds and nothing else of ours"},
	{dir: "store/guard", only: []string{"ratelimit"}, third: []string{"github.com/sony/gobreaker"}, reason: "the guard stands in front of any store, and knows none"},
	{dir: "store/pgstore", only: []string{"idempotency", "ratelimit", "internal/rowtext"}, third: []string{"github.com/jackc/pgx/v5"}, reason: "a store imports the grounds and nothing else of ours"},
	{dir: "store/redisstore", only: []string{"idempotency", "ratelimit"}, third: []string{"github.com/redis/rueidis"}, reason: "a store imports the grounds and nothing else of ours"},
	{dir: "store/storetest", only: []string{"idempotency", "ratelimit"}, third: []string{"pgregory.net/rapid", "github.com/anishathalye/porcupine"}, reason: "the suite must not know any store"},
	{dir: "cmd/escapement/internal/config", only: []string{".", "httpgate", "idempotency", "ratelimit", "store/pgstore", "store/redisstore"}, third: []string{"github.com/goccy/go-yaml"}, reason: "the configuration is read without opening anything"},
	{dir: "cmd/escapement/internal/demo", third: []string{}, reason: "the demo's upstream is somebody else's API: it knows nothing of us"},
}

type file struct {
	dir, name string
	test      bool
	ast       *ast.File
	text      string
}

func top(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(filepath.Dir(dir))
}

// files parses every Go file of the repository.
func files(t *testing.T) (*token.FileSet, []file) {
	t.Helper()
	root := top(t)
	set := token.NewFileSet()
	var out []file
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); p != root && (strings.HasPrefix(n, ".") || n == "testdata" || n == "bin" || n == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(set, p, text, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(p))
		if err != nil {
			return err
		}
		out = append(out, file{dir: filepath.ToSlash(rel), name: filepath.Base(p), test: strings.HasSuffix(p, "_test.go"), ast: f, text: string(text)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("found %d Go files under %s: this test looks in the wrong place", len(out), root)
	}
	return set, out
}

// helpsTests reports whether f is of an internal package that serves tests
// alone, which takes testing.TB.
func helpsTests(f file) bool {
	return strings.Contains("/"+f.dir+"/", "/internal/") && slices.ContainsFunc(f.ast.Imports, func(i *ast.ImportSpec) bool {
		return i.Path.Value == `"testing"`
	})
}

func under(dir, rule string) bool {
	if rule == "." {
		return dir == "."
	}
	return dir == rule || strings.HasPrefix(dir, rule+"/")
}

func TestImports(t *testing.T) {
	_, all := files(t)
	for _, rule := range allowed {
		seen := false
		for _, f := range all {
			if !under(f.dir, rule.dir) {
				continue
			}
			seen = true
			if (f.test || helpsTests(f)) && !rule.tests {
				continue
			}
			for _, imp := range f.ast.Imports {
				p, err := strconv.Unquote(imp.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				first, _, _ := strings.Cut(p, "/")
				switch {
				case p == module || strings.HasPrefix(p, module+"/"):
					rel := strings.TrimPrefix(strings.TrimPrefix(p, module), "/")
					if rel == "" {
						rel = "."
					}
					if !under(rel, rule.dir) && !slices.Contains(rule.only, rel) {
						t.Errorf("%s imports %s: %s", path.Join(f.dir, f.name), p, rule.reason)
					}
				case strings.Contains(first, "."):
					if !slices.ContainsFunc(rule.third, func(m string) bool { return p == m || strings.HasPrefix(p, m+"/") }) {
						t.Errorf("%s imports %s: %s", path.Join(f.dir, f.name), p, rule.reason)
					}
				}
			}
		}
		if !seen {
			t.Errorf("the rule for %s matches no file: the directory was renamed, or the rule is stale", rule.dir)
		}
	}
}

// Only the program wires stores together: nobody else imports more than one.
func TestOnlyTheProgramKnowsEveryStore(t *testing.T) {
	_, all := files(t)
	for _, f := range all {
		if f.test || under(f.dir, "cmd") || under(f.dir, "bench") || under(f.dir, "examples") {
			continue
		}
		for _, imp := range f.ast.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			if s, ok := strings.CutPrefix(p, module+"/store/"); ok && !under(f.dir, "store/"+s) {
				t.Errorf("%s imports store/%s: only the program wires stores", path.Join(f.dir, f.name), s)
			}
		}
	}
}

func TestEveryPackageHasADocComment(t *testing.T) {
	_, all := files(t)
	documented := map[string]bool{}
	for _, f := range all {
		if f.test {
			continue
		}
		if f.ast.Doc != nil {
			documented[f.dir] = true
		} else if !documented[f.dir] {
			documented[f.dir] = false
		}
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package in %s has no doc comment", dir)
		}
	}
}

func TestPackageNames(t *testing.T) {
	bad := []string{"util", "utils", "common", "types", "models", "pkg", "src", "helpers", "misc"}
	_, all := files(t)
	for _, f := range all {
		if slices.Contains(bad, f.ast.Name.Name) || slices.Contains(bad, path.Base(f.dir)) {
			t.Errorf("%s: a package is named after what it is, not %q", path.Join(f.dir, f.name), f.ast.Name.Name)
		}
	}
}

// Tests wait for a signal or for virtual time; they neither sleep nor skip.
func TestHabits(t *testing.T) {
	set, all := files(t)
	for _, f := range all {
		if under(f.dir, "internal/archtest") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			switch {
			case f.test && x.Name == "time" && sel.Sel.Name == "Sleep":
				t.Errorf("%s: a test sleeps", set.Position(n.Pos()))
			case f.test && (sel.Sel.Name == "Skip" || sel.Sel.Name == "Skipf" || sel.Sel.Name == "SkipNow") && (x.Name == "t" || x.Name == "b"):
				t.Errorf("%s: a test skips", set.Position(n.Pos()))
			}
			return true
		})
	}
}
