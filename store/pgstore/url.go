package pgstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Parameters that name files and services, which may be on another machine.
var fileParameters = []string{"sslrootcert", "sslcert", "sslkey", "passfile", "service", "servicefile"}

// CheckURL reports what is wrong with a postgres:// URL, without opening it or
// the files that it names. The error shows no part of the URL.
func CheckURL(url string) error {
	address, query, _ := strings.Cut(url, "?")
	if !strings.HasPrefix(address, "postgres://") && !strings.HasPrefix(address, "postgresql://") {
		return errors.New("pgstore: it does not begin with postgres://")
	}
	// A special character of the password has moved a part of it to where it
	// would be taken for a host, or a database, and shown.
	if _, after, _ := strings.Cut(address, "://"); after == "" && query == "" {
		return errors.New("pgstore: it has no host")
	} else if at := strings.LastIndexByte(after, '@'); strings.Contains(query, "@") || strings.Contains(url, "#") || at >= 0 && strings.ContainsAny(after[:at], "/@") {
		return errors.New("pgstore: special characters of user and password are escaped with %, as in %40 for @")
	}
	pairs := slices.DeleteFunc(strings.Split(query, "&"), func(p string) bool {
		name, _, _ := strings.Cut(p, "=")
		return slices.Contains(fileParameters, name)
	})
	c, err := pgxpool.ParseConfig(address + "?" + strings.Join(pairs, "&"))
	if err != nil {
		text := err.Error()
		if _, after, ok := strings.Cut(text, "`: "); ok {
			text = after
		}
		if strings.Contains(text, url) || strings.Contains(address, "@") && strings.Contains(text, address) {
			text = "it cannot be read"
		}
		return fmt.Errorf("pgstore: %s", text)
	}
	if strings.Contains(query, "pool_max_conns=") && c.MaxConns < 3 {
		return errors.New("pgstore: pool_max_conns is less than 3")
	}
	return nil
}

// SaysConnections reports whether a URL, or a keyword string, says how many
// connections a pool has (pool_max_conns).
func SaysConnections(url string) bool {
	c, err := pgconn.ParseConfig(url)
	return err == nil && c.RuntimeParams["pool_max_conns"] != ""
}
