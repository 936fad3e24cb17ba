package pgstore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// migrations holds the schema's versions, one file each, 0001.sql the first.
// A file that was released never changes.
//
//go:embed schema/*.sql
var migrations embed.FS

// Beginner begins transactions: a *pgxpool.Pool, or a *pgx.Conn.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// SchemaVersion returns the version of the schema that there is (0: none), and
// the newest one, which this package needs. It changes nothing.
func SchemaVersion(ctx context.Context, db Querier, schema string) (have, newest int, err error) {
	list, err := migrationTexts()
	if err != nil {
		return 0, 0, err
	}
	err = db.QueryRow(ctx, newQueries(schema).schemaVersion).Scan(&have)
	switch c := code(err); c {
	case "42P01", "3F000": // there is no such table, or no such schema
		return 0, len(list), nil
	}
	return have, len(list), explain(faulty(err))
}

// Querier asks for one row: a *pgxpool.Pool, a *pgx.Conn, or a pgx.Tx.
type Querier interface {
	QueryRow(ctx context.Context, text string, args ...any) pgx.Row
}

// Migrate brings the schema to the newest version, in one transaction, and
// returns the version that it found (0: none) and the one that there is now.
// An empty schema is the first one of the connection's search_path; a named
// one is made if it does not exist.
//
// Several processes may do so at once: the second waits for the first, and
// finds the work done. A newer schema than this version knows is an error, and
// nothing changes; so it is with every other error.
func Migrate(ctx context.Context, db Beginner, schema string) (from, to int, err error) {
	for try := 0; ; try++ {
		from, to, err = migrate(ctx, db, schema)
		// Two processes that make the first table at the same moment do not
		// wait for each other: one of them fails.
		var e *pgconn.PgError
		if try == 3 || !errors.As(err, &e) || e.Code != "23505" && e.Code != "42P07" && e.Code != "42P06" {
			return from, to, explain(err)
		}
	}
}

func migrate(ctx context.Context, db Beginner, schema string) (from, to int, err error) {
	list, err := migrationTexts()
	if err != nil {
		return 0, 0, err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // no effect after Commit
	for _, s := range opening(schema) {
		if _, err := tx.Exec(ctx, s); err != nil {
			return 0, 0, err
		}
	}
	if err := tx.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM escapement_schema").Scan(&from); err != nil {
		return 0, 0, err
	}
	if from > len(list) {
		return from, from, tooNew(from, len(list))
	}
	for i := from; i < len(list); i++ {
		// Several statements in one string need the simple protocol.
		if _, err := tx.Conn().PgConn().Exec(ctx, list[i]).ReadAll(); err != nil {
			return from, from, err
		}
		if _, err := tx.Exec(ctx, "INSERT INTO escapement_schema (version) VALUES ($1)", i+1); err != nil {
			return from, from, err
		}
	}
	return from, len(list), tx.Commit(ctx)
}

// opening are the statements before the first migration. They change nothing
// where the schema exists, but that the transaction waits for others that
// migrate, and names resolve in the schema.
func opening(schema string) []string {
	var out []string
	if schema != "" {
		out = append(
			out,
			"CREATE SCHEMA IF NOT EXISTS "+quote(schema),
			"SET LOCAL search_path TO "+quote(schema),
		)
	}
	return append(
		out,
		"CREATE TABLE IF NOT EXISTS escapement_schema (version integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT clock_timestamp())",
		"LOCK TABLE escapement_schema IN EXCLUSIVE MODE",
	)
}

// MigrationSQL returns the SQL by which [Migrate] brings the schema from a
// version (0: there is none) to the newest one, as one transaction, for those
// who run it by other means. It is empty where there is nothing to do.
func MigrationSQL(schema string, from int) (string, error) {
	list, err := migrationTexts()
	if err != nil {
		return "", err
	}
	if from < 0 || from > len(list) {
		return "", tooNew(from, len(list))
	}
	if from == len(list) {
		return "", nil
	}
	var b strings.Builder
	b.WriteString("BEGIN;\n")
	for _, s := range opening(schema) {
		b.WriteString(s + ";\n")
	}
	for i := from; i < len(list); i++ {
		fmt.Fprintf(&b, "\n-- version %d\n%sINSERT INTO escapement_schema (version) VALUES (%d);\n", i+1, list[i], i+1)
	}
	b.WriteString("COMMIT;\n")
	return b.String(), nil
}

func migrationTexts() ([]string, error) {
	names, err := fs.Glob(migrations, "schema/*.sql")
	if err != nil {
		return nil, err
	}
	list := make([]string, len(names))
	for i, n := range names {
		b, err := migrations.ReadFile(n)
		if err != nil {
			return nil, err
		}
		list[i] = string(b)
	}
	return list, nil
}

func tooNew(have, know int) error {
	return fmt.Errorf("pgstore: the database has the schema version %d, and this version of Escapement knows 0 to %d: run the newer version", have, know)
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
