package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// startCluster starts a Redis Cluster of three masters and returns its URL.
func startCluster(t *testing.T) (url string, masters []*redisServer) {
	t.Helper()
	args, hosts := []string{"--cluster", "create"}, []string{}
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, bus, _ := net.SplitHostPort(l.Addr().String())
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		s := startRedis(t, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "5000")
		masters = append(masters, s)
		hosts = append(hosts, strings.TrimPrefix(s.url, "redis://"))
	}
	if out, err := exec.Command("redis-cli", append(append(args, hosts...), "--cluster-yes")...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, s := range masters {
		if !soon(func() bool {
			return strings.Contains(s.cli(t, "cluster", "info"), "cluster_state:ok") &&
				strings.Count(s.cli(t, "cluster", "slots"), "127.0.0.1") == len(masters)
		}) {
			t.Fatal("the cluster does not form")
		}
	}
	return "redis+cluster://" + strings.Join(hosts, ","), masters
}

// In a Cluster a tenant's keys and limits lie together, the others are asked
// first, and the start says which; with one tenant, keys are spread.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	url, masters := startCluster(t)
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
	for _, s := range masters {
		if keys := s.cli(t, "--scan", "--pattern", "one:tenant:*:idem:*"); len(strings.Fields(keys)) == 0 {
			t.Errorf("no record of the one tenant is on the server at port %s", s.port)
		}
	}
	if c := mustCount(t, up, "orders"); c != (counts{100, 100}) {
		t.Errorf("the upstream says %+v, want 100 orders of as many POSTs", c)
	}
}

// Behind Sentinel: the master is killed, and the program goes on with the
// replica.
func TestRedisSentinel(t *testing.T) {
	t.Parallel()
	master := startRedis(t)
	startRedis(t, "--replicaof", "127.0.0.1 "+master.port)
	if !soon(func() bool { return strings.Contains(master.cli(t, "info", "replication"), "state=online") }) {
		t.Fatal("the replica does not come")
	}
	var hosts []string
	for range 3 {
		dir := t.TempDir()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "sentinel.conf")
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor main 127.0.0.1 %s 2\n"+
			"sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n", port, dir, master.port)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		w, _, err := launch("redis-server", []string{file, "--sentinel"}, nil, `\+monitor master`)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.kill)
		hosts = append(hosts, "127.0.0.1:"+port)
		if !soon(func() bool { return strings.Contains(w.stdout.String(), "+slave ") }) {
			t.Fatal("the sentinel does not see the replica")
		}
	}
	up := startUpstream(t)
	p := start(t, up, options{store: "redis+sentinel://" + strings.Join(hosts, ",") + "/main", more: generous + "limits: [{name: a, by: [tenant], rate: 1000/s}]\n"})
	if block := p.stdout.String(); !strings.Contains(block, "a failover can lose the last writes, and an operation may run again") {
		t.Errorf("the block says\n%s", block)
	}
	before := request{key: "before", body: `{"item":"tea"}`}
	first := before.send(p.url)
	first.want(t, http.StatusCreated, "")
	offset := regexp.MustCompile(`(?s)slave0:.*,offset=(\d+),.*master_repl_offset:(\d+)`)
	if !soon(func() bool {
		m := offset.FindStringSubmatch(master.cli(t, "info", "replication"))
		return m != nil && m[1] == m[2]
	}) {
		t.Fatal("the replica has not caught up")
	}
	master.kill()
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
