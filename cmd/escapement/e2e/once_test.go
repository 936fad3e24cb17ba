package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// once sends one key ten times at once, to the programs in turn: one order, and
// ten equal answers.
func once(t *testing.T, up string, programs ...string) {
	t.Helper()
	before := mustCount(t, up, "orders")
	q := request{key: fmt.Sprint("once-", before.Received), body: `{"item":"tea"}`, fields: map[string]string{"X-Demo-Delay": "300ms"}}
	answers, errs := make([]reply, 10), make([]error, 10)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i], errs[i] = q.final(programs[i%len(programs)]) })
	}
	wg.Wait()
	first := 0
	for i, r := range answers {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if r.status != http.StatusCreated || !r.same(answers[0]) {
			t.Errorf("answer %d is %v, and the first %v", i, r, answers[0])
		}
		if !r.replayed() {
			first++
		}
	}
	if first != 1 {
		t.Errorf("%d answers are not replays, want 1", first)
	}
	if c := mustCount(t, up, "orders"); c.Count != before.Count+1 || c.Received != before.Received+1 {
		t.Errorf("the upstream says %+v, and before %+v: want one order of one POST more", c, before)
	}
}

// command runs the program to its end and returns what it prints.
func command(args ...string) (string, error) {
	out, err := exec.Command(plainProgram, args...).Output()
	if e, ok := err.(*exec.ExitError); ok {
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
