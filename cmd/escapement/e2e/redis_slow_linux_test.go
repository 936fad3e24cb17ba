package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/internal/redistest"
)

// A Redis that is slow, half open, hung or refuses: of a thousand requests,
// hardly any reaches it once it is known to be away, none waits for long, each
// gets what the policy of its limit says, and memory stays flat.
func TestT7RedisBehindAFault(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		name  string
		begin func(t *testing.T, s *redistest.Server, x *redistest.Proxy)
		end   func(t *testing.T, s *redistest.Server, x *redistest.Proxy)
		keys  bool // whether keys, which have more time, go on
	}{
		{
			"slow by 50ms",
			func(_ *testing.T, _ *redistest.Server, x *redistest.Proxy) { x.Delay(50 * time.Millisecond) },
			func(_ *testing.T, _ *redistest.Server, x *redistest.Proxy) { x.Delay(0) }, true,
		},
		{
			"half open",
			func(_ *testing.T, _ *redistest.Server, x *redistest.Proxy) { x.Swallow(true) },
			func(_ *testing.T, _ *redistest.Server, x *redistest.Proxy) { x.Swallow(false) }, false,
		},
		{
			"hung",
			func(t *testing.T, s *redistest.Server, _ *redistest.Proxy) { s.Pause(t) },
			func(t *testing.T, s *redistest.Server, _ *redistest.Proxy) { s.Resume(t) }, false,
		},
		{
			"refusing",
			func(t *testing.T, _ *redistest.Server, x *redistest.Proxy) { x.Refuse(t, true) },
			func(t *testing.T, _ *redistest.Server, x *redistest.Proxy) { x.Refuse(t, false) }, false,
		},
	} {
		t.Run(fault.name, func(t *testing.T) {
			s, up := redistest.Start(t, "--appendfsync", "no"), startUpstream(t)
			x := redistest.StartProxy(t, s)
			p := start(t, up, options{store: "redis://" + x.Addr, settings: patient("10s"), more: `
redis: {limit_deadline: 20ms, key_deadline: 1s}
limits:
  - {name: open, routes: [GET /v1/orders], by: [tenant], rate: 100000/s, on_unavailable: open}
  - {name: closed, routes: [GET /v1/payments], rate: 100000/s, on_unavailable: closed}
  - {name: local, routes: [GET /v1/notes], by: [tenant], rate: 100000/s}
`})
			in := &inquiry{t: t, p: p}
			in.ask(300, true)
			for n := range 20 {
				request{key: fmt.Sprint("before", n), body: `{"item":"tea"}`}.send(p.url).want(t, http.StatusCreated, "")
			}
			healthy := in.took()
			first, _ := resident(t, p.process)

			fault.begin(t, s, x)
			from, began := x.Scripts(), time.Now()
			in.ask(60, false)
			atFirst := in.took()
			in.ask(1000, false)
			open := in.took()
			// Five that fail, those that were under way then, and one a second.
			if n, most := x.Scripts()-from, int64(5+askers+4+2*time.Since(began).Seconds()); n > most {
				t.Errorf("1060 requests were %d scripts, want at most %d", n, most)
			}
			t.Logf("half of the requests, and 99 of 100, take %v; at first %v; known to be away %v", healthy, atFirst, open)

			// Keys: those that wait, wait for their deadline.
			var waited int
			began = time.Now()
			for n := range map[bool]int{false: 100, true: 30}[fault.keys] {
				begin := time.Now()
				r := request{key: fmt.Sprint("while", n), body: `{"item":"tea"}`}.send(p.url)
				if fault.keys {
					r.want(t, http.StatusCreated, "")
				} else {
					r.want(t, http.StatusServiceUnavailable, "store-unavailable")
				}
				if time.Since(begin) > 500*time.Millisecond {
					waited++
				}
			}
			if most := int(5 + 2 + time.Since(began).Seconds()); waited > most {
				t.Errorf("of the requests with a key %d waited, want at most %d", waited, most)
			}
			if n := strings.Count(p.stderr.String(), "the limiter is unavailable"); n > 4 {
				t.Errorf("the log says %d times that the limiter is unavailable", n)
			}
			grows(t, p.process, first, 32<<20, fault.name)

			fault.end(t, s, x)
			if !soon(func() bool {
				r := request{method: http.MethodGet, path: "/v1/payments"}.send(p.url)
				return r.status == http.StatusOK
			}) {
				t.Error("the limiter does not come back")
			}
			if !soon(func() bool {
				return request{key: "after", body: `{"item":"tea"}`}.send(p.url).status == http.StatusCreated
			}) {
				t.Error("keys do not come back")
			}
			if err := p.terminate(); err != nil {
				t.Error(err)
			}
		})
	}
}

// askers is how many ask at one time.
const askers = 4

// inquiry asks a program, without keys, and notes how long its answers take.
type inquiry struct {
	t *testing.T
	p *program

	mu   sync.Mutex
	list []time.Duration
}

// ask sends n requests, of three policies in turn. Each gets what its policy
// says.
func (q *inquiry) ask(n int, healthy bool) {
	q.t.Helper()
	var wg sync.WaitGroup
	for w := range askers {
		wg.Go(func() {
			for i := w; i < n; i += askers {
				path := [...]string{"/v1/orders", "/v1/payments", "/v1/notes"}[i%3]
				begin := time.Now()
				r := request{method: http.MethodGet, path: path}.send(q.p.url)
				took := time.Since(begin)
				q.mu.Lock()
				q.list = append(q.list, took)
				q.mu.Unlock()
				want, code := http.StatusOK, ""
				if path == "/v1/payments" && (!healthy || r.status != want) { // 20ms may also be over when all is well
					want, code = http.StatusServiceUnavailable, "limiter-unavailable"
				}
				if r.err != nil || r.status != want || r.code() != code {
					q.t.Errorf("GET %s gets %v, want %d %s", path, r, want, code)
				}
				if took > 5*time.Second {
					q.t.Errorf("GET %s is answered after %v", path, took)
				}
			}
		})
	}
	wg.Wait()
}

// took returns the median and the 99th percentile of what was asked since the
// last call.
func (q *inquiry) took() [2]time.Duration {
	slices.Sort(q.list)
	n := len(q.list)
	x := [2]time.Duration{q.list[n/2].Round(10 * time.Microsecond), q.list[n*99/100].Round(10 * time.Microsecond)}
	q.list = nil
	return x
}
