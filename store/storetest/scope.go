package storetest

import (
	"flag"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// scopedTB is a testing.TB for one of many runs, which cleans up after each.
type scopedTB struct {
	testing.TB

	mu       sync.Mutex
	cleanups []func()
}

func (s *scopedTB) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *scopedTB) close() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
}

// scope is one run of a property: what fails is the run.
type scope struct {
	scopedTB
	to *rapid.T
}

func (s *scope) Helper()                   {}
func (s *scope) Log(args ...any)           { s.to.Log(args...) }
func (s *scope) Logf(f string, a ...any)   { s.to.Logf(f, a...) }
func (s *scope) Error(args ...any)         { s.to.Error(args...) }
func (s *scope) Errorf(f string, a ...any) { s.to.Errorf(f, a...) }
func (s *scope) Fatal(args ...any)         { s.to.Fatal(args...) }
func (s *scope) Fatalf(f string, a ...any) { s.to.Fatalf(f, a...) }
func (s *scope) Fail()                     { s.to.Fail() }
func (s *scope) FailNow()                  { s.to.FailNow() }
func (s *scope) Failed() bool              { return s.to.Failed() }

// explore runs prop many times, until every one of the kinds has been counted
// at least once: a kind of step that never succeeded has not been tested.
func explore(t testing.TB, h Harness, kinds []string, prop func(s *scope, rt *rapid.T, count func(kind string))) {
	t.Helper()
	defer setFlag("rapid.checks", strconv.Itoa(h.times(100)))()
	defer setFlag("rapid.steps", "60")()
	counts := map[string]int{}
	missing := func() (list []string) {
		for _, k := range kinds {
			if counts[k] == 0 {
				list = append(list, k)
			}
		}
		return list
	}
	begin := time.Now()
	for round := 0; ; round++ {
		rapid.Check(t, func(rt *rapid.T) {
			s := &scope{scopedTB: scopedTB{TB: t}, to: rt}
			defer s.close()
			prop(s, rt, func(kind string) { counts[kind]++ })
		})
		left := missing()
		if len(left) == 0 {
			t.Logf("%d kinds of steps: %v", len(kinds), counts)
			return
		}
		if round >= 20 && time.Since(begin) > patience {
			t.Fatalf("never succeeded: %v; counted: %v", left, counts)
		}
	}
}

// setFlag sets a flag that the user did not set, and returns what undoes it.
func setFlag(name, value string) func() {
	f := flag.Lookup(name)
	if f == nil {
		panic(fmt.Sprintf("storetest: there is no flag %s", name))
	}
	given := false
	flag.Visit(func(v *flag.Flag) { given = given || v.Name == name })
	if given {
		return func() {}
	}
	old := f.Value.String()
	if err := f.Value.Set(value); err != nil { // not flag.Set: it would count as given
		panic(err)
	}
	return func() { _ = f.Value.Set(old) }
}
