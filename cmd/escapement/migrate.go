package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
	"github.com/escapement-dev/escapement/cmd/escapement/internal/serve"
)

type migrateFlags struct {
	Store string `placeholder:"URL" required:"" help:"The database: postgres://USER:PASSWORD@HOST:PORT/DB, as a user who may create tables, or who owns them." env:"ESCAPEMENT_STORE"`
	SQL   bool   `name:"sql" help:"Print the SQL that would be run, and change nothing."`
}

// migrate is the command migrate.
func (p *Program) migrate(ctx context.Context) error {
	f := p.flags.Migrate
	u, fault := config.ParseStore(f.Store)
	if fault != nil {
		fault.Place = config.Place{File: "--store"}
		return config.Faults{*fault}
	}
	if !u.IsPostgres() {
		return &serve.ConfigError{Err: errors.New("--store: " + u.String() + " has no schema that is migrated by hand: only PostgreSQL has one (postgres://HOST/DB)")}
	}
	if f.SQL {
		text, err := serve.MigrationSQL(ctx, u)
		if err != nil {
			return err
		}
		if text == "" {
			text = "-- the schema is up to date\n"
		}
		_, err = fmt.Fprint(p.Stdout, text)
		return err
	}
	from, to, err := serve.Migrate(ctx, u)
	if err != nil {
		return err
	}
	switch from {
	case 0:
		_, err = fmt.Fprintf(p.Stdout, "%s: created the schema, version %d\n", u, to)
	case to:
		_, err = fmt.Fprintf(p.Stdout, "%s: the schema is up to date, version %d\n", u, to)
	default:
		_, err = fmt.Fprintf(p.Stdout, "%s: upgraded the schema from version %d to %d\n", u, from, to)
	}
	return err
}
