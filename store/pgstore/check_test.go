package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/pgserver"
)

// execute runs statements with a connection of their own.
func execute(t testing.TB, statements ...string) {
	t.Helper()
	ctx := context.Background()
	c, err := pgx.Connect(ctx, pgserver.Shared(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	for _, text := range statements {
		if _, err := c.Exec(ctx, text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

// role makes a user with settings of its own, and returns the URL with it.
func role(t testing.TB, name string, settings ...string) string {
	t.Helper()
	execute(t, "CREATE ROLE "+name+" LOGIN SUPERUSER")
	t.Cleanup(func() { execute(t, "DROP ROLE "+name) })
	for _, s := range settings {
		execute(t, "ALTER ROLE "+name+" SET "+s)
	}
	return strings.Replace(pgserver.Shared(t).URL(), "user=postgres", "user="+name, 1)
}

func TestCheck(t *testing.T) {
	server := pgserver.Shared(t)
	schema := migrated(t, server)
	for _, tt := range []struct {
		name, url string
		warnings  []string
		failover  string
		pooler    bool
	}{
		{"plain", server.URL(), []string{"fsync is off"}, "no commit waits for a replica", false},
		{"asynchronous", role(t, "check_async", "synchronous_commit = off"), []string{"fsync is off", "synchronous_commit is off"}, "no commit waits for a replica", false},
		{"pooler", pgserver.SharedPooler(t).URL() + " default_query_exec_mode=exec", []string{"fsync is off"}, "no commit waits for a replica", true},
	} {
		s := openStore(t, tt.url, Options{Schema: schema})
		rep, err := s.Check(context.Background())
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		good := len(rep.Warnings) == len(tt.warnings)
		for i := range rep.Warnings {
			good = good && strings.HasPrefix(rep.Warnings[i], tt.warnings[i])
		}
		if !good || !strings.HasPrefix(rep.Failover(), tt.failover) || rep.Pooler != tt.pooler {
			t.Errorf("%s: %+v", tt.name, rep)
		}
		if rep.Major < OldestServer || !strings.HasPrefix(rep.Version, fmt.Sprint(rep.Major)) || rep.Connections != DefaultConnections || rep.Ahead.Abs() > time.Second {
			t.Errorf("%s: %+v", tt.name, rep)
		}
	}
	s := openStore(t, role(t, "check_standby", "default_transaction_read_only = on"), Options{Schema: schema})
	if _, err := s.Check(context.Background()); !errors.Is(err, ErrStandby) {
		t.Errorf("a server that takes no writes: %v", err)
	}
}

func TestReportSaysWhatIsLost(t *testing.T) {
	for _, tt := range []struct {
		r        Report
		failover string
		warnings int
	}{
		{Report{Major: 15, Fsync: true, FullPageWrites: true, SynchronousCommit: "on"}, "no commit waits", 0},
		{Report{Major: 15, Fsync: true, FullPageWrites: true, SynchronousCommit: "on", SynchronousStandbys: "a"}, "commits wait until a replica has them on its disk", 0},
		{Report{Major: 15, Fsync: true, FullPageWrites: true, SynchronousCommit: "remote_apply", SynchronousStandbys: "a"}, "commits wait until a replica has them on its disk", 0},
		{Report{Major: 15, Fsync: true, FullPageWrites: true, SynchronousCommit: "remote_write", SynchronousStandbys: "a"}, "commits wait until a replica has received them", 0},
		{Report{Major: 15, Fsync: true, FullPageWrites: true, SynchronousCommit: "local", SynchronousStandbys: "a"}, "no commit waits", 1},
		{Report{Major: 14, Fsync: true, SynchronousCommit: "off", SynchronousStandbys: "a"}, "no commit waits", 4},
	} {
		if w := tt.r.warn(); !strings.HasPrefix(tt.r.Failover(), tt.failover) || len(w) != tt.warnings {
			t.Errorf("%+v: %q, %q", tt.r, tt.r.Failover(), w)
		}
	}
}

// A connection to a server that has become a standby is not used again.
func TestStandbyIsLeft(t *testing.T) {
	schema := migrated(t, pgserver.Shared(t))
	s := openStore(t, role(t, "became_standby", "default_transaction_read_only = on"), Options{Schema: schema})
	c := idempotency.Claim{
		Key: idempotency.Key{Tenant: "t", ID: idempotency.ID{1}}, Owner: idempotency.NewOwner(),
		Terms: idempotency.Terms{Lease: time.Minute, Retention: time.Hour},
	}
	_, err := s.Reserve(context.Background(), c)
	var known *Error
	if !errors.As(err, &known) || !strings.Contains(known.Next, "target_session_attrs") {
		t.Fatalf("on a standby: %v", err)
	}
	execute(t, "ALTER ROLE became_standby RESET default_transaction_read_only") // counts for new connections
	if a, err := s.Reserve(context.Background(), c); err != nil || a.Outcome != idempotency.Started {
		t.Errorf("once there is a primary: %v, %v", a.Outcome, err)
	}
}

func TestConnectionsOfTheURL(t *testing.T) {
	schema := migrated(t, pgserver.Shared(t))
	url := pgserver.Shared(t).URL()
	for _, tt := range []struct {
		url  string
		o    int32
		want int32
	}{{url, 0, DefaultConnections}, {url + " pool_max_conns=7", 0, 7}, {url + " pool_max_conns=7", 5, 5}} {
		s := openStore(t, tt.url, Options{Schema: schema, Connections: tt.o})
		if got := s.pool.Config().MaxConns; got != tt.want {
			t.Errorf("%s, %d: %d connections, want %d", tt.url, tt.o, got, tt.want)
		}
		if got := s.pool.Config().ConnConfig.ConnectTimeout; got != DefaultTimeout {
			t.Errorf("a connection may take %v to make", got)
		}
	}
	if _, err := Open(context.Background(), url+" pool_max_conns=2", Options{Schema: schema}); err == nil || !strings.Contains(err.Error(), "pool_max_conns") {
		t.Errorf("two connections: %v", err)
	}
}

func TestSchemaVersion(t *testing.T) {
	ctx := context.Background()
	c, err := pgx.Connect(ctx, pgserver.Shared(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	for _, schema := range []string{"not_there", "pg_catalog"} {
		if have, newest, err := SchemaVersion(ctx, c, schema); have != 0 || newest < 1 || err != nil {
			t.Errorf("%s: %d, %d, %v", schema, have, newest, err)
		}
	}
	if have, newest, err := SchemaVersion(ctx, c, migrated(t, pgserver.Shared(t))); have != newest || newest < 1 || err != nil {
		t.Errorf("migrated: %d, %d, %v", have, newest, err)
	}
	if err := c.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, _, err := SchemaVersion(ctx, c, ""); err == nil {
		t.Error("a closed connection knows a version")
	}
}
