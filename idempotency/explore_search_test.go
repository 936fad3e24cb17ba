package idempotency

import (
	"fmt"
	"strings"
	"time"
)

// finding is the first, so shortest, way to break some properties.
type finding struct {
	broken property
	trace  string
}

// search visits every state of a scenario, nearest first.
type search struct {
	w        *walker
	states   []state
	parents  []int32
	labels   []label
	edges    int
	broken   property
	findings []finding
	full     bool // nothing was left to visit
}

// explore searches until there is nothing left, or, where something must be
// found, until it is, or until limit states were met.
func explore(sc *scenario, limit int) *search {
	rule := realRules()
	for _, m := range sc.mutate {
		m(&rule)
	}
	terms := Terms{
		Lease: time.Duration(sc.lease) * tick, Quiet: time.Duration(sc.quiet) * tick, Retention: time.Duration(sc.retention) * tick,
		Remember: time.Duration(sc.remember) * tick, OnUnknown: sc.policy,
	}
	w := &walker{scenario: sc, book: newBook(rule, len(sc.mutate) == 0, terms, time.Duration(sc.window)*tick)}
	x := &search{w: w}
	first := state{errors: sc.errors, crashes: sc.crashes, backs: sc.backs, forwards: sc.forwards}
	seen := map[state]struct{}{first: {}}
	x.states, x.parents, x.labels = append(x.states, first), append(x.parents, -1), append(x.labels, label{})
	var at int
	w.out = func(l label, s state) {
		x.edges++
		if w.broken&^x.broken != 0 {
			x.found(w.broken, at, l, s)
		}
		if _, ok := seen[s]; ok {
			return
		}
		seen[s] = struct{}{}
		x.states, x.parents, x.labels = append(x.states, s), append(x.parents, int32(at)), append(x.labels, l)
	}
	for ; at < len(x.states); at++ {
		if len(x.states) > limit || sc.want != 0 && x.broken&sc.want == sc.want {
			return x
		}
		s := x.states[at]
		if bad, out := w.aftermath(&s); bad&^x.broken != 0 {
			x.found(bad, at, label{evFresh, 0, uint8(out)}, s)
		}
		w.broken = 0
		w.next(&s)
	}
	x.full = true
	return x
}

func (x *search) found(broken property, at int, last label, s state) {
	var lines []string
	line := func(l label, s state) {
		lines = append(lines, fmt.Sprintf("%-52s | %s | effects %d", l, x.w.book.shapes[s.rec], s.effects))
	}
	line(last, s)
	for k := at; k > 0; k = int(x.parents[k]) {
		line(x.labels[k], x.states[k])
	}
	var b strings.Builder
	for i := range lines {
		fmt.Fprintf(&b, "\n  %2d %s", i+1, lines[len(lines)-1-i])
	}
	x.findings = append(x.findings, finding{broken &^ x.broken, b.String()})
	x.broken |= broken
}
