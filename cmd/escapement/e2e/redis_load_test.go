package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/internal/redistest"
)

// orders is a load: clients that make orders, one after the other, each to its
// end, for many tenants; and others that ask, against a limit of so many per
// hour, until it refuses them.
type orders struct {
	t    *testing.T
	up   string
	stop func()

	mu     sync.Mutex
	each   []int64        // orders made, by client
	faults map[string]int // answers that were not the wanted one, by code

	asked    atomic.Int64 // passed the limit
	unasked  atomic.Int64 // 503: the limit may have been charged
	exceeded atomic.Bool  // the limit has refused
}

const (
	orderClients = 4
	askedLimit   = 400
)

// askedRule is the limit for those who ask.
var askedRule = fmt.Sprintf("  - {name: asked, routes: [GET /v1/orders], by: [], rate: %d/h, on_unavailable: closed}\n", askedLimit)

// named are the answers that a store that is away may bring about.
func named(r reply) bool {
	switch r.code() {
	case "store-unavailable", "idempotency-result-not-recorded", "limiter-unavailable":
		return r.status == http.StatusServiceUnavailable
	case "idempotency-request-in-progress":
		return r.status == http.StatusConflict
	}
	return false
}

// forgotten are those, and the answer of an attempt whose claim a failover has
// forgotten: what it did is not in the store.
func forgotten(r reply) bool {
	return named(r) || r.status == http.StatusConflict && r.code() == "idempotency-outcome-unknown"
}

// startOrders starts the load. Answers other than the wanted one must be
// allowed.
func startOrders(t *testing.T, p *program, up, phase string, allowed func(reply) bool) *orders {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	o := &orders{t: t, up: up, each: make([]int64, orderClients), faults: map[string]int{}}
	var wg sync.WaitGroup
	for c := range orderClients {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				q := request{key: fmt.Sprintf("%s-%d-%d", phase, c, n), tenant: fmt.Sprint("t", n%50), body: `{"item":"tea"}`}
				for r := q.send(p.url); r.status != http.StatusCreated; r = q.send(p.url) {
					if !o.fault(r, allowed) {
						return
					}
					pause(20 * time.Millisecond)
				}
				o.mu.Lock()
				o.each[c]++
				o.mu.Unlock()
				pause(5 * time.Millisecond)
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil && !o.exceeded.Load() {
			r := request{method: http.MethodGet, path: "/v1/orders"}.send(p.url)
			switch {
			case r.status == http.StatusOK:
				o.asked.Add(1)
			case r.code() == "quota-exceeded":
				o.exceeded.Store(true)
			default:
				if o.unasked.Add(1); !o.fault(r, allowed) {
					return
				}
			}
			pause(10 * time.Millisecond)
		}
	})
	o.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(o.stop)
	return o
}

// fault notes an answer, and reports false if no client should go on.
func (o *orders) fault(r reply, allowed func(reply) bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.faults[fmt.Sprint(r.status, " ", r.code())]++
	if !allowed(r) {
		o.t.Errorf("an answer is %v", r)
		return false
	}
	return true
}

// told is what faults there were.
func (o *orders) told() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return fmt.Sprint(o.faults)
}

func (o *orders) count() (made int64, faults int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.each {
		made += n
	}
	for _, n := range o.faults {
		faults += n
	}
	return made, faults
}

// goesOn waits until every client has made n more orders.
func (o *orders) goesOn(n int64) {
	o.t.Helper()
	o.mu.Lock()
	before := append([]int64(nil), o.each...)
	o.mu.Unlock()
	if !soon(func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		for c := range before {
			if o.each[c] < before[c]+n {
				return false
			}
		}
		return true
	}) {
		o.t.Fatalf("nothing goes on: %s", o.told())
	}
}

// calm waits until every client has made n orders in a row without a fault.
func (o *orders) calm(n int64) {
	o.t.Helper()
	begin := time.Now()
	if !soon(func() bool {
		_, before := o.count()
		o.goesOn(n)
		_, after := o.count()
		return before == after
	}) {
		o.t.Fatalf("there are still faults: %s", o.told())
	}
	o.t.Logf("calm %v later; faults so far: %s", time.Since(begin), o.told())
}

// made ends the load and compares: each order that was answered was made once
// by the upstream, which knows keys, and was sent to it hardly more often.
func (o *orders) made(lost bool) {
	o.t.Helper()
	o.stop()
	made, _ := o.count()
	c := mustCount(o.t, o.up, "orders")
	o.t.Logf("%d orders, %d of them sent twice; faults: %s", c.Count, c.Received-c.Count, o.told())
	if c.Count < made || c.Count > made+orderClients { // each client's last may be under way
		o.t.Errorf("the upstream made %d orders, and %d were answered", c.Count, made)
	}
	if !lost && c.Received != c.Count {
		o.t.Errorf("the upstream made %d orders of %d POSTs", c.Count, c.Received)
	}
}

// spent asks until the limit refuses, and explains what passed: its quota, but
// for what was charged and answered 503, and what a failover forgot.
func (o *orders) spent(lost bool) {
	o.t.Helper()
	if !soon(o.exceeded.Load) {
		o.t.Fatal("the limit refuses nothing")
	}
	passed, unasked := o.asked.Load(), o.unasked.Load()
	o.t.Logf("of a limit of %d, %d passed and %d were answered 503", askedLimit, passed, unasked)
	most := int64(askedLimit + 2) // what comes back meanwhile
	if lost {
		most *= 2
	}
	if passed > most || passed < askedLimit-unasked {
		o.t.Errorf("of a limit of %d, %d passed and %d were answered 503", askedLimit, passed, unasked)
	}
}

// Scripts are lost, and Redis is killed and started again, all under load: the
// first is never noticed; of the second, clients see what the policies name,
// and every order is made once.
func TestT7RedisRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	p := startOn(t, s, up, options{settings: patient("1s"), more: generous + "limits:\n  - {name: wide, by: [tenant], rate: 100000/s, on_unavailable: open}\n" + askedRule})
	o := startOrders(t, p, up, "flush", func(reply) bool { return false })
	for range 20 {
		s.Cli(t, "script", "flush")
		o.goesOn(1)
	}
	o.made(false)
	before := mustCount(t, up, "orders").Count

	o = startOrders(t, p, up, "restart", named)
	for range 3 {
		s.Kill()
		pause(200 * time.Millisecond)
		s.Revive(t)
		o.calm(2)
	}
	o.stop()
	// An order whose end was lost on its way is taken over: the upstream, which
	// knows keys, makes it once.
	made, _ := o.count()
	if c := mustCount(t, up, "orders"); c.Count < before+made || c.Count > before+made+orderClients {
		t.Errorf("the upstream says %+v, and %d orders were answered after the first %d", c, made, before)
	}
}

// onServers starts a program with everything in a Redis of several servers.
func onServers(t *testing.T, url, up string) *program {
	t.Helper()
	return start(t, up, options{
		store: url, settings: patient("2s"),
		more: generous + "limits:\n  - {name: tenant, by: [tenant], rate: 100000/s}\n  - {name: ip, by: [ip], rate: 100000/s}\n" + askedRule,
	})
}

// A master of a Cluster dies under load: clients see what the policies name,
// and then nothing; admissions are explained.
func TestT7RedisClusterFailsOverUnderLoad(t *testing.T) {
	t.Parallel()
	c, url := startCluster(t, 1)
	up := startUpstream(t)
	p := onServers(t, url, up)
	o := startOrders(t, p, up, "o", forgotten)
	o.goesOn(10)
	logs := make([]int, len(c.Replicas))
	for i, r := range c.Replicas {
		logs[i] = r.Log()
	}
	c.Masters[0].Kill()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	won := make(chan struct{}, len(c.Replicas))
	for i, r := range c.Replicas {
		go func() {
			if r.Wait(ctx, logs[i], "Failover election won") == nil {
				won <- struct{}{}
			}
		}()
	}
	select {
	case <-won:
	case <-ctx.Done():
		t.Fatal("no replica takes over")
	}
	o.calm(20)
	o.spent(true)
	o.made(true)
}

// Slots move between the masters of a Cluster under load: nobody notices.
func TestT7RedisReshardsUnderLoad(t *testing.T) {
	t.Parallel()
	c, url := startCluster(t, 0)
	up := startUpstream(t)
	p := onServers(t, url, up)
	o := startOrders(t, p, up, "o", func(reply) bool { return false })
	o.goesOn(5)
	id := func(i int) string { return c.Masters[i].Cli(t, "cluster", "myid") }
	for i := range 3 {
		out, err := exec.Command("redis-cli", "--cluster", "reshard", c.Masters[0].Addr, "--cluster-from", id(i), "--cluster-to", id((i+1)%3),
			"--cluster-slots", "300", "--cluster-yes").CombinedOutput()
		if err != nil {
			t.Fatalf("reshard: %v: %s", err, out[max(0, len(out)-500):])
		}
		o.goesOn(2)
	}
	o.spent(false)
	o.made(false)
}

// Sentinel makes another server the master under load, and the old one answers
// READONLY from then on.
func TestT7RedisTurnsReadOnlyUnderLoad(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 1)
	up := startUpstream(t)
	p := onServers(t, "redis+sentinel://"+strings.Join(s.Addrs(), ",")+"/"+redistest.MasterName, up)
	o := startOrders(t, p, up, "o", forgotten)
	o.goesOn(10)
	from, old := s.Replicas[0].Log(), s.Master.Log()
	s.Sentinels[0].Cli(t, "sentinel", "failover", redistest.MasterName)
	s.Replicas[0].Expect(t, from, "MASTER MODE enabled")
	s.Master.Expect(t, old, "MASTER <-> REPLICA sync: Finished with success")
	o.calm(20)
	o.spent(true)
	o.made(true)
}
