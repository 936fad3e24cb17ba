package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// command runs the program to its end and returns what it prints.
func command(args ...string) (string, error) {
	out, err := exec.Command(plainProgram, args...).Output()
	if e := (*exec.ExitError)(nil); errors.As(err, &e) {
		err = fmt.Errorf("%w: %s", err, e.Stderr)
	}
	return string(out), err
}

// document is the text of one of the documents.
func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
