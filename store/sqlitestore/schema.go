package sqlitestore

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
)

// migrations holds the schema's versions, one file each, 0001.sql the first.
// A file that was released never changes.
//
//go:embed schema/*.sql
var migrations embed.FS

// migrate brings the schema to the newest version, in one transaction. Several
// processes may do so at once: the second finds the work done.
func migrate(ctx context.Context, c *sql.Conn, now int64) error {
	names, err := fs.Glob(migrations, "schema/*.sql")
	if err != nil {
		return err
	}
	have, err := schemaVersion(ctx, c)
	if err != nil || have == len(names) {
		return err
	}
	if have > len(names) {
		return fmt.Errorf("sqlitestore: the file has the schema %d, made by a newer version of Escapement, and this one knows %d: run the newer version", have, len(names))
	}
	if _, err := c.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return faulty(err)
	}
	err = migrateFrom(ctx, c, names, now)
	if err == nil {
		_, err = c.ExecContext(ctx, "COMMIT")
		err = faulty(err)
	}
	if err != nil {
		_, _ = c.ExecContext(context.WithoutCancel(ctx), "ROLLBACK") // SQLite may have done so
	}
	return err
}

func migrateFrom(ctx context.Context, c *sql.Conn, names []string, now int64) error {
	have, err := schemaVersion(ctx, c) // another process may have been faster
	if err != nil {
		return err
	}
	for i := have; i < len(names); i++ {
		text, err := migrations.ReadFile(names[i])
		if err != nil {
			return err
		}
		if i == 0 {
			if _, err := c.ExecContext(ctx, "CREATE TABLE escapement_schema (version INTEGER PRIMARY KEY, applied INTEGER NOT NULL)"); err != nil {
				return faulty(err)
			}
		}
		if _, err := c.ExecContext(ctx, string(text)); err != nil {
			return faulty(err)
		}
		if _, err := c.ExecContext(ctx, "INSERT INTO escapement_schema (version, applied) VALUES (?, ?)", i+1, now); err != nil {
			return faulty(err)
		}
	}
	return nil
}

// schemaVersion returns the version of the file's schema, 0 if it has none.
func schemaVersion(ctx context.Context, c *sql.Conn) (int, error) {
	var n int
	err := c.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'escapement_schema'").Scan(&n)
	if err != nil || n == 0 {
		return 0, faulty(err)
	}
	err = c.QueryRowContext(ctx, "SELECT ifnull(max(version), 0) FROM escapement_schema").Scan(&n)
	return n, faulty(err)
}
