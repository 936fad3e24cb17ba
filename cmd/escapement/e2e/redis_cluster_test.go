package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/escapement-dev/escapement/internal/redistest"
)

// startCluster starts a Redis Cluster of three masters and returns its URL.
func startCluster(t *testing.T, replicasOfEach int) (*redistest.Cluster, string) {
	t.Helper()
	c := redistest.StartCluster(t, 3, replicasOfEach)
	return c, "redis+cluster://" + strings.Join(c.Addrs(), ",")
}

// In a Cluster a tenant's keys and limits lie together, the others are asked
// first, and the start says which; with one tenant, keys are spread.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	c, url := startCluster(t, 0)
	up := startUpstream(t)
	limits := generous + `
limits:
  - {name: ip, by: [ip], rate: 100000/s}
  - {name: tenant, by: [tenant], rate: 100000/s}
  - {name: both, by: [ip, tenant], rate: 100000/s, charge: executions}
  - {name: all, by: [], rate: 100000/s, charge: executions}
  - {name: few, routes: [POST /v1/notes], by: [tenant], rate: 1/h, charge: executions}
`
	p := start(t, up, options{store: url, more: limits})
	const said = "asked first, each in a round trip of its own, and given back if a later one refuses: ip all; with the tenant's records: tenant both few"
	if block := p.stdout.String(); !strings.Contains(block, said) || !strings.Contains(block, "cluster, 3 servers") {
		t.Errorf("the block says\n%s", block)
	}
	orders := func(p *program, from int) {
		t.Helper()
		for n := from; n < from+40; n++ {
			q := request{key: "k", tenant: fmt.Sprint("t", n), body: `{"item":"tea"}`}
			first := q.send(p.url)
			first.want(t, http.StatusCreated, "")
			if again := q.send(p.url); !again.same(first) || !again.replayed() {
				t.Fatalf("tenant %d: the repeat gets %v", n, again)
			}
		}
	}
	orders(p, 0)
	note := request{path: "/v1/notes", key: "a", tenant: "t0", body: `{"note":"n"}`}
	note.send(p.url).want(t, http.StatusCreated, "")
	note.send(p.url).want(t, http.StatusCreated, "")
	note.key = "b"
	note.send(p.url).want(t, http.StatusTooManyRequests, "quota-exceeded")

	one := strings.Replace(settings, "tenant: [header:X-Tenant-Id, const:public]", "tenant: const:shop", 1)
	p = start(t, up, options{store: url, settings: one, more: "redis: {prefix: \"one:\", limit_deadline: 2s, key_deadline: 2s}\nlimits: [{name: tenant, by: [tenant], rate: 100000/s}]\n"})
	if block := p.stdout.String(); !strings.Contains(block, "if a later one refuses: tenant\n") {
		t.Errorf("the block says\n%s", block)
	}
	for n := range 60 {
		request{key: fmt.Sprint("spread", n), body: `{"item":"tea"}`}.send(p.url).want(t, http.StatusCreated, "")
	}
	for _, s := range c.Masters {
		if keys := s.Cli(t, "--scan", "--pattern", "one:tenant:*:idem:*"); len(strings.Fields(keys)) == 0 {
			t.Errorf("no record of the one tenant is on the server at %s", s.Addr)
		}
	}
	if n := mustCount(t, up, "orders"); n != (counts{100, 100}) {
		t.Errorf("the upstream says %+v, want 100 orders of as many POSTs", n)
	}
}

// Behind Sentinel: the master is killed, and the program goes on with the
// replica.
func TestRedisSentinel(t *testing.T) {
	t.Parallel()
	redis := redistest.StartSentinel(t, 1)
	master := redis.Master
	up := startUpstream(t)
	p := start(t, up, options{store: "redis+sentinel://" + strings.Join(redis.Addrs(), ",") + "/" + redistest.MasterName, more: generous + "limits: [{name: a, by: [tenant], rate: 1000/s}]\n"})
	if block := p.stdout.String(); !strings.Contains(block, "a failover can lose the last writes, and an operation may run again") {
		t.Errorf("the block says\n%s", block)
	}
	before := request{key: "before", body: `{"item":"tea"}`}
	first := before.send(p.url)
	first.want(t, http.StatusCreated, "")
	offset := regexp.MustCompile(`(?s)slave0:.*,offset=(\d+),.*master_repl_offset:(\d+)`)
	if !soon(func() bool {
		m := offset.FindStringSubmatch(master.Cli(t, "info", "replication"))
		return m != nil && m[1] == m[2]
	}) {
		t.Fatal("the replica has not caught up")
	}
	master.Kill()
	n := 0
	if !soon(func() bool {
		n++
		r := request{key: fmt.Sprint("after", n), body: `{"item":"tea"}`}.send(p.url)
		if r.status != http.StatusCreated && r.code() != "store-unavailable" {
			t.Errorf("during the failover: %v", r)
		}
		return r.status == http.StatusCreated
	}) {
		t.Fatal("the program does not go on with the replica")
	}
	if r := before.send(p.url); !r.same(first) || !r.replayed() {
		t.Errorf("the repeat gets %v (replayed %v)", r, r.replayed())
	}
}
