package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"
)

// largest bounds the size that a process may write its files to, in bytes, and
// returns what the bound was. A write beyond it fails, as on a full disk.
func largest(t *testing.T, p *process, size uint64) (before uint64) {
	t.Helper()
	var old syscall.Rlimit
	set := func(limit *syscall.Rlimit) {
		_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(p.cmd.Process.Pid), syscall.RLIMIT_FSIZE,
			uintptr(unsafe.Pointer(limit)), uintptr(unsafe.Pointer(&old)), 0, 0)
		if errno != 0 {
			t.Fatal(errno)
		}
	}
	set(nil)
	set(&syscall.Rlimit{Cur: size, Max: old.Max})
	return old.Cur
}

// The file is locked by somebody else: 503, nothing is executed, and the
// program recovers by itself.
func TestT7StoreLocked(t *testing.T) {
	t.Parallel()
	up, dir := startUpstream(t), t.TempDir()
	p := start(t, up, options{dir: dir})
	request{key: "done", body: `{"n":1}`}.send(p.url).want(t, http.StatusCreated, "")
	unlock := lock(t, filepath.Join(dir, "escapement.db"))
	var wg sync.WaitGroup
	for _, key := range []string{"locked", "locked", "another"} {
		wg.Go(func() {
			r := request{key: key, body: `{"n":1}`}.send(p.url)
			if _, err := r.retryAfter(); err != nil || r.status != http.StatusServiceUnavailable || r.code() != "store-unavailable" {
				t.Errorf("while the file is locked: %v (%v)", r, err)
			}
		})
	}
	// What needs no record goes on.
	request{path: "/v1/notes", body: `{"n":1}`}.send(p.url).want(t, http.StatusCreated, "")
	wg.Wait()
	if c := mustCount(t, up, "orders"); c != (counts{1, 1}) {
		t.Errorf("the upstream says %+v, want what was made before", c)
	}
	unlock()
	for _, key := range []string{"locked", "another"} {
		r, err := request{key: key, body: `{"n":1}`}.final(p.url)
		if err != nil || r.status != http.StatusCreated || r.replayed() {
			t.Errorf("after the lock: %v (replayed %v, %v)", r, r.replayed(), err)
		}
	}
	if c := mustCount(t, up, "orders"); c != (counts{3, 3}) {
		t.Errorf("the upstream says %+v, want three orders of three POSTs", c)
	}
}

// The disk takes nothing more: 503, nothing is executed, and the program
// recovers by itself.
func TestT7DiskFull(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := start(t, up, options{})
	first := request{key: "done", body: `{"n":1}`}.send(p.url)
	first.want(t, http.StatusCreated, "")
	before := largest(t, p.process, 4096)
	for _, q := range []request{
		{key: "full", body: `{"n":1}`},
		{key: "full", body: `{"n":1}`},
		{path: "/v1/payments", key: "full", body: `{"n":1}`},
		{path: "/v1/payments", key: "full-large", body: `"` + strings.Repeat("x", 200_000) + `"`},
	} {
		r := q.send(p.url)
		if r.status != http.StatusServiceUnavailable {
			t.Errorf("%s %s on a full disk: %v", q.path, q.key, r)
		} else if _, err := r.retryAfter(); err != nil {
			t.Error(err)
		}
	}
	request{path: "/v1/notes", body: `{"n":1}`}.send(p.url).want(t, http.StatusCreated, "")
	if c := mustCount(t, up, "orders"); c != (counts{1, 1}) {
		t.Errorf("the upstream says %+v, want what was made before", c)
	}
	largest(t, p.process, before)
	if r := (request{key: "done", body: `{"n":1}`}).send(p.url); !r.same(first) {
		t.Errorf("the record from before gives %v, and gave %v", r, first)
	}
	for _, path := range []string{"/v1/orders", "/v1/payments"} {
		r, err := request{path: path, key: "full", body: `{"n":1}`}.final(p.url)
		if err != nil || r.status != http.StatusCreated || r.replayed() {
			t.Errorf("%s when there is room again: %v (replayed %v, %v)", path, r, r.replayed(), err)
		}
	}
	if c := mustCount(t, up, "payments"); c != (counts{1, 1}) {
		t.Errorf("the upstream says of payments %+v, want one of one POST", c)
	}
}

// The disk becomes full between the effect and its record: the client is told
// so, the record is made up for, and nothing runs twice.
func TestT7DiskFullAfterTheEffect(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := start(t, up, options{settings: patient("30s")})
	q := request{path: "/v1/payments", key: "late", body: `{"n":1}`}
	slow := q
	slow.fields = map[string]string{"X-Demo-Delay": "1500ms"}
	sent := make(chan reply, 1)
	go func() { sent <- slow.send(p.url) }()
	if !soon(func() bool { return mustCount(t, up, "payments").Received == 1 }) {
		t.Fatal("the request does not reach the upstream")
	}
	before := largest(t, p.process, 4096)
	r := <-sent
	r.want(t, http.StatusServiceUnavailable, "idempotency-result-not-recorded")
	if r := q.send(p.url); r.status == http.StatusCreated {
		t.Errorf("a repeat on a full disk gets %v", r)
	}
	largest(t, p.process, before)
	r, err := q.final(p.url)
	if err != nil || r.status != http.StatusCreated || !r.replayed() {
		t.Errorf("the repeat gets %v (replayed %v, %v)", r, r.replayed(), err)
	}
	if c := mustCount(t, up, "payments"); c != (counts{1, 1}) {
		t.Errorf("the upstream says %+v, want one payment of one POST", c)
	}
}
