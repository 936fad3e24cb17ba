//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A program is stopped for longer than its lease, with its request in the
// upstream, and wakes up. An order was taken over meanwhile by another program:
// the late ending changes nothing, and the first client gets what the record
// says. A payment was not: it is unknown until its owner wakes up and says how
// it ended.
func TestFault01PausedHolder(t *testing.T) {
	t.Parallel()
	up, dir, other := startUpstream(t), t.TempDir(), t.TempDir()
	db := filepath.Join(dir, "escapement.db")
	a := start(t, up, options{dir: dir, db: db, settings: patient("300ms")})
	b := start(t, up, options{dir: other, db: db, settings: patient("300ms")})
	order := request{path: "/v1/orders", key: "paused", body: `{"n":1}`}
	payment := request{path: "/v1/payments", key: "paused", body: `{"n":1}`}
	first := map[string]chan reply{}
	for _, q := range []request{order, payment} {
		answer := make(chan reply, 1)
		first[q.path] = answer
		q.fields = map[string]string{"X-Demo-Delay": "1s", "Traceparent": trace(q.path)}
		go func() { answer <- q.send(a.url) }()
	}
	if !soon(func() bool {
		return mustCount(t, up, "orders").Received == 1 && mustCount(t, up, "payments").Received == 1
	}) {
		t.Fatal("the requests do not reach the upstream")
	}
	if err := a.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	took, err := order.final(b.url)
	if err != nil || took.status != http.StatusCreated || took.replayed() {
		t.Errorf("the other program answers %v (replayed %v, %v)", took, took.replayed(), err)
	}
	if r, err := payment.final(b.url); err != nil || r.code() != "idempotency-outcome-unknown" {
		t.Errorf("a repeat of the payment gets %v (%v)", r, err)
	}
	if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if r := <-first["/v1/orders"]; !r.same(took) {
		t.Errorf("the order's first client gets %v, and the record is %v", r, took)
	}
	paid := <-first["/v1/payments"]
	paid.want(t, http.StatusCreated, "")
	for _, p := range []*program{a, b} {
		if r := order.send(p.url); !r.same(took) || !r.replayed() {
			t.Errorf("a repeat of the order gets %v, and the record is %v", r, took)
		}
		if r := payment.send(p.url); !r.same(paid) || !r.replayed() {
			t.Errorf("a repeat of the payment gets %v, and its first client %v", r, paid)
		}
	}
	if c := mustCount(t, up, "orders"); c != (counts{1, 2}) {
		t.Errorf("the upstream says of orders %+v, want one of two POSTs", c)
	}
	if c := mustCount(t, up, "payments"); c != (counts{1, 1}) {
		t.Errorf("the upstream says of payments %+v, want one of one POST", c)
	}
	a.kill()
	b.kill()
	left, err := snapshot(db, dir)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]kept{"/v1/orders": {"done", 2, true}, "/v1/payments": {"done", 1, false}} {
		if got := left[trace(path)[3:35]]; got != want {
			t.Errorf("the record of %s is %+v, want %+v", path, got, want)
		}
	}
}

// trace is the field traceparent by which a record is found again.
func trace(path string) string {
	id := "0000000000000000000000000000000a"
	if path == "/v1/payments" {
		id = "0000000000000000000000000000000b"
	}
	return "00-" + id + "-00f067aa0ba902b7-01"
}

// A stopped program that holds the store's lock for a moment delays the others,
// and nothing else: stopped at random moments, two programs make one order of
// each key.
func TestT7StoppedProgramOnASharedFile(t *testing.T) {
	t.Parallel()
	up, dir, other := startUpstream(t), t.TempDir(), t.TempDir()
	db := filepath.Join(dir, "escapement.db")
	a := start(t, up, options{dir: dir, db: db})
	b := start(t, up, options{dir: other, db: db})
	stop := make(chan struct{})
	stopped := make(chan error, 1)
	go func() {
		tick := time.NewTicker(130 * time.Millisecond)
		defer tick.Stop()
		sig := []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT}
		for i := 0; ; i++ {
			select {
			case <-tick.C:
				if err := a.cmd.Process.Signal(sig[i%2]); err != nil {
					stopped <- err
					return
				}
			case <-stop:
				stopped <- a.cmd.Process.Signal(syscall.SIGCONT)
				return
			}
		}
	}()
	const keys = 40
	type both struct {
		x, y       reply
		errX, errY error
	}
	answers := make(chan both, keys)
	for i := range keys {
		go func() {
			q := request{key: fmt.Sprint("shared-", i), body: `{"n":1}`}
			var r both
			done := make(chan struct{})
			go func() { r.x, r.errX = q.final(a.url); close(done) }()
			r.y, r.errY = q.final(b.url)
			<-done
			answers <- r
		}()
	}
	for range keys {
		r := <-answers
		if r.errX != nil || r.errY != nil || !r.x.same(r.y) || r.x.status != http.StatusCreated {
			t.Errorf("two programs answer one key with %v (%v) and %v (%v)", r.x, r.errX, r.y, r.errY)
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if c := mustCount(t, up, "orders"); c.Count != keys {
		t.Errorf("the upstream made %d orders for %d keys", c.Count, keys)
	}
}
