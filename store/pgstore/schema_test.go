package pgstore

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/pgserver"
)

func connect(t testing.TB) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(context.Background(), pgserver.Shared(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// freshSchema returns a name that no schema has, and drops it at the end.
func freshSchema(t *testing.T, name string) string {
	t.Helper()
	c := connect(t)
	t.Cleanup(func() {
		if _, err := c.Exec(context.Background(), "DROP SCHEMA IF EXISTS "+quote(name)+" CASCADE"); err != nil {
			t.Error(err)
		}
	})
	return name
}

func TestMigrate(t *testing.T) {
	ctx := context.Background()
	schema := freshSchema(t, `odd "name"`)
	url := pgserver.Shared(t).URL()
	_, err := Open(ctx, url, Options{Schema: schema})
	if err == nil || !strings.Contains(err.Error(), "escapement migrate") {
		t.Fatalf("Open without tables: %v: want a hint at escapement migrate", err)
	}
	// Several at once: one of them does it, and all succeed.
	var wait sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		c := connect(t)
		wait.Go(func() { _, _, errs[i] = Migrate(ctx, c, schema) })
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	list, err := migrationTexts()
	if err != nil {
		t.Fatal(err)
	}
	if from, to, err := Migrate(ctx, connect(t), schema); err != nil || from != len(list) || to != from {
		t.Fatalf("Migrate again: from %d to %d, %v; want both %d", from, to, err, len(list))
	}
	s := openStore(t, url, Options{Schema: schema})
	if err := s.End(ctx, start(t, s, newClaim(newKey())), done("x")); err != nil {
		t.Fatal(err)
	}
	var state, class string
	if err := connect(t).QueryRow(ctx, "SELECT state, class FROM "+quote(schema)+".escapement_keys").Scan(&state, &class); err != nil || state != "done" || class != "succeeded" {
		t.Errorf("the view for people says %q, %q, %v", state, class, err)
	}
	if _, err := connect(t).Exec(ctx, "INSERT INTO "+quote(schema)+".escapement_schema (version) VALUES (99)"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Migrate(ctx, connect(t), schema); err == nil || !strings.Contains(err.Error(), "newer") {
		t.Errorf("Migrate of a newer schema: %v", err)
	}
	if _, err := Open(ctx, url, Options{Schema: schema}); err == nil || !strings.Contains(err.Error(), "newer") {
		t.Errorf("Open of a newer schema: %v", err)
	}
}

func TestMigrationSQL(t *testing.T) {
	ctx := context.Background()
	schema := freshSchema(t, "by_hand")
	text, err := MigrationSQL(schema, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t)
	if err := c.PgConn().Exec(ctx, text).Close(); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, pgserver.Shared(t).URL(), Options{Schema: schema})
	start(t, s, newClaim(newKey()))
	list, err := migrationTexts()
	if err != nil {
		t.Fatal(err)
	}
	if text, err := MigrationSQL(schema, len(list)); err != nil || text != "" {
		t.Errorf("the SQL from the newest version is %q, %v", text, err)
	}
	if _, err := MigrationSQL(schema, len(list)+1); err == nil {
		t.Error("the SQL from a newer version is no error")
	}
}

// Without a schema's name the tables are where the connection's search_path
// says.
func TestSearchPath(t *testing.T) {
	ctx := context.Background()
	schema := freshSchema(t, "by_path")
	url := pgserver.Shared(t).URL() + " search_path=" + schema
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if _, err := c.Exec(ctx, "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Migrate(ctx, c, ""); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, url, Options{})
	if err := s.End(ctx, start(t, s, newClaim(newKey())), done("x")); err != nil {
		t.Fatal(err)
	}
}

func TestOptionsReportEveryFault(t *testing.T) {
	err := Options{Connections: 2, MaxBatch: -1, Timeout: -1, LockWait: 1}.Validate()
	for _, name := range []string{"Connections", "MaxBatch", "Timeout", "LockWait"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not name %s: %v", name, err)
		}
	}
	if err := (Options{}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestClosedStore(t *testing.T) {
	ctx := context.Background()
	server := pgserver.Shared(t)
	s := openStore(t, server.URL(), Options{Schema: migrated(t, server)})
	r := start(t, s, newClaim(newKey()))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, reserve := s.Reserve(ctx, newClaim(newKey()))
	_, lookup := s.Lookup(ctx, r.Key)
	_, sweep := s.Sweep(ctx, 1)
	_, extend := s.Extend(ctx, r, 1)
	for name, err := range map[string]error{"Reserve": reserve, "Lookup": lookup, "Sweep": sweep, "Extend": extend, "End": s.End(ctx, r, idempotency.NotRun())} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s of a closed store: %v, want ErrClosed", name, err)
		}
	}
}
