package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/escapement-dev/escapement/internal/redistest"
)

// redisServer is a real Redis in a process of its own.
type redisServer struct {
	*redistest.Server
	url string
}

// startRedis starts a Redis. It ends with the test.
func startRedis(t *testing.T, args ...string) *redisServer {
	t.Helper()
	s := redistest.Start(t, args...)
	return &redisServer{Server: s, url: "redis://" + s.Addr}
}

// startReplica starts a Redis that follows another, and is in step with it.
func startReplica(t *testing.T, of *redisServer) *redisServer {
	t.Helper()
	r := startRedis(t, "--replicaof", strings.Replace(of.Addr, ":", " ", 1))
	if !soon(func() bool { return strings.Contains(of.Cli(t, "info", "replication"), "state=online") }) {
		t.Fatal("the replica does not come")
	}
	return r
}

// generous are deadlines that a busy machine keeps.
const generous = "redis: {limit_deadline: 2s, key_deadline: 2s}\n"

// startOn starts a program with its store in Redis, and its limits too.
func startOn(t *testing.T, s *redisServer, upstream string, o options) *program {
	t.Helper()
	o.store = s.url
	return start(t, upstream, o)
}

// The start-up block says what is shared, what can be lost, and what the limits
// do while Redis is away; and nothing is in Redis in the clear but names.
func TestRedisStartsAndSaysWhatItIs(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	p := startOn(t, s, up, options{more: `
redis: {prefix: "shop:"}
limits:
  - {name: wide, by: [tenant], rate: 1000/s, on_unavailable: closed}
  - {name: keyed, by: [api_key], rate: 1000/s, charge: executions, local_share: 0.25}
`})
	block := p.stdout.String()
	for _, want := range []string{
		"records   " + s.url + " shared by all processes that name it and the prefix shop:",
		"limits    " + s.url + " shared",
		"Redis 7", "standalone, 1 server", "limits 20ms, keys 100ms",
		"has no replica: while it is down, nothing is decided",
		"Redis away: closed", "Redis away: local, 0.25 of the limit in each process",
	} {
		if !strings.Contains(block, want) {
			t.Errorf("the block lacks %q:\n%s", want, block)
		}
	}
	q := request{key: "client-secret", tenant: "acme", body: `{"item":"tea"}`, fields: map[string]string{"X-Api-Key": "key-secret"}}
	first := q.send(p.url)
	first.want(t, 201, "")
	if again := q.send(p.url); !again.same(first) || !again.replayed() {
		t.Errorf("the repeat gets %v (replayed %v)", again, again.replayed())
	}
	keys := s.Cli(t, "--scan")
	for _, line := range strings.Fields(keys) {
		if !strings.HasPrefix(line, "shop:") || strings.Contains(line, "-secret") {
			t.Errorf("the key %q", line)
		}
	}
	for _, want := range []string{"shop:tenant:{acme}:idem:", "shop:tenant:{acme}:rate:wide:", "shop:rate:{keyed:"} {
		if !strings.Contains(keys, want) {
			t.Errorf("no key begins with %s:\n%s", want, keys)
		}
	}
	if err := p.terminate(); err != nil {
		t.Error(err)
	}
}

// The rights that docs/OPERATIONS.md lists are enough, and a password with
// special characters is found nowhere.
func TestRedisUser(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	rights := regexp.MustCompile(`(?s)The user needs .(\+[^\x60]*)\x60.*and, so that the start can look at the\s+settings, \x60(\+\S+)\x60`).FindStringSubmatch(string(text))
	if rights == nil {
		t.Fatal("docs/OPERATIONS.md does not list the user's rights")
	}
	s, up := startRedis(t), startUpstream(t)
	acl := append([]string{"acl", "setuser", "app", "on", ">p@ss/word", "resetkeys", "~shop:*", "resetchannels", "-@all"}, strings.Fields(rights[1])...)
	s.Cli(t, append(acl, rights[2])...)
	s.Cli(t, "acl", "setuser", "default", "off")
	s.url = strings.Replace(s.url, "redis://", "redis://app:p%40ss%2Fword@", 1)
	p := startOn(t, s, up, options{more: `
redis: {prefix: "shop:"}
limits: [{name: a, by: [tenant], rate: 1000/s}, {name: b, algorithm: sliding_window_log, rate: 1000/s}]
`})
	if block := p.stdout.String(); strings.Contains(block, "does not tell its settings") || strings.Contains(block, "word") {
		t.Errorf("the block says\n%s", block)
	}
	q := request{key: "k", body: `{"item":"` + strings.Repeat("tea", 40_000) + `"}`}
	q.send(p.url).want(t, 201, "")
	if again := q.send(p.url); !again.replayed() {
		t.Errorf("the repeat gets %v", again)
	}
	if log := p.stderr.String(); strings.Contains(log, "NOPERM") || strings.Contains(log, "may not run this") {
		t.Errorf("the log says\n%s", log)
	}
}

// A Redis that evicts is no place for keys, unless somebody says so.
func TestRedisThatEvictsIsRefused(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t, "--maxmemory-policy", "allkeys-lru"), startUpstream(t)
	if _, err := run(up, options{dir: t.TempDir(), store: s.url}); err == nil ||
		!strings.Contains(err.Error(), "exit status 2") || !strings.Contains(err.Error(), "allow_eviction") {
		t.Errorf("the start on a Redis that evicts: %v", err)
	}
	p := startOn(t, s, up, options{more: "redis: {allow_eviction: true}\n"})
	if block := p.stdout.String(); !strings.Contains(block, "forgets keys, and operations run again") {
		t.Errorf("no warning in\n%s", block)
	}
	// For limits alone it is a warning.
	p = start(t, up, options{more: "limiter: " + s.url + "\nlimits: [{name: a, rate: 10/s}]\n"})
	if block := p.stdout.String(); !strings.Contains(block, "a bucket that it evicts is full again") {
		t.Errorf("no warning in\n%s", block)
	}
}

// A key whose claim no replica can confirm runs nothing, and is free again.
func TestRedisConfirm(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	replica := startReplica(t, s)
	p := startOn(t, s, up, options{
		settings: strings.Replace(settings, "POST /v1/orders: {", "POST /v1/orders: {confirm: 1, ", 1),
		more:     "redis: {key_deadline: 2s}\n",
	})
	q := request{key: "confirmed", body: `{"item":"tea"}`}
	q.send(p.url).want(t, 201, "")
	replica.Pause(t)
	lost := request{key: "not-confirmed", body: `{"item":"tea"}`}
	lost.send(p.url).want(t, 503, "store-unavailable")
	request{path: "/v1/notes", key: "not-confirmed", body: `{"note":"n"}`}.send(p.url).want(t, 201, "")
	replica.Resume(t)
	if !soon(func() bool { return lost.send(p.url).status == 201 }) {
		t.Error("the key is not free again")
	}
	if c := mustCount(t, up, "orders"); c != (counts{2, 2}) {
		t.Errorf("the upstream says %+v, want two orders of two POSTs", c)
	}
}
