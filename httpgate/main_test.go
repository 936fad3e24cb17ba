package httpgate

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"testing"
)

// TestMain fails the suite if a test leaves a goroutine of ours behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if left := leaked(); code == 0 && len(left) > 0 {
		fmt.Fprintf(os.Stderr, "goroutines left behind:\n%s\n", bytes.Join(left, []byte("\n\n")))
		code = 1
	}
	os.Exit(code)
}

// leaked returns the stacks of other goroutines with code of this module. One
// that is about to end gets the processor a few times first.
func leaked() (left [][]byte) {
	for range 1000 {
		buf := make([]byte, 1<<20)
		buf = buf[:runtime.Stack(buf, true)]
		left = nil
		for i, stack := range bytes.Split(buf, []byte("\n\n")) {
			if i > 0 && bytes.Contains(stack, []byte("escapement")) {
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			return nil
		}
		runtime.Gosched()
	}
	return left
}
