package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// twoOnPostgres starts two programs on one database, at once: both find no
// tables.
func twoOnPostgres(t *testing.T, d *database, upstream string, o options) (ps [2]*program) {
	t.Helper()
	o.store = d.url
	var errs [2]error
	var started [2]chan struct{}
	for i := range ps {
		o := o
		o.dir = t.TempDir()
		started[i] = make(chan struct{})
		go func() {
			defer close(started[i])
			ps[i], errs[i] = run(upstream, o)
		}()
	}
	for i := range ps {
		<-started[i]
		if ps[i] != nil {
			ps[i].cleanup(t)
		}
	}
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return ps
}

// Ten requests at once with one key, over two programs: one order, and ten
// equal answers.
func TestT1TwoProgramsOnePostgres(t *testing.T) {
	t.Parallel()
	d, up := newDatabase(t), startUpstream(t)
	ps := twoOnPostgres(t, d, up, options{settings: patient("10s"), more: unhurried})
	once(t, up, ps[0].url, ps[1].url)
}

// Two first requests never both run, whichever program gets them: 100 keys,
// each sent to both at once.
func TestFault10TwoProgramsOnePostgres(t *testing.T) {
	t.Parallel()
	d, up := newDatabase(t), startUpstream(t)
	racing(t, up, twoOnPostgres(t, d, up, options{settings: patient("10s"), more: unhurried}))
}

// Rate 10/s, burst 20, over two programs: at once 20 pass, then 10 per second in
// total.
func TestT5TwoProgramsOnePostgres(t *testing.T) {
	t.Parallel()
	d, up := newDatabase(t), startUpstream(t)
	ps := twoOnPostgres(t, d, up, options{more: unhurried + "limiter: " + d.url + "\nlimits: [{name: client, routes: [GET /v1/orders], rate: 10/s, burst: 20}]\n"})
	for _, p := range ps {
		if block := p.stdout.String(); !strings.Contains(block, "limits    postgres://"+d.server.Address()+"/"+d.name+" shared by all") || !strings.Contains(block, "at most 6 connections") {
			t.Errorf("the block says\n%s", block)
		}
	}
	burstThenRate(t, ps)
}

// kill -9 of one program while its operation runs: of ten repeats at once at the
// other, exactly one takes over.
func TestT3KilledProgramOnPostgres(t *testing.T) {
	t.Parallel()
	d, up := newDatabase(t), startUpstream(t)
	takenOver(t, up, twoOnPostgres(t, d, up, options{settings: patient("700ms"), more: unhurried}))
}

// A program is killed at each point, and two others on the same database get
// the repeats: what had been answered is replayed byte by byte, a held order is
// taken over exactly once, a held payment is unknown.
func TestT2T3KillCampaignOnPostgres(t *testing.T) {
	t.Parallel()
	s := seed(t)
	n := len(points) + 2
	if soak() {
		n = soakKills / 5
	}
	d := newDatabase(t)
	l := &lane{
		name: "postgres", dir: t.TempDir(), at: options{store: d.url, more: unhurried}, shared: true,
		random: rand.New(rand.NewPCG(s, 0)), snapshot: func() (map[string]kept, error) { return d.snapshot() },
	}
	defer l.close()
	if err := l.campaign(0, 1, n); err != nil {
		t.Errorf("seed %d: %v\nhistory:\n%s", s, err, strings.Join(l.history, "\n"))
	}
	for _, c := range []string{"orders held", "payments held", "orders done", "payments done"} {
		t.Logf("kills have left: %s: %d", c, l.seen[c])
		if l.seen[c] == 0 && !t.Failed() {
			t.Errorf("seed %d: no kill has left: %s", s, c)
		}
	}
}

// snapshot reads the records once no program is connected any more: what a
// killed one had sent is then committed, or never will be.
func (d *database) snapshot() (map[string]kept, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, d.server.URL()+" dbname="+d.name)
	if err != nil {
		return nil, err
	}
	defer c.Close(ctx)
	connected := 0
	if !soon(func() bool {
		err = c.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'escapement'", d.name).Scan(&connected)
		return err != nil || connected == 0
	}) || err != nil {
		return nil, fmt.Errorf("%d connections of the killed program stay: %w", connected, err)
	}
	out := map[string]kept{}
	rows, err := c.Query(ctx, "SELECT trace, state, attempt, takeover FROM escapement_keys")
	if err != nil {
		return nil, err
	}
	var trace string
	var k kept
	_, err = pgx.ForEachRow(rows, []any{&trace, &k.state, &k.attempt, &k.takeover}, func() error { out[trace] = k; return nil })
	return out, err
}
