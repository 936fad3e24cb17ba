package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	// What the program is made of: go test must not show an old result after a
	// change of it.
	_ "github.com/escapement-dev/escapement/cmd/escapement/internal/demo"
	_ "github.com/escapement-dev/escapement/cmd/escapement/internal/serve"
	"github.com/escapement-dev/escapement/internal/pgserver"
)

// The program, as it is shipped and with its kill points.
var plainProgram, killProgram string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "escapement-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := readSources(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	plainProgram, killProgram = filepath.Join(dir, "escapement"), filepath.Join(dir, "escapement-killpoints")
	for _, build := range [][]string{
		{"build", "-o", plainProgram, ".."},
		{"build", "-tags", "killpoints", "-o", killProgram, ".."},
	} {
		if out, err := exec.Command("go", build...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go %v: %v\n%s", build, err, out)
			return 1
		}
	}
	code := m.Run()
	if err := pgserver.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// readSources reads the files that this package cannot import: go test then
// knows that its result depends on them.
func readSources() error {
	for _, pattern := range []string{"../*.go", "../internal/serve/killpoints*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, f := range files {
			if _, err := os.ReadFile(f); err != nil {
				return err
			}
		}
	}
	return nil
}
