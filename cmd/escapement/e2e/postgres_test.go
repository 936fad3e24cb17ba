package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/escapement-dev/escapement/internal/pgserver"
)

// unhurried are deadlines that a busy machine keeps.
const unhurried = "postgres: {limit_deadline: 5s, key_deadline: 5s}\n"

// database is one of a PostgreSQL, with the URL that the program is given.
type database struct {
	server *pgserver.Server
	name   string
	url    string
}

var databases atomic.Int64

// newDatabase makes an empty database on the server that the tests share.
func newDatabase(t *testing.T) *database {
	t.Helper()
	return databaseOn(t, pgserver.Shared(t))
}

func databaseOn(t *testing.T, s *pgserver.Server) *database {
	t.Helper()
	d := &database{server: s, name: "postgres"}
	name := fmt.Sprintf("e2e_%d", databases.Add(1))
	d.exec(t, "CREATE DATABASE "+name)
	d.name = name
	d.url = "postgres://postgres@" + s.Address() + "/" + name + "?sslmode=disable"
	return d
}

// privatePostgres is a server that this test alone may stop.
func privatePostgres(t *testing.T) *pgserver.Server {
	t.Helper()
	s, err := pgserver.Start(false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// do runs f with a connection to the database.
func (d *database) do(t *testing.T, f func(context.Context, *pgx.Conn) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, d.server.URL()+" dbname="+d.name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if err := f(ctx, c); err != nil {
		t.Fatal(err)
	}
}

func (d *database) exec(t *testing.T, statements ...string) {
	t.Helper()
	d.do(t, func(ctx context.Context, c *pgx.Conn) error {
		for _, text := range statements {
			if _, err := c.Exec(ctx, text); err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
		}
		return nil
	})
}

// number is what a query of one number gives.
func (d *database) number(t *testing.T, query string, args ...any) (n int64) {
	t.Helper()
	d.do(t, func(ctx context.Context, c *pgx.Conn) error { return c.QueryRow(ctx, query, args...).Scan(&n) })
	return n
}

// startOnPostgres starts a program with its store in PostgreSQL.
func startOnPostgres(t *testing.T, d *database, upstream string, o options) *program {
	t.Helper()
	o.store = d.url
	return start(t, upstream, o)
}

// The start makes the tables where it may, says what is shared and what a crash
// can lose, shows no password, and is ready.
func TestPostgresStartsAndSaysWhatItIs(t *testing.T) {
	t.Parallel()
	d, up := newDatabase(t), startUpstream(t)
	with := *d
	with.url = strings.Replace(d.url, "postgres@", "postgres:p%40ss-word@", 1) // trusted whatever it says
	p := startOnPostgres(t, &with, up, options{})
	block := p.stdout.String()
	shown := "postgres://" + d.server.Address() + "/" + d.name
	for _, want := range []string{
		"records   " + shown + " durable. Shared by all processes that name it\n",
		"limits    memory:", "postgres  PostgreSQL ", "fsync off, synchronous_commit on, no synchronous standby; at most 4 connections;",
		"deadlines: limits 100ms, keys 1s", "a failover can lose the last ones",
		"warning   fsync is off",
	} {
		if !strings.Contains(block, want) {
			t.Errorf("the block lacks %q:\n%s", want, block)
		}
	}
	if all := block + p.stderr.String(); strings.Contains(all, "ss-word") || !strings.Contains(all, "made the tables of Escapement") {
		t.Errorf("the program says\n%s", all)
	}
	q := request{key: "client-secret", tenant: "acme", body: `{"item":"tea"}`}
	first := q.send(p.url)
	first.want(t, 201, "")
	if again := q.send(p.url); !again.same(first) || !again.replayed() {
		t.Errorf("the repeat gets %v (replayed %v)", again, again.replayed())
	}
	if n := d.number(t, "SELECT count(*) FROM escapement_keys WHERE tenant = 'acme' AND state = 'done' AND key NOT LIKE '%secret%'"); n != 1 {
		t.Errorf("%d records, want 1", n)
	}
	if n := d.number(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'escapement'", d.name); n < 1 || n > 4 {
		t.Errorf("the program has %d connections", n)
	}
	if err := p.terminate(); err != nil {
		t.Error(err)
	}
	// A second start finds the tables, and the answer.
	p = startOnPostgres(t, d, up, options{})
	if again := q.send(p.url); !again.same(first) || !again.replayed() {
		t.Errorf("after a restart the repeat gets %v", again)
	}
}

// A user with the rights that docs/OPERATIONS.md lists runs the program; one
// who may not make tables is told what to run; and by it they are made.
func TestPostgresMigrateAndRights(t *testing.T) {
	t.Parallel()
	d, up := newDatabase(t), startUpstream(t)
	text := document(t, "OPERATIONS.md")
	rights := regexp.MustCompile("(?s)```sql\n(.*?)```").FindStringSubmatch(text)
	if rights == nil {
		t.Fatal("docs/OPERATIONS.md does not list the user's rights")
	}
	user := fmt.Sprintf("app_%s", d.name)
	d.exec(t, "CREATE ROLE "+user+" LOGIN", "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	app := *d
	app.url = strings.Replace(d.url, "postgres@", user+"@", 1)
	_, err := run(up, options{dir: t.TempDir(), store: app.url})
	shown := "postgres://" + d.server.Address() + "/" + d.name
	if err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), "escapement migrate --store "+shown) {
		t.Fatalf("the start without tables, by a user who may not make them: %v", err)
	}
	// Five at once: each is done, and the work was done once.
	results := make(chan error, 5)
	for range cap(results) {
		go func() {
			out, err := command("migrate", "--store", d.url)
			if err == nil && !regexp.MustCompile(`^\S+: (created the schema|the schema is up to date), version \d+\n$`).MatchString(out) {
				err = fmt.Errorf("migrate says %s", out)
			}
			results <- err
		}()
	}
	for range cap(results) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	for _, statement := range strings.Split(strings.TrimSpace(rights[1]), ";\n") {
		d.exec(t, strings.ReplaceAll(strings.TrimSuffix(statement, ";"), "app", user))
	}
	p := startOnPostgres(t, &app, up, options{settings: strings.Replace(settings, "key: required, on_unknown: retry", "key: required, on_unknown: retry, ttl: 1s", 1)})
	q := request{key: "k", body: `{"item":"tea"}`}
	q.send(p.url).want(t, 201, "")
	if again := q.send(p.url); !again.replayed() {
		t.Errorf("the repeat gets %v", again)
	}
	if log := p.stderr.String(); strings.Contains(log, "may not do this") {
		t.Errorf("the log says\n%s", log)
	}
	p = startOnPostgres(t, &app, up, options{more: "limiter: " + app.url + "\nlimits: [{name: a, by: [tenant], rate: 1/h}]\n"})
	request{method: "GET"}.send(p.url).want(t, 200, "")
	request{method: "GET"}.send(p.url).want(t, 429, "quota-exceeded")
	if log := p.stderr.String(); strings.Contains(log, "may not do this") || strings.Contains(log, "is away") {
		t.Errorf("the log says\n%s", log)
	}
	if out, err := command("migrate", "--sql", "--store", app.url); err != nil || out != "-- the schema is up to date\n" {
		t.Errorf("migrate --sql says %q, %v", out, err)
	}
	// Tables of an earlier version are not touched by a start.
	newest := d.number(t, "SELECT max(version) FROM escapement_schema")
	d.exec(t, fmt.Sprintf("DELETE FROM escapement_schema WHERE version = %d", newest))
	if _, err := run(up, options{dir: t.TempDir(), store: d.url}); err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), "escapement migrate --store "+shown) {
		t.Errorf("the start on tables of an earlier version: %v", err)
	}
	if n := d.number(t, "SELECT max(version) FROM escapement_schema"); n != newest-1 {
		t.Errorf("the start has made version %d of %d", n, newest-1)
	}
	// Nor are those of a later one.
	d.exec(t, fmt.Sprintf("INSERT INTO escapement_schema (version) VALUES (%d)", newest+1))
	if _, err := run(up, options{dir: t.TempDir(), store: d.url}); err == nil || !strings.Contains(err.Error(), "run the newer version") {
		t.Errorf("the start on tables of a later version: %v", err)
	}
}

// What migrate --sql prints is what migrate does.
func TestPostgresMigrateSQL(t *testing.T) {
	t.Parallel()
	d, up := newDatabase(t), startUpstream(t)
	text, err := command("migrate", "--sql", "--store", d.url)
	if err != nil {
		t.Fatal(err)
	}
	if n := d.number(t, "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'escapement%'"); n != 0 {
		t.Errorf("migrate --sql has made %d tables", n)
	}
	d.do(t, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.PgConn().Exec(ctx, text).ReadAll()
		return err
	})
	if out, err := command("migrate", "--store", d.url); err != nil || !strings.Contains(out, "is up to date") {
		t.Errorf("after it migrate says %q, %v", out, err)
	}
	p := startOnPostgres(t, d, up, options{})
	request{key: "k", body: `{"item":"tea"}`}.send(p.url).want(t, 201, "")
}

// A standby takes no writes: the start says so.
func TestPostgresStandbyIsRefused(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, "ALTER DATABASE "+d.name+" SET default_transaction_read_only = on")
	_, err := run("http://127.0.0.1:1", options{dir: t.TempDir(), store: d.url})
	if err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("the start on a server that takes no writes: %v", err)
	}
}

// The program behind pgbouncer in transaction mode.
func TestPostgresBehindPgbouncer(t *testing.T) {
	t.Parallel()
	pooler, up := pgserver.SharedPooler(t), startUpstream(t)
	url := "postgres://postgres@" + pooler.Address() + "/postgres?sslmode=disable&default_query_exec_mode=exec"
	p := start(t, up, options{store: url, settings: patient("10s"), more: unhurried})
	if block := p.stdout.String(); !strings.Contains(block, "through a pooler") {
		t.Errorf("the block does not tell of a pooler:\n%s", block)
	}
	once(t, up, p.url)
}
