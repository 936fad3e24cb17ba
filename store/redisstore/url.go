package redisstore

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// ParseURL reads the address of a Redis:
//
//	redis://user:password@host:6379/0
//	redis+sentinel://user:password@sentinel1:26379,sentinel2:26379/main/0
//	redis+cluster://user:password@node1:6379,node2:6379
//
// rediss://, rediss+sentinel:// and rediss+cluster:// use TLS. User, password,
// ports and database may be left out. The path of a Sentinel URL is the name
// of its master, and then the database. The query may have sentinel_user and
// sentinel_password.
//
// The error never has the password in it.
func ParseURL(text string) (rueidis.ClientOption, error) {
	var o rueidis.ClientOption
	// Several hosts with ports are no URL to net/url: only the first is left.
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return o, errors.New("redisstore: the URL has no scheme: want redis://, redis+sentinel:// or redis+cluster:// (rediss for TLS)")
	}
	authority, path, _ := strings.Cut(rest, "/")
	if q := strings.IndexByte(authority, '?'); q >= 0 {
		authority, path = authority[:q], authority[q:]
	}
	user := ""
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, authority = authority[:i+1], authority[i+1:]
	}
	u, err := url.Parse("x://" + user + "host/" + path)
	if err != nil {
		return o, errors.New("redisstore: the URL cannot be read: escape special characters of user and password with %, as in %40 for @")
	}
	kind, tlsOn := strings.CutPrefix(scheme, "rediss")
	if !tlsOn {
		if kind, ok = strings.CutPrefix(scheme, "redis"); !ok {
			kind = "?"
		}
	}
	defaultPort := "6379"
	parts := strings.FieldsFunc(u.Path, func(r rune) bool { return r == '/' })
	switch kind {
	case "":
		o.ForceSingleClient = true
	case "+sentinel":
		defaultPort = "26379"
		if len(parts) == 0 {
			return o, errors.New("redisstore: a sentinel URL needs the name of the master as its path, as in redis+sentinel://host:26379/main")
		}
		o.Sentinel.MasterSet, parts = parts[0], parts[1:]
		o.Sentinel.Username = u.Query().Get("sentinel_user")
		o.Sentinel.Password = u.Query().Get("sentinel_password")
	case "+cluster":
		o.ShuffleInit = true
		if len(parts) > 0 {
			return o, errors.New("redisstore: a cluster has only the database 0: the URL ends after its hosts")
		}
	default:
		return o, fmt.Errorf("redisstore: the scheme %q is not known: want redis, redis+sentinel, redis+cluster, or rediss for TLS", scheme)
	}
	if len(parts) > 1 {
		return o, errors.New("redisstore: the URL's path has too many parts")
	}
	if len(parts) == 1 {
		if o.SelectDB, err = strconv.Atoi(parts[0]); err != nil || o.SelectDB < 0 {
			return o, fmt.Errorf("redisstore: the database %q is not a number", parts[0])
		}
	}
	for name := range u.Query() {
		if kind != "+sentinel" || name != "sentinel_user" && name != "sentinel_password" {
			return o, fmt.Errorf("redisstore: the URL's query has %q, which is not known", name)
		}
	}
	for _, h := range strings.Split(authority, ",") {
		host, port, err := net.SplitHostPort(h)
		if err != nil {
			host, port = strings.Trim(h, "[]"), defaultPort
		}
		if host == "" {
			return o, errors.New("redisstore: the URL has no host")
		}
		o.InitAddress = append(o.InitAddress, net.JoinHostPort(host, port))
	}
	if len(o.InitAddress) > 1 && kind == "" {
		return o, errors.New("redisstore: the URL has several hosts: want redis+sentinel:// or redis+cluster://")
	}
	if tlsOn {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		o.Sentinel.TLSConfig = o.TLSConfig
	}
	o.Username = u.User.Username()
	o.Password, _ = u.User.Password()
	o.ClientName = "escapement"
	o.Dialer.Timeout = 2 * time.Second
	// The client asks an idle connection for a sign of life every second, and
	// gives up one that does not answer for three. The wait of a call ends with
	// its own context.
	o.Dialer.KeepAlive = time.Second
	o.ConnWriteTimeout = 3 * time.Second
	o.DisableCache = true
	o.DisableRetry = true
	o.AlwaysPipelining = true
	// Calls that are made at once go out in one write: where there are several,
	// each waits so long at most for the next. A call that is alone does not.
	o.MaxFlushDelay = 20 * time.Microsecond
	return o, nil
}
