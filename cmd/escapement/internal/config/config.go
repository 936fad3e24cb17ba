package config

import (
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/escapement-dev/escapement/httpgate"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// Config is a whole configuration. See [Default] and [Parse].
type Config struct {
	// Upstream is where requests go; nil if it was not said.
	Upstream    *url.URL
	UpstreamTLS UpstreamTLS
	Listen      string
	TLS         TLS
	Admin       Admin
	Store       StoreURL
	// Limiter is empty if it was not said; see [Config.LimiterURL].
	Limiter  StoreURL
	Redis    Redis
	Postgres Postgres
	// Secret makes keys' hashes. Empty: made once and kept in the store.
	Secret      string
	ProblemBase string
	Log         Log
	Server      Server
	ReplayDrop  []string
	Identity    Identity
	// Default is the policy of every request without a route of its own.
	Default Route
	// Routes are complete: they inherited from Default.
	Routes []Route
	Limits []Limit

	file   string           // "" if no file was read
	places map[string]Place // of the fields that were said
}

// UpstreamTLS names PEM files. All may be empty.
type UpstreamTLS struct{ CA, Cert, Key string }

// TLS names the PEM files of the listener; both or none.
type TLS struct{ Cert, Key string }

// Admin is the operators' listener.
type Admin struct {
	Listen string
	// Token must be sent as a bearer token; empty: none, on loopback only.
	Token string
}

// Log says how lines are written: text or json; debug, info, warn or error.
type Log struct{ Format, Level string }

// Server bounds clients.
type Server struct {
	ReadHeader, Idle time.Duration
	// MaxHeader and MaxRequest are in bytes.
	MaxHeader, MaxRequest int64
	MaxRunning            int64
	Drain                 time.Duration
}

// Redis says how a store or a limiter in Redis is used.
type Redis struct {
	// Prefix stands in front of every key.
	Prefix string
	// LimitDeadline bounds a decision about limits, KeyDeadline a call about a
	// key.
	LimitDeadline, KeyDeadline time.Duration
	// AllowEviction accepts a server that may forget keys.
	AllowEviction bool
	// Spread places records by their own hash, in a Cluster.
	Spread bool
}

// Postgres says how a store or a limiter in PostgreSQL is used.
type Postgres struct {
	// LimitDeadline bounds a decision about limits, KeyDeadline a call about a
	// key.
	LimitDeadline, KeyDeadline time.Duration
}

// LimiterURL is where limits are kept: by default, with the records where that
// is Redis, else in memory.
func (c *Config) LimiterURL() StoreURL {
	switch {
	case c.Limiter.Kind != "":
		return c.Limiter
	case c.Store.IsRedis():
		return c.Store
	}
	return StoreURL{Kind: "memory"}
}

// Spread reports whether records are placed by their own hash: where the
// configuration says so, and where there is only one tenant, whose records no
// single node of a Cluster should hold.
func (c *Config) Spread() bool {
	one := len(c.Identity.Tenant) == 1 && strings.HasPrefix(c.Identity.Tenant[0].String(), "const:")
	return c.Redis.Spread || one && (c.Store.IsCluster() || c.LimiterURL().IsCluster())
}

// Identity says who is calling.
type Identity struct {
	// Tenant is empty if it was not said.
	Tenant, User, APIKey httpgate.Sources
	TrustedProxies       []netip.Prefix
	IPv6Prefix           int64
	// Missing says, by subject, what a limit does without it: ip, refuse or
	// shared.
	Missing map[string]string
}

// Route is what one pattern does with keys.
type Route struct {
	// Pattern is of the form of net/http.ServeMux; empty for the default.
	Pattern string
	// Key is required, optional or off.
	Key   string
	Scope []string
	Print idempotency.PrintOptions
	TTL   time.Duration
	// Remember is how long, after TTL, it is still known that an operation ran.
	Remember time.Duration
	Lease    time.Duration
	Timeout  time.Duration
	// Quiet is nil if it was not said; see [Route.QuietTime].
	Quiet     *time.Duration
	MaxAnswer int64
	// OnUnknown is hold or retry.
	OnUnknown string
	// RetryWindow is how long a temporary failure answers repeats.
	RetryWindow time.Duration
	// Confirm is how many replicas of Redis must have a write.
	Confirm int64
}

// QuietTime is the time after an attempt's unknown end in which nobody touches
// its key: as long as the attempt could still travel, and none where a second
// run does no harm.
func (r Route) QuietTime() time.Duration {
	switch {
	case r.Quiet != nil:
		return *r.Quiet
	case r.OnUnknown == "retry":
		return 0
	}
	return r.Timeout
}

// Limit is one rule and what it applies to.
type Limit struct {
	Rule   ratelimit.Rule
	Routes []string
	By     []string
	Cost   int64
	// Charge is requests or executions.
	Charge string
	// OnUnavailable is what the limit does while its store is out of reach:
	// local, open or closed.
	OnUnavailable string
	// LocalShare is the part of the limit that this process admits with local:
	// above 0, at most 1.
	LocalShare float64
}

// Default returns the configuration of an empty file.
func Default() *Config {
	return &Config{
		Listen:   ":8080",
		Admin:    Admin{Listen: "127.0.0.1:8081"},
		Store:    StoreURL{Kind: "sqlite", Path: "./escapement.db"},
		Redis:    Redis{LimitDeadline: 20 * time.Millisecond, KeyDeadline: 100 * time.Millisecond},
		Postgres: Postgres{LimitDeadline: 100 * time.Millisecond, KeyDeadline: time.Second},
		Log:      Log{Format: "text", Level: "info"},
		Server: Server{
			ReadHeader: 10 * time.Second, Idle: 2 * time.Minute,
			MaxHeader: 64 << 10, MaxRequest: 100 << 20,
			MaxRunning: 1000, Drain: 30 * time.Second,
		},
		Identity: Identity{
			APIKey:     httpgate.MustSources("header:X-Api-Key"),
			IPv6Prefix: 64,
			Missing:    map[string]string{"api_key": "ip", "user": "ip"},
		},
		Default: Route{
			Key: "optional", Scope: []string{"tenant", "method", "path"},
			TTL: 24 * time.Hour, Lease: 15 * time.Second, Timeout: time.Minute,
			MaxAnswer: 1 << 20, OnUnknown: "hold", RetryWindow: 2 * time.Second,
		},
	}
}

// Parse reads a configuration. The file's name is for messages only; env finds
// environment variables, such as os.LookupEnv. The error is [Faults].
//
// It says nothing about a missing upstream or tenant, which can also come from
// flags; see [Config.Complete].
func Parse(file string, data []byte, env func(string) (string, bool)) (*Config, error) {
	r := &reader{file: file, env: env, places: map[string]Place{}}
	c := Default()
	if top, ok := r.parse(data); ok && top != nil {
		r.config(value{node: top, place: r.placeOf(top)}, c)
	}
	r.checkRoutes(c)
	r.checkUser(c)
	if err := r.faults.err(); err != nil {
		return nil, err
	}
	c.file, c.places = file, r.places
	return c, nil
}
