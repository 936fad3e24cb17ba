package redisstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
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
// sentinel_password, and with TLS the names of PEM files: ca, the authority
// that signs the servers' certificates, in place of the system's; cert and key,
// which are shown to servers that ask who is calling. The files are read.
//
// The error is ErrFile for a file that cannot be used, and never has the
// password in it.
func ParseURL(text string) (rueidis.ClientOption, error) {
	o, files, err := parseURL(text)
	if err != nil {
		return o, err
	}
	return o, files.load(o.TLSConfig)
}

// CheckURL returns what [ParseURL] finds wrong with a URL, and reads no files.
func CheckURL(text string) error {
	_, _, err := parseURL(text)
	return err
}

// tlsFiles are the names of PEM files.
type tlsFiles struct{ ca, cert, key string }

func (f tlsFiles) load(c *tls.Config) error {
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return fmt.Errorf("%w: ca: %w", ErrFile, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%w: ca: %s has no certificate in PEM form", ErrFile, f.ca)
		}
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return fmt.Errorf("%w: cert %s, key %s: %w", ErrFile, f.cert, f.key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return nil
}

func parseURL(text string) (o rueidis.ClientOption, files tlsFiles, err error) {
	o, query, err := parseAddress(text)
	if err != nil {
		return o, files, err
	}
	sentinel := o.Sentinel.MasterSet != ""
	for name, values := range query {
		var into *string
		switch {
		case sentinel && name == "sentinel_user":
			into = &o.Sentinel.Username
		case sentinel && name == "sentinel_password":
			into = &o.Sentinel.Password
		case name == "ca":
			into = &files.ca
		case name == "cert":
			into = &files.cert
		case name == "key":
			into = &files.key
		default:
			return o, files, fmt.Errorf("redisstore: the URL's query has %q, which is not known", name)
		}
		if len(values) != 1 || values[0] == "" {
			return o, files, fmt.Errorf("redisstore: the URL's query has %q without a value, or twice", name)
		}
		*into = values[0]
	}
	switch {
	case files != tlsFiles{} && o.TLSConfig == nil:
		return o, files, errors.New("redisstore: the URL names files for TLS, and its scheme is one without: want rediss")
	case (files.cert == "") != (files.key == ""):
		return o, files, errors.New("redisstore: the URL's query has only one of cert and key: want both")
	}
	return o, files, nil
}

// parseAddress reads everything but the query.
func parseAddress(text string) (rueidis.ClientOption, url.Values, error) {
	var o rueidis.ClientOption
	// Several hosts with ports are no URL to net/url: only the first is left.
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return o, nil, errors.New("redisstore: the URL has no scheme: want redis://, redis+sentinel:// or redis+cluster:// (rediss for TLS)")
	}
	authority, path := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, path = rest[:i], strings.TrimPrefix(rest[i:], "/")
	}
	user := ""
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, authority = authority[:i+1], authority[i+1:]
	}
	u, err := url.Parse("x://" + user + "host/" + path)
	if err != nil {
		return o, nil, errors.New("redisstore: the URL cannot be read: escape special characters of user and password with %, as in %40 for @")
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
			return o, nil, errors.New("redisstore: a sentinel URL needs the name of the master as its path, as in redis+sentinel://host:26379/main")
		}
		o.Sentinel.MasterSet, parts = parts[0], parts[1:]
	case "+cluster":
		o.ShuffleInit = true
		if len(parts) > 0 {
			return o, nil, errors.New("redisstore: a cluster has only the database 0: the URL ends after its hosts")
		}
	default:
		return o, nil, fmt.Errorf("redisstore: the scheme %q is not known: want redis, redis+sentinel, redis+cluster, or rediss for TLS", scheme)
	}
	if len(parts) > 1 {
		return o, nil, errors.New("redisstore: the URL's path has too many parts")
	}
	if len(parts) == 1 {
		if o.SelectDB, err = strconv.Atoi(parts[0]); err != nil || o.SelectDB < 0 {
			return o, nil, fmt.Errorf("redisstore: the database %q is not a number", parts[0])
		}
	}
	for _, h := range strings.Split(authority, ",") {
		host, port, err := net.SplitHostPort(h)
		if err != nil {
			host, port = strings.Trim(h, "[]"), defaultPort
		}
		if host == "" {
			return o, nil, errors.New("redisstore: the URL has no host")
		}
		o.InitAddress = append(o.InitAddress, net.JoinHostPort(host, port))
	}
	if len(o.InitAddress) > 1 && kind == "" {
		return o, nil, errors.New("redisstore: the URL has several hosts: want redis+sentinel:// or redis+cluster://")
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
	return o, u.Query(), nil
}
