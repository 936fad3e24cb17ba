package config

import (
	"fmt"
	"strings"
)

const storeWant = "sqlite:PATH or memory:"

// StoreURL says where records, or limits, are kept.
type StoreURL struct {
	// Kind is memory or sqlite.
	Kind string
	// Path is the file of sqlite.
	Path string
}

// String returns the URL as it is written.
func (u StoreURL) String() string { return u.Kind + ":" + u.Path }

// ParseStore reads the URL of a store of records; the fault has no place.
func ParseStore(s string) (StoreURL, *Fault) {
	kind, rest, colon := strings.Cut(s, ":")
	switch {
	case !colon:
		f := &Fault{Problem: "is not a store's URL", Want: storeWant}
		if s == "memory" {
			f.Want, f.Write = "", "memory:"
		} else if strings.HasSuffix(s, ".db") || strings.ContainsRune(s, '/') {
			f.Want, f.Write = "", "sqlite:"+s
		}
		return StoreURL{}, f
	case kind == "memory":
		if rest != "" {
			return StoreURL{}, &Fault{Problem: "memory: is followed by something", Want: "memory:", Write: "memory:"}
		}
		return StoreURL{Kind: kind}, nil
	case kind == "sqlite":
		// A path is what the user wrote, never a query for the driver.
		if rest == "" || strings.ContainsAny(rest, "?\x00") || strings.HasPrefix(rest, ":memory:") {
			return StoreURL{}, &Fault{Problem: "sqlite: is not followed by a file's path", Want: "sqlite:PATH", Write: "sqlite:./escapement.db"}
		}
		return StoreURL{Kind: kind, Path: rest}, nil
	}
	if known(kind) {
		return StoreURL{}, &Fault{Problem: fmt.Sprintf("%s %s", scheme(kind), later), Want: "", Write: "sqlite:PATH, or memory:"}
	}
	return StoreURL{}, &Fault{Problem: fmt.Sprintf("%q is not a kind of store", kind), Want: storeWant}
}

// ParseLimiter reads the URL of a store of limits; the fault has no place.
func ParseLimiter(s string) (StoreURL, *Fault) {
	kind, rest, _ := strings.Cut(s, ":")
	switch {
	case s == "memory:":
		return StoreURL{Kind: "memory"}, nil
	case known(kind):
		return StoreURL{}, &Fault{Problem: fmt.Sprintf("%s %s", scheme(kind), later), Write: "memory:"}
	case kind == "sqlite":
		return StoreURL{}, &Fault{Problem: "limits are not kept in SQLite: each request would wait for the disk", Write: "memory:"}
	case kind == "memory" && rest != "":
		return StoreURL{}, &Fault{Problem: "memory: is followed by something", Write: "memory:"}
	}
	return StoreURL{}, &Fault{Problem: "is not a limiter's URL", Want: "memory:", Write: "memory:"}
}

// known reports whether later versions have this kind of store.
func known(kind string) bool {
	switch kind {
	case "redis", "rediss", "redis+sentinel", "redis+cluster", "postgres", "postgresql":
		return true
	}
	return false
}

func scheme(kind string) string { return kind + "://" }
