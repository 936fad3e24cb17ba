package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
)

// pair is a primary with a replica, and the URL that finds the one of them that
// takes writes.
type pair struct {
	*database
	replica *database
}

// startPair starts both; the program's database is the same on each.
func startPair(t *testing.T) pair {
	t.Helper()
	primary := privatePostgres(t)
	p := pair{database: databaseOn(t, primary)}
	replica, err := primary.StartReplica("replica")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := replica.Stop(); err != nil {
			t.Error(err)
		}
	})
	p.replica = &database{server: replica, name: p.name}
	p.url = fmt.Sprintf("postgres://postgres@%s,%s/%s?sslmode=disable&target_session_attrs=read-write", primary.Address(), replica.Address(), p.name)
	return p
}

// fail stops the primary at once, and promotes the replica.
func (p pair) fail(t *testing.T) {
	t.Helper()
	if err := p.server.Crash(); err != nil {
		t.Fatal(err)
	}
	if err := p.replica.server.Promote(); err != nil {
		t.Fatal(err)
	}
}

// The primary dies under load and its synchronous replica is promoted: no key is
// executed twice, and every answer that was given is replayed. The programs find
// the new primary by themselves.
func TestPostgresSynchronousFailover(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"on", "remote_apply"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p, up := startPair(t), startUpstream(t)
			p.exec(t, "ALTER SYSTEM SET synchronous_standby_names = 'replica'", "ALTER SYSTEM SET synchronous_commit = "+mode, "SELECT pg_reload_conf()")
			if !soon(func() bool {
				return p.number(t, "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'replica' AND sync_state = 'sync'") == 1
			}) {
				t.Fatal("the replica does not become a synchronous one")
			}
			ps := twoOnPostgres(t, p.database, up, options{settings: patient("1s"), more: unhurried})
			l := startLoad(t, "failover", 6, ps[:]...)
			l.goesOn(t, 50)
			p.fail(t)
			l.goesOn(t, 50)
			l.executedOnce(t, up)
		})
	}
}

// The primary dies and its asynchronous replica is promoted, which had received
// nothing for a while. What it had is as safe as ever; what it had not is
// forgotten, no more and no less: those keys run again.
func TestPostgresAsynchronousFailover(t *testing.T) {
	t.Parallel()
	p, up := startPair(t), startUpstream(t)
	program := startOnPostgres(t, p.database, up, options{settings: patient("10s"), more: unhurried})
	pay := func(phase string, n int) request {
		return request{path: "/v1/payments", key: fmt.Sprint(phase, n), body: `{"amount":7}`}
	}
	const each = 10
	answers := map[string]reply{}
	for n := range each {
		q := pay("received", n)
		answers[q.key] = q.send(program.url)
		answers[q.key].want(t, http.StatusCreated, "")
	}
	// Another is claimed before, and ends after, the replica receives its last.
	claimed := pay("claimed", 0)
	claimed.fields = map[string]string{"X-Demo-Delay": "8s"}
	sent := make(chan reply, 1)
	go func() { sent <- claimed.send(program.url) }()
	if !soon(func() bool { return mustCount(t, up, "payments").Received == each+1 }) {
		t.Fatal("the request does not reach the upstream")
	}
	p.stopFollowing(t)
	(<-sent).want(t, http.StatusCreated, "")
	for n := range each {
		pay("lost", n).send(program.url).want(t, http.StatusCreated, "")
	}
	if c := mustCount(t, up, "payments"); c != (counts{2*each + 1, 2*each + 1}) {
		t.Fatalf("before the failover the upstream says %+v", c)
	}
	p.fail(t)

	if !soon(func() bool { return pay("lost", 0).send(program.url).status == http.StatusCreated }) {
		t.Fatal("the program does not find the new primary")
	}
	for n := 1; n < each; n++ {
		if r := pay("lost", n).send(program.url); r.status != http.StatusCreated || r.replayed() {
			t.Errorf("what the replica had not is known to it: %v (replayed %v)", r, r.replayed())
		}
	}
	for n := range each {
		q := pay("received", n)
		if r := q.send(program.url); !r.same(answers[q.key]) || !r.replayed() {
			t.Errorf("what the replica had gets %v (replayed %v), and first %v", r, r.replayed(), answers[q.key])
		}
	}
	// Its claim had come, and its end not: nobody guesses.
	claimed.fields = nil
	r, err := claimed.final(program.url)
	if err != nil || r.code() != "idempotency-outcome-unknown" {
		t.Errorf("the key whose end was lost gets %v (%v)", r, err)
	}
	if c := mustCount(t, up, "payments"); c != (counts{3*each + 1, 3*each + 1}) {
		t.Errorf("the upstream says %+v, want %d payments: those of which the record was lost, twice", c, 3*each+1)
	}
}

// stopFollowing lets the replica receive what the primary has, and nothing more.
func (p pair) stopFollowing(t *testing.T) {
	t.Helper()
	var at string
	p.do(t, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&at)
	})
	behind := func() bool {
		return p.replica.number(t, "SELECT (pg_last_wal_receive_lsn() < $1::pg_lsn)::int", at) == 1
	}
	if !soon(func() bool { return !behind() }) {
		t.Fatal("the replica does not follow")
	}
	p.replica.exec(t, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
	if !soon(func() bool { return p.replica.number(t, "SELECT count(*) FROM pg_stat_wal_receiver") == 0 }) {
		t.Fatal("the replica does not stop following")
	}
}
