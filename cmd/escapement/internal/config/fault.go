package config

import (
	"fmt"
	"slices"
	"strings"
)

// Place is where something stands. Line and Column count from 1; they are 0
// for what stands in no file, such as a flag, whose name is then File.
type Place struct {
	File         string
	Line, Column int
}

// String returns file:line:column, or what there is of it.
func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Fault is one thing that is wrong, or worth a warning.
type Fault struct {
	Place Place
	// Field is the field's path, such as idempotency.ttl; it may be empty.
	Field string
	// Problem says what is wrong.
	Problem string
	// Want says what was expected; it may be empty.
	Want string
	// Write is what to write; it may be empty.
	Write string
}

// String returns the fault in one to three lines, without a line end.
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.Place.String())
	b.WriteString(": ")
	if f.Field != "" {
		b.WriteString(f.Field)
		b.WriteString(": ")
	}
	b.WriteString(f.Problem)
	if f.Want != "" {
		b.WriteString("\n    want: ")
		b.WriteString(f.Want)
	}
	if f.Write != "" {
		b.WriteString("\n    write: ")
		b.WriteString(f.Write)
	}
	return b.String()
}

// Faults are all that is wrong with a configuration, in the order of the file.
// It is an error if it is not empty.
type Faults []Fault

// Error returns every fault, one after the other.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i := range f {
		lines[i] = f[i].String()
	}
	return strings.Join(lines, "\n")
}

// err returns f sorted, or nil if there is none.
func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	f.sort()
	return f
}

func (f Faults) sort() {
	slices.SortStableFunc(f, func(a, b Fault) int {
		if a.Place.Line != b.Place.Line {
			return a.Place.Line - b.Place.Line
		}
		return a.Place.Column - b.Place.Column
	})
}

// nearest returns the one of names that s was probably meant to be, or "".
func nearest(s string, names []string) string {
	s = strings.ToLower(s)
	best, least := "", 1+max(1, len(s)/3)
	for _, n := range names {
		if d := distance(s, n, least); d < least || d == least && n < best {
			best, least = n, d
		}
	}
	if least > max(1, len(s)/3) {
		return ""
	}
	return best
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours between a and b (optimal string alignment). Beyond most, any
// greater number may be returned.
func distance(a, b string, most int) int {
	if d := len(a) - len(b); d > most || -d > most {
		return most + 1
	}
	older, old, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range old {
		old[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(old[j]+1, row[j-1]+1, old[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], older[j-2]+1)
			}
		}
		older, old, row = old, row, older
	}
	return old[len(b)]
}
