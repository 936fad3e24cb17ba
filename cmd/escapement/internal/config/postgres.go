package config

import (
	"strings"

	"github.com/escapement-dev/escapement/store/pgstore"
)

// parsePostgres reads the URL of a PostgreSQL; the fault has no place.
func parsePostgres(s string) (StoreURL, *Fault) {
	if err := pgstore.CheckURL(s); err != nil {
		return StoreURL{}, &Fault{
			Problem: "is not the URL of a PostgreSQL: " + strings.TrimPrefix(err.Error(), "pgstore: "),
			Want:    "postgres://USER:PASSWORD@HOST:PORT/DB, or HOST:PORT,HOST:PORT with ?target_session_attrs=read-write where there are replicas",
		}
	}
	return StoreURL{Kind: "postgres", Address: s}, nil
}
