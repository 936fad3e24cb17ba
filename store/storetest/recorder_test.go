package storetest_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/escapement-dev/escapement/store/storetest"
)

// recorder stands in for a *testing.T: it notes that a case failed.
type recorder struct {
	testing.TB
	name string

	mu       sync.Mutex
	failed   bool
	log      strings.Builder
	cleanups []func()
}

func (r *recorder) Helper()        {}
func (r *recorder) Name() string   { return r.name }
func (r *recorder) Log(a ...any)   { r.note(fmt.Sprintln(a...)) }
func (r *recorder) Error(a ...any) { r.note(fmt.Sprintln(a...)); r.Fail() }
func (r *recorder) Fatal(a ...any) { r.note(fmt.Sprintln(a...)); r.FailNow() }
func (r *recorder) FailNow()       { r.Fail(); runtime.Goexit() }
func (r *recorder) Logf(f string, a ...any) {
	r.note(fmt.Sprintf(f, a...) + "\n")
}

func (r *recorder) Errorf(f string, a ...any) {
	r.note(fmt.Sprintf(f, a...) + "\n")
	r.Fail()
}

func (r *recorder) Fatalf(f string, a ...any) {
	r.note(fmt.Sprintf(f, a...) + "\n")
	r.FailNow()
}

func (r *recorder) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log.WriteString(s)
}

// fails runs the case and reports whether it failed, and what it said.
func fails(t *testing.T, c storetest.Case, h storetest.Harness) (failed bool, log string) {
	t.Helper()
	r := &recorder{TB: t, name: t.Name() + "/" + c.Name}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v", p)
			}
			for i := len(r.cleanups) - 1; i >= 0; i-- {
				r.cleanups[i]()
			}
		}()
		c.Run(r, h)
	}()
	<-finished
	return r.failed, r.log.String()
}
