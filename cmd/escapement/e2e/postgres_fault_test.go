package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/internal/pgserver"
)

// PostgreSQL hangs, and then refuses: nothing with a key is executed, every
// request is answered within the deadline, or at once when it is known, others
// are not touched; and when it is back, so is the program.
func TestT7PostgresAway(t *testing.T) {
	t.Parallel()
	server, up := privatePostgres(t), startUpstream(t)
	d := databaseOn(t, server)
	p := startOnPostgres(t, d, up, options{settings: patient("1s"), more: "postgres: {key_deadline: 600ms}\n"})
	n := 0
	order := func() reply {
		n++
		return request{key: fmt.Sprint("o", n), body: `{"item":"tea"}`}.send(p.url)
	}
	ready := func() int { return request{method: http.MethodGet, path: "/readyz"}.send(p.admin).status }
	order().want(t, http.StatusCreated, "")
	made := int64(1)
	for _, way := range []struct {
		name       string
		leave, end func() error
	}{
		{"hung", server.Pause, server.Resume},
		{"refusing", server.Crash, server.Revive},
	} {
		if err := way.leave(); err != nil {
			t.Fatal(err)
		}
		from, answers := time.Now(), 0
		var wg sync.WaitGroup
		for range 20 { // at once
			n++
			q := request{key: fmt.Sprint("o", n), body: `{"item":"tea"}`}
			answers++
			wg.Go(func() {
				begin := time.Now()
				r := q.send(p.url)
				if d := time.Since(begin); d > 5*time.Second {
					t.Errorf("%s: answered after %v", way.name, d)
				}
				if _, err := r.retryAfter(); err != nil || r.status != http.StatusServiceUnavailable || r.code() != "store-unavailable" {
					t.Errorf("%s: the answer is %v (%v)", way.name, r, err)
				}
			})
		}
		wg.Wait()
		for range 20 { // and one after the other
			order().want(t, http.StatusServiceUnavailable, "store-unavailable")
			request{method: http.MethodGet}.send(p.url).want(t, http.StatusOK, "")
			answers += 2
		}
		// Each waiting for 600ms would take far longer.
		if d := time.Since(from); d > time.Duration(answers)*200*time.Millisecond {
			t.Errorf("%s: %d answers took %v", way.name, answers, d)
		}
		if ready() != http.StatusServiceUnavailable {
			t.Errorf("%s: /readyz says that all is well", way.name)
		}
		if err := way.end(); err != nil {
			t.Fatal(err)
		}
		if !soon(func() bool { return order().status == http.StatusCreated }) {
			t.Fatalf("%s: keys do not come back", way.name)
		}
		made++
		if c := mustCount(t, up, "orders"); c != (counts{made, made}) {
			t.Errorf("%s: the upstream says %+v, want %d orders of as many POSTs", way.name, c, made)
		}
		if !soon(func() bool { return ready() == http.StatusOK }) {
			t.Errorf("%s: /readyz does not come back", way.name)
		}
	}
	log := p.stderr.String()
	if away, back := strings.Count(log, "the store of records is away"), strings.Count(log, "the store of records is back"); away < 2 || away != back {
		t.Errorf("the log says %d times that the store is away, and %d times that it is back:\n%s", away, back, log)
	}
	if err := p.terminate(); err != nil {
		t.Error(err)
	}
}

// Limits and keys are in a PostgreSQL that hangs: each limit does what it says,
// and nothing with a key is executed.
func TestT7PostgresHangsWithLimits(t *testing.T) {
	t.Parallel()
	server, up := privatePostgres(t), startUpstream(t)
	d := databaseOn(t, server)
	p := startOnPostgres(t, d, up, options{settings: patient("1s"), more: "limiter: " + d.url + policies})
	hungPostgres(t, server, up, p, true)
}

// The same with keys in a file: the limits alone are away, and keys go on.
func TestT7LimiterInPostgresHangs(t *testing.T) {
	t.Parallel()
	server, up := privatePostgres(t), startUpstream(t)
	d := databaseOn(t, server)
	p := start(t, up, options{settings: patient("1s"), more: "limiter: " + d.url + policies})
	hungPostgres(t, server, up, p, false)
}

func hungPostgres(t *testing.T, s *pgserver.Server, up string, p *program, keysToo bool) {
	t.Helper()
	must := func(f func() error) func() {
		return func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}
	}
	hung(t, up, p, keysToo, must(s.Pause), must(s.Resume))
}

// The server is stopped at once and started again, over and over, with two
// programs under load: no key is executed twice, and every answer is replayed.
func TestT7PostgresRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	server, up := privatePostgres(t), startUpstream(t)
	d := databaseOn(t, server)
	ps := twoOnPostgres(t, d, up, options{settings: patient("1s"), more: unhurried})
	l := startLoad(t, "restart", 6, ps[:]...)
	l.goesOn(t, 20)
	for range 3 {
		if err := server.Crash(); err != nil {
			t.Fatal(err)
		}
		pause(300 * time.Millisecond) // away for a while
		if err := server.Revive(); err != nil {
			t.Fatal(err)
		}
		l.goesOn(t, 40)
	}
	l.executedOnce(t, up)
}

// 200 requests run at once, with four connections: none is held while the
// upstream works.
func TestFault05NoConnectionWhileTheUpstreamWorks(t *testing.T) {
	t.Parallel()
	d, up := newDatabase(t), startUpstream(t)
	with := *d
	with.url += "&pool_max_conns=4"
	p := startOnPostgres(t, &with, up, options{settings: patient("20s"), more: unhurried})
	const requests = 200
	var wg sync.WaitGroup
	var answered atomic.Int64
	for n := range requests {
		wg.Go(func() {
			q := request{path: "/v1/payments", key: fmt.Sprint("slow", n), body: `{"amount":7}`, fields: map[string]string{"X-Demo-Delay": "8s"}}
			r := q.send(p.url)
			answered.Add(1)
			if r.err != nil || r.status != http.StatusCreated {
				t.Errorf("the answer is %v", r)
			}
		})
	}
	if !soon(func() bool { return mustCount(t, up, "payments").Received == requests }) {
		t.Errorf("%+v reach the upstream at once, want %d", mustCount(t, up, "payments"), requests)
	}
	if n := answered.Load(); n != 0 {
		t.Errorf("%d are answered, and not all had reached the upstream", n)
	}
	if !soon(func() bool {
		return d.number(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'escapement' AND xact_start IS NOT NULL", d.name) == 0
	}) {
		t.Error("a transaction stays open while the upstream works")
	}
	if n := d.number(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'escapement'", d.name); n > 4 {
		t.Errorf("%d connections, want at most 4", n)
	}
	request{key: "quick", body: `{"item":"tea"}`}.send(p.url).want(t, http.StatusCreated, "")
	if n := answered.Load(); n != 0 {
		t.Errorf("%d were answered before a quick one", n)
	}
	wg.Wait()
	if c := mustCount(t, up, "payments"); c != (counts{requests, requests}) {
		t.Errorf("the upstream says %+v, want %d payments of as many POSTs", c, requests)
	}
}
