package config

import (
	"fmt"
	"strings"

	"github.com/escapement-dev/escapement/store/redisstore"
)

const (
	storeWant   = "sqlite:PATH, postgres://HOST/DB, redis://HOST:PORT or memory:"
	limiterWant = "redis://HOST:PORT, postgres://HOST/DB or memory:"
)

// StoreURL says where records, or limits, are kept. Its zero value says
// nothing.
type StoreURL struct {
	// Kind is memory, sqlite, redis or postgres.
	Kind string
	// Path is the file of sqlite.
	Path string
	// Address is the URL of redis or postgres, with its password: never print
	// it.
	Address string
}

// IsPostgres reports whether it is PostgreSQL.
func (u StoreURL) IsPostgres() bool { return u.Kind == "postgres" }

// IsShared reports whether several hosts can share it: a server keeps it.
func (u StoreURL) IsShared() bool { return u.IsRedis() || u.IsPostgres() }

// IsRedis reports whether it is one of the forms of Redis.
func (u StoreURL) IsRedis() bool { return u.Kind == "redis" }

// IsCluster reports whether it is a Redis Cluster.
func (u StoreURL) IsCluster() bool {
	scheme, _, _ := strings.Cut(u.Address, "://")
	return u.IsRedis() && strings.HasSuffix(scheme, "+cluster")
}

// String returns the URL as it is written; that of a server without users,
// passwords and parameters.
func (u StoreURL) String() string {
	if !u.IsShared() {
		return u.Kind + ":" + u.Path
	}
	scheme, _, rest := u.parts()
	rest, _, _ = strings.Cut(rest, "?")
	return scheme + "://" + rest
}

// parts takes the URL of a server apart: what is before ://, the user and
// password before the @, and the rest. It was accepted.
func (u StoreURL) parts() (scheme, user, rest string) {
	scheme, rest, _ = strings.Cut(u.Address, "://")
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	if at := strings.LastIndexByte(rest[:end], '@'); at >= 0 {
		user, rest = rest[:at], rest[at+1:]
	}
	return scheme, user, rest
}

// hidden is the URL with references to environment variables in the place of
// its passwords.
func (u StoreURL) hidden(variable string) string {
	if !u.IsShared() {
		return u.String()
	}
	scheme, user, rest := u.parts()
	if name, _, ok := strings.Cut(user, ":"); ok {
		user = name + ":${" + variable + "_PASSWORD}"
	}
	if user != "" {
		user += "@"
	}
	rest, query, ok := strings.Cut(rest, "?")
	if ok {
		pairs := strings.Split(query, "&")
		for i, p := range pairs {
			switch name, _, _ := strings.Cut(p, "="); name {
			case "sentinel_password", "sslpassword":
				pairs[i] = name + "=${" + variable + "_" + strings.ToUpper(name) + "}"
			case "password":
				pairs[i] = name + "=${" + variable + "_PASSWORD}"
			}
		}
		rest += "?" + strings.Join(pairs, "&")
	}
	return scheme + "://" + user + rest
}

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
	case isRedis(kind):
		return parseRedis(s)
	case isPostgres(kind):
		return parsePostgres(s)
	}
	return StoreURL{}, &Fault{Problem: fmt.Sprintf("%q is not a kind of store", kind), Want: storeWant}
}

// ParseLimiter reads the URL of a store of limits; the fault has no place.
func ParseLimiter(s string) (StoreURL, *Fault) {
	kind, rest, _ := strings.Cut(s, ":")
	switch {
	case s == "memory:":
		return StoreURL{Kind: "memory"}, nil
	case isRedis(kind):
		return parseRedis(s)
	case isPostgres(kind):
		return parsePostgres(s)
	case kind == "sqlite":
		return StoreURL{}, &Fault{Problem: "limits are not kept in SQLite: each request would wait for the disk", Want: limiterWant}
	case kind == "memory" && rest != "":
		return StoreURL{}, &Fault{Problem: "memory: is followed by something", Write: "memory:"}
	}
	return StoreURL{}, &Fault{Problem: "is not a limiter's URL", Want: limiterWant}
}

func isRedis(kind string) bool {
	return kind == "redis" || kind == "rediss" || strings.HasPrefix(kind, "redis+") || strings.HasPrefix(kind, "rediss+")
}

func isPostgres(kind string) bool { return kind == "postgres" || kind == "postgresql" }

func parseRedis(s string) (StoreURL, *Fault) {
	const want = "redis://USER:PASSWORD@HOST:PORT/DB, redis+sentinel://HOST,HOST/MASTER or redis+cluster://HOST,HOST; rediss for TLS, with ?ca=FILE"
	if err := redisstore.CheckURL(s); err != nil {
		f := &Fault{Problem: "is not the URL of a Redis", Want: want}
		// What a special character has moved out of the password is not shown.
		if text := strings.TrimPrefix(err.Error(), "redisstore: "); !strings.Contains(s, "@") {
			f.Problem += ": " + text
		} else {
			f.Problem += "; special characters of user and password are escaped with %, as in %40 for @"
		}
		return StoreURL{}, f
	}
	return StoreURL{Kind: "redis", Address: s}, nil
}
