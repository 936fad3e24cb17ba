package pgstore

import (
	"strings"
	"testing"
)

func TestCheckURL(t *testing.T) {
	for _, url := range []string{
		"postgres://db/esc", "postgresql://app:pw@db:5432/esc?sslmode=verify-full",
		"postgres://app:p%40ss%2Fword@a:1,b:2/esc?target_session_attrs=read-write&pool_max_conns=3",
		"postgres://app@[::1]:5432/esc", "postgres:///esc?host=/run/postgresql",
		"postgres://db/esc?sslmode=verify-ca&sslrootcert=/not/on/this/machine.pem&passfile=/nor/this",
	} {
		if err := CheckURL(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	for url, want := range map[string]string{
		"postgres://":                          "no host",
		"postgres:db":                          "does not begin with postgres://",
		"mysql://db/esc":                       "does not begin with postgres://",
		"postgres://db:port/esc":               "port",
		"postgres://db/esc?sslmode=tls":        "sslmode",
		"postgres://db/esc?pool_max_conns=2":   "less than 3",
		"postgres://db/esc?pool_max_conns=few": "pool_max_conns",
		"postgres://app:sec@ret@db/esc":        "escaped",
		"postgres://app:sec/ret@db/esc":        "escaped",
		"postgres://app:sec?ret@db/esc":        "escaped",
		"postgres://app:sec#ret@db/esc":        "",
		"postgres://app:secret%zz@db/esc":      "",
	} {
		err := CheckURL(url)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		} else if strings.Contains(err.Error(), "sec") || strings.Contains(err.Error(), "ret") {
			t.Errorf("%s: the error tells the password: %v", url, err)
		}
	}
}
