package httpgate

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// Defaults and bounds of a [Config].
const (
	DefaultMaxAnswer       = 1 << 20         // bytes
	LargestMaxAnswer       = 16 << 20        // bytes
	DefaultRetryableWindow = 2 * time.Second // see KeyPolicy.RetryableWindow
	DefaultMaxRequest      = 100 << 20       // bytes
	DefaultSpoolMemory     = 64 << 10        // bytes
	DefaultIPv6Prefix      = 64              // bits
	DefaultAPIKeySource    = "header:X-Api-Key"
)

// Config is what a [Middleware] is made of. Only Gate, Hasher and, for keyed
// requests, Identity.Tenant must be set.
type Config struct {
	// Gate judges the requests. Required.
	Gate *escapement.Gate
	// Hasher makes keys, and pseudonyms of what must not be stored as it is.
	// Required. All nodes that share a store need the same secret.
	Hasher *idempotency.Hasher
	// Identity says who is calling.
	Identity Identity
	// Keys is the policy of every request for which Routes has no pattern:
	// there, keys count on POST and PATCH.
	Keys KeyPolicy
	// Routes holds complete policies by pattern of [http.ServeMux], such as
	// "POST /v1/orders" or "example.com/v1/". They inherit nothing from Keys:
	// a zero field means its own default. Keys count on POST and PATCH, and on
	// PUT and DELETE only where the pattern names that method.
	Routes map[string]KeyPolicy
	// Limits are judged together, in this order: all that match apply.
	Limits []Limit
	// ProblemBase is what the type of a problem begins with; the slug follows
	// after a slash. Empty: urn:problem-type:escapement:SLUG.
	ProblemBase string
	// ReplayDrop names more header fields that are not replayed.
	ReplayDrop []string
	// MaxRequest is the greatest size of a request's body, in bytes; larger
	// ones are answered 413. 0: DefaultMaxRequest.
	MaxRequest int64
	// SpoolMemory is how much of a keyed request's body is held in memory, in
	// bytes; what is beyond goes to a temporary file. 0: DefaultSpoolMemory.
	SpoolMemory int64
	// SpoolDir is where the temporary files are. Empty: os.TempDir().
	SpoolDir string
	// Logger gets a line for what a person should know. Nil: slog.Default().
	Logger *slog.Logger
}

// KeyMode says whether requests have keys.
type KeyMode uint8

const (
	// Optional: a request with a key runs once, one without just runs. It is
	// the zero value.
	Optional KeyMode = iota
	// Required: a request without a key is refused.
	Required
	// Off: the key's field has no meaning here and passes.
	Off
)

// String returns the mode as the configuration writes it.
func (m KeyMode) String() string {
	switch m {
	case Optional:
		return "optional"
	case Required:
		return "required"
	case Off:
		return "off"
	}
	return "invalid"
}

// KeyPolicy is what one route does with keys. Its zero value is valid: every
// field has a default.
type KeyPolicy struct {
	// Mode is Optional unless set.
	Mode KeyMode
	// Scope says within what a key is unique: "tenant" (which must be there),
	// "user", "method", "path", and "header:NAME". Nil: tenant, method, path.
	// A change of it means that earlier keys are not found.
	//
	// The path is that of the request, never the route's pattern, so that an
	// edited configuration orphans no key; see [Middleware.Wrap] for its form.
	Scope []string
	// Print says what of a request counts when a key is used again.
	Print idempotency.PrintOptions
	// Policy has times and what to do when the outcome is not known. The zero
	// value means escapement.DefaultPolicy(); else it is taken as it is.
	Policy escapement.Policy
	// MaxAnswer is the greatest answer that is kept for replay, in bytes of its
	// body. A larger one is delivered, and repeats are told that it was not
	// kept. 0: DefaultMaxAnswer. At most LargestMaxAnswer.
	MaxAnswer int64
	// RetryableWindow is how long a temporary failure answers repeats before
	// the operation may run again. 0: DefaultRetryableWindow. Negative: not at
	// all, the next repeat runs.
	RetryableWindow time.Duration
}

// Limit is one rule, for the requests that match it.
type Limit struct {
	// Rule says how much. Its Name is unique within a Config.
	Rule ratelimit.Rule
	// Routes are patterns of [http.ServeMux]; the limit applies if any of them
	// matches. None: it applies to all requests.
	Routes []string
	// By says whose bucket is charged: "tenant", "user", "api_key", "ip",
	// "route" (the most specific of all patterns in the Config that matches)
	// and "header:NAME". Empty: one bucket for all.
	By []string
	// Kind is ratelimit.Requests unless set: replays count too.
	Kind ratelimit.Kind
	// Cost is what one request costs. 0: 1.
	Cost int64
}

// Identity says who is calling. Its zero value knows no tenant: then every
// keyed request is refused.
type Identity struct {
	// Tenant is whose keys they are. There is no default: a keyed request in
	// which no source is present is answered 400 caller-unknown.
	Tenant Sources
	// User is who, within the tenant.
	User Sources
	// APIKey is always hashed before use. Nil: DefaultAPIKeySource.
	APIKey Sources
	// TrustedProxies are those whose X-Forwarded-For is believed, from the
	// right. None: the client is the peer of the connection.
	TrustedProxies []netip.Prefix
	// IPv6Prefix is how many bits of an IPv6 address count. 0:
	// DefaultIPv6Prefix.
	IPv6Prefix int
	// Missing says what a limit does when an entry of its By is not in the
	// request. Its keys are such entries: "tenant", "user", "api_key",
	// "header:NAME". Those that it does not name are MissingIP.
	Missing map[string]Missing
}

// Missing says what a limit does about a request that lacks its subject. It is
// never silently one bucket for all.
type Missing uint8

const (
	// MissingIP: the client's address takes the subject's place. It is the
	// zero value.
	MissingIP Missing = iota
	// MissingRefuse: the request is answered 400 caller-unknown.
	MissingRefuse
	// MissingShared: all requests that lack it share one bucket.
	MissingShared
)

// String returns m as the configuration writes it.
func (m Missing) String() string {
	switch m {
	case MissingIP:
		return "ip"
	case MissingRefuse:
		return "refuse"
	case MissingShared:
		return "shared"
	}
	return "invalid"
}
