package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// policies are limits of each policy, and deadlines that end within a test and
// that a busy machine keeps.
const policies = `
redis: {limit_deadline: 300ms, key_deadline: 600ms}
postgres: {limit_deadline: 300ms, key_deadline: 600ms}
limits:
  - {name: open, routes: [GET /v1/orders], rate: 1/h, on_unavailable: open}
  - {name: closed, routes: [/v1/payments], rate: 100/h, on_unavailable: closed}
  - {name: local, routes: [GET /v1/notes], by: [tenant], rate: 8/h, local_share: 0.25}
`

// Redis hangs: each limit does what it says, nothing with a key is executed,
// every request is answered within the deadline, or at once when it is known;
// and when Redis goes on, so does the program.
func TestT7RedisHangs(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	p := startOn(t, s, up, options{settings: patient("1s"), more: policies})
	hung(t, up, p, true, func() { s.Pause(t) }, func() { s.Resume(t) })
}

// The same with keys in a file: the limits alone are away, and keys go on.
func TestT7LimiterInRedisHangs(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	p := start(t, up, options{settings: patient("1s"), more: "limiter: " + s.url + policies})
	hung(t, up, p, false, func() { s.Pause(t) }, func() { s.Resume(t) })
}

// hung is what must come of a limiter that hangs, with or without the keys.
func hung(t *testing.T, up string, p *program, keysToo bool, stop, goOn func()) {
	t.Helper()
	get := func(path, tenant string) request {
		return request{method: http.MethodGet, path: path, tenant: tenant}
	}
	order := func(n int) request { return request{key: fmt.Sprint("o", n), body: `{"item":"tea"}`} }
	get("/v1/orders", "").send(p.url).want(t, http.StatusOK, "")
	get("/v1/orders", "").send(p.url).want(t, http.StatusTooManyRequests, "quota-exceeded")
	for range 2 {
		get("/v1/notes", "warm").send(p.url).want(t, http.StatusOK, "")
	}
	order(0).send(p.url).want(t, http.StatusCreated, "")
	if r := get("/readyz", "").send(p.admin); r.status != http.StatusOK {
		t.Errorf("/readyz says %v", r)
	}

	stop()
	pause(time.Second) // what was refused is forgotten
	from, answers := time.Now(), 0
	took := func(q request) reply {
		begin := time.Now()
		r := q.send(p.url)
		answers++
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("%s %s is answered after %v", q.method, q.path, d)
		}
		return r
	}
	n := 1
	for range 10 {
		took(get("/v1/orders", "")).want(t, http.StatusOK, "")
		took(get("/v1/payments", "")).want(t, http.StatusServiceUnavailable, "limiter-unavailable")
		took(request{path: "/v1/payments", key: "p", body: `{"amount":7}`}).want(t, http.StatusServiceUnavailable, "limiter-unavailable")
		took(get("/v1/notes", "warm")).want(t, http.StatusTooManyRequests, "quota-exceeded")
		r := took(order(n))
		if n++; keysToo {
			r.want(t, http.StatusServiceUnavailable, "store-unavailable")
		} else {
			r.want(t, http.StatusCreated, "")
		}
		if r.status == http.StatusServiceUnavailable {
			if _, err := r.retryAfter(); err != nil {
				t.Error(err)
			}
		}
	}
	for range 2 { // a quarter of 8
		took(get("/v1/notes", "cold")).want(t, http.StatusOK, "")
	}
	took(get("/v1/notes", "cold")).want(t, http.StatusTooManyRequests, "quota-exceeded")
	// Each waiting for 300ms or 600ms would take far longer: most are answered
	// at once.
	if d := time.Since(from); d > time.Duration(answers)*300*time.Millisecond {
		t.Errorf("%d answers took %v", answers, d)
	}
	if r := get("/readyz", "").send(p.admin); r.status != http.StatusServiceUnavailable {
		t.Errorf("/readyz says %v while a limit is closed", r)
	}

	goOn()
	if !soon(func() bool { return get("/v1/payments", "").send(p.url).status == http.StatusOK }) {
		t.Error("the limiter does not come back")
	}
	if !soon(func() bool { return order(n).send(p.url).status == http.StatusCreated }) {
		t.Error("keys do not come back")
	}
	want := counts{2, 2}
	if !keysToo {
		want = counts{12, 12}
	}
	if c := mustCount(t, up, "orders"); c != want {
		t.Errorf("the upstream says of orders %+v, want %+v", c, want)
	}
	if c := mustCount(t, up, "payments"); c != (counts{}) {
		t.Errorf("the upstream says of payments %+v, want none", c)
	}
	if r := get("/readyz", "").send(p.admin); r.status != http.StatusOK {
		t.Errorf("/readyz says %v", r)
	}
	if err := p.terminate(); err != nil {
		t.Error(err)
	}
}
