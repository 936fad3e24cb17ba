package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/internal/redistest"
)

// Without its limiter the program starts, says so, and decides each limit by
// its on_unavailable; when the limiter comes, it is used. /readyz says 503
// meanwhile only where a limit is closed.
func TestRedisLimiterAwayAtTheStart(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	s.Kill()
	limits := "limiter: " + s.url + "\n" + generous + `
limits:
  - {name: open, routes: [GET /v1/orders], rate: 1/h, on_unavailable: open}
  - {name: local, routes: [GET /v1/notes], by: [tenant], rate: 8/h, local_share: 0.25}
`
	get := func(path, tenant string) request {
		return request{method: http.MethodGet, path: path, tenant: tenant}
	}
	p := start(t, up, options{more: limits})
	if block := p.stdout.String(); !strings.Contains(block, "does not answer. Until it does, each limit is decided by its on_unavailable") {
		t.Errorf("the block says\n%s", block)
	}
	closed, err := runUnready(t, up, options{more: limits + "  - {name: closed, routes: [/v1/payments], rate: 100/h, on_unavailable: closed}\n"})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		get("/v1/orders", "").send(p.url).want(t, http.StatusOK, "")
		get("/v1/payments", "").send(closed.url).want(t, http.StatusServiceUnavailable, "limiter-unavailable")
	}
	for range 2 { // a quarter of 8
		get("/v1/notes", "a").send(p.url).want(t, http.StatusOK, "")
	}
	get("/v1/notes", "a").send(p.url).want(t, http.StatusTooManyRequests, "quota-exceeded")
	request{key: "k", body: `{"item":"tea"}`}.send(p.url).want(t, http.StatusCreated, "")
	if r := get("/readyz", "").send(closed.admin); r.status != http.StatusServiceUnavailable {
		t.Errorf("/readyz says %v while a limit is closed", r)
	}

	s.Revive(t)
	if !soon(func() bool {
		return get("/readyz", "").send(closed.admin).status == http.StatusOK && get("/v1/payments", "").send(closed.url).status == http.StatusOK
	}) {
		t.Error("the limiter is back and is not used")
	}
	// Both programs count in it now.
	passed := 0
	if !soon(func() bool {
		r := get("/v1/orders", "").send(p.url)
		if r.status == http.StatusOK {
			passed++
		}
		return r.code() == "quota-exceeded"
	}) {
		t.Fatal("the limit of one refuses nothing")
	}
	get("/v1/orders", "").send(closed.url).want(t, http.StatusTooManyRequests, "quota-exceeded")
	if log := p.stderr.String(); !strings.Contains(log, "the limiter answers") {
		t.Errorf("the log says\n%s", log)
	}
	for _, x := range []*program{p, closed} {
		if err := x.terminate(); err != nil {
			t.Error(err)
		}
	}
}

// runUnready is run for a program that is not ready yet.
func runUnready(t *testing.T, upstream string, o options) (*program, error) {
	t.Helper()
	o.dir, o.unready = t.TempDir(), true
	p, err := run(upstream, o)
	if err == nil {
		p.cleanup(t)
	}
	return p, err
}

// Redis and the program are started at one time, and Redis takes longer.
func TestRedisComesAfterTheStart(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	s.Kill()
	type started struct {
		p   *program
		err error
	}
	c := make(chan started, 1)
	dir := t.TempDir()
	go func() {
		p, err := run(up, options{dir: dir, store: s.url, more: generous})
		c <- started{p, err}
	}()
	select {
	case x := <-c:
		t.Fatalf("the program does not wait: %v", x.err)
	case <-time.After(time.Second):
	}
	s.Revive(t)
	x := <-c
	if x.err != nil {
		t.Fatal(x.err)
	}
	x.p.cleanup(t)
	request{key: "k", body: `{"item":"tea"}`}.send(x.p.url).want(t, http.StatusCreated, "")
}

// Redis over TLS, with a user and an authority of one's own. What is wrong with
// it is said at the start, with the exit code of a configuration that is wrong.
func TestRedisTLS(t *testing.T) {
	t.Parallel()
	certs, other := redistest.NewCertificates(t), redistest.NewCertificates(t)
	s, up := redistest.StartTLS(t, certs, true), startUpstream(t)
	s.Cli(t, "acl", "setuser", "app", "on", ">p@ss/word", "~*", "&*", "+@all")
	s.Cli(t, "acl", "setuser", "default", "off")
	pair := "&cert=" + certs.Cert + "&key=" + certs.Key
	url := func(password, ca string) string {
		return fmt.Sprintf("rediss://app:%s@%s/0?ca=%s%s", password, s.Addr, ca, pair)
	}
	p := start(t, up, options{store: url("p%40ss%2Fword", certs.CA), more: generous + "limits: [{name: a, by: [tenant], rate: 1000/s}]\n"})
	if block := p.stdout.String(); !strings.Contains(block, "rediss://"+s.Addr+"/0 shared") || strings.Contains(block, "word@") {
		t.Errorf("the block says\n%s", block)
	}
	q := request{key: "k", body: `{"item":"tea"}`}
	first := q.send(p.url)
	first.want(t, http.StatusCreated, "")
	if again := q.send(p.url); !again.same(first) || !again.replayed() {
		t.Errorf("the repeat gets %v", again)
	}
	for store, want := range map[string]string{
		url("p%40ss%2Fword", other.CA):          "nobody trusted has signed the server's certificate",
		url("wrong", certs.CA):                  "the server does not accept the user and password",
		url("p%40ss%2Fword", "/no/such/ca.pem"): "no such file",
	} {
		for _, o := range []options{{store: store}, {more: "limiter: " + `"` + store + `"` + "\nlimits: [{name: a, rate: 10/s}]\n"}} {
			o.dir = t.TempDir()
			_, err := run(up, o)
			if err == nil {
				t.Fatalf("with %s it starts", store)
			}
			// Before that is the command line.
			command, said, _ := strings.Cut(err.Error(), "\n")
			if !strings.HasSuffix(command, "exit status 2") || !strings.Contains(said, want) || strings.Contains(said, "word@") {
				t.Errorf("with %s the start is %v, want %q", store, err, want)
			}
		}
	}
}

// An operation whose result no replica has in time is answered, and counted;
// the log says so at once and at the end.
func TestRedisResultIsNotConfirmed(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	replica := startReplica(t, s)
	p := startOn(t, s, up, options{
		settings: strings.Replace(patient("10s"), "POST /v1/orders: {", "POST /v1/orders: {confirm: 1, ", 1),
		more:     "redis: {key_deadline: 2s}\n",
	})
	request{key: "first", body: `{"item":"tea"}`}.send(p.url).want(t, http.StatusCreated, "")
	q := request{key: "k", body: `{"item":"tea"}`, fields: map[string]string{"X-Demo-Delay": "700ms"}}
	answer := make(chan reply, 1)
	go func() { answer <- q.send(p.url) }()
	if !soon(func() bool { return mustCount(t, up, "orders").Received == 2 }) {
		t.Fatal("the order does not reach the upstream")
	}
	replica.Pause(t)
	defer replica.Resume(t)
	r := <-answer
	r.want(t, http.StatusCreated, "")
	q.fields = nil
	if again := q.send(p.url); !again.same(r) || !again.replayed() {
		t.Errorf("the repeat gets %v (replayed %v)", again, again.replayed())
	}
	if err := p.terminate(); err != nil {
		t.Error(err)
	}
	log := p.stderr.String()
	for _, want := range []string{"replicas did not confirm a result in time, which was answered", "unconfirmed.claims=0", "unconfirmed.results=1"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not say %q:\n%s", want, log)
		}
	}
}

// A replay is never refused because executions are (A3), however often that is
// remembered; and a flood of refused requests does not reach Redis.
func TestRedisReplayIsNotRefused(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	p := startOn(t, s, up, options{more: generous + `
limits:
  - {name: few, by: [tenant], rate: 1/h, charge: executions}
  - {name: flood, routes: [GET /v1/orders], by: [tenant], rate: 1/h}
`})
	q := request{key: "done", body: `{"item":"tea"}`}
	first := q.send(p.url)
	first.want(t, http.StatusCreated, "")
	for n := range 20 {
		request{key: fmt.Sprint("more", n), body: `{"item":"tea"}`}.send(p.url).want(t, http.StatusTooManyRequests, "quota-exceeded")
		if again := q.send(p.url); !again.same(first) || !again.replayed() {
			t.Fatalf("replay %d gets %v (replayed %v)", n, again, again.replayed())
		}
	}
	get := request{method: http.MethodGet, path: "/v1/orders", tenant: "attacker"}
	get.send(p.url).want(t, http.StatusOK, "")
	s.Cli(t, "config", "resetstat")
	begin := time.Now()
	for range 200 {
		get.send(p.url).want(t, http.StatusTooManyRequests, "quota-exceeded")
	}
	// A refusal is believed for a second; beside that, the program sweeps.
	stats := s.Cli(t, "info", "commandstats")
	calls := 0
	for line := range strings.Lines(stats) {
		n := 0
		if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,", &n); err == nil {
			calls += n
		}
	}
	if most := 2*int(time.Since(begin).Seconds()) + 10; calls > most {
		t.Errorf("200 refused requests were %d calls of Redis, want at most %d:\n%s", calls, most, stats)
	}
}
