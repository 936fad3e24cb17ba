package idempotency

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// pointerTree is a set of JSON pointers (RFC 6901) by their reference tokens.
// A nil tree is the empty set.
type pointerTree struct {
	pointer string // what leads here, if it is in the set: then there are no children
	next    map[string]*pointerTree
}

// newPointerTree makes the tree of what parsePointers returned.
func newPointerTree(pointers []string) *pointerTree {
	if len(pointers) == 0 {
		return nil
	}
	root := new(pointerTree)
	for _, p := range pointers {
		t := root
		for token := range strings.SplitSeq(p[1:], "/") {
			token = unescapeToken.Replace(token)
			if t.next == nil {
				t.next = make(map[string]*pointerTree)
			}
			if t.next[token] == nil {
				t.next[token] = new(pointerTree)
			}
			t = t.next[token]
		}
		t.pointer = p
	}
	return root
}

// ends reports whether a pointer of the set leads to t.
func (t *pointerTree) ends() bool { return t != nil && t.pointer != "" }

// at returns the tree below a token, nil if there is none.
func (t *pointerTree) at(token []byte) *pointerTree {
	if t == nil {
		return nil
	}
	return t.next[string(token)]
}

// unescapeToken reads left to right, so that "~01" is "~1" (RFC 6901, 4).
var unescapeToken = strings.NewReplacer("~1", "/", "~0", "~")

// parsePointers checks pointers and returns them sorted, without those that
// are there twice or lie below another one. option is the name for faults.
func parsePointers(option string, pointers []string) ([]string, []error) {
	var faults []error
	for _, p := range pointers {
		if why := pointerFault(p); why != "" {
			faults = append(faults, fmt.Errorf("idempotency: %s: %q is not a JSON pointer that can be used: %s", option, p, why))
		}
	}
	if len(faults) > 0 {
		return nil, faults
	}
	// Shorter first, so that what covers a pointer is in the list before it.
	sorted := slices.Clone(pointers)
	slices.SortFunc(sorted, func(a, b string) int { return len(a) - len(b) })
	seen := make(map[string]bool, len(sorted))
	kept := sorted[:0]
	for _, p := range sorted {
		if !covered(seen, p) {
			seen[p] = true
			kept = append(kept, p)
		}
	}
	slices.Sort(kept)
	return kept, nil
}

// covered reports whether p, or a pointer that p lies below, is in seen.
func covered(seen map[string]bool, p string) bool {
	for i := 1; i < len(p); i++ {
		if p[i] == '/' && seen[p[:i]] {
			return true
		}
	}
	return seen[p]
}

func pointerFault(p string) string {
	switch {
	case p == "":
		return "the empty pointer names the whole body"
	case p[0] != '/':
		return `want "/" in front of each name, as in "/meta/time"`
	case !utf8.ValidString(p):
		return "it is not UTF-8"
	case strings.Count(p, "/") > jsonDepth:
		return "it is deeper than the 512 levels that are read"
	}
	for i := range len(p) {
		if p[i] == '~' && (i+1 == len(p) || p[i+1] != '0' && p[i+1] != '1') {
			return `want "~0" for "~" and "~1" for "/" in a name`
		}
	}
	return ""
}
