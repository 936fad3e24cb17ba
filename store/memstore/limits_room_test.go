package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
)

// A live bucket is never forgotten: a new subject is refused instead, until one
// of the old buckets is full.
func TestLimitsFull(t *testing.T) {
	m, c := newLimits(t, 3)
	for i, s := range []string{"a", "b", "c"} {
		take(t, m, charge(tenant, s, int64(i+1)))
	}
	tryNew := func(charges ...ratelimit.Charge) error {
		_, err := m.Take(context.Background(), charges)
		return err
	}
	for range 100 {
		if err := tryNew(charge(tenant, "d", 1)); !errors.Is(err, memstore.ErrFull) {
			t.Fatalf("a fourth subject: %v", err)
		}
	}
	// What is held goes on, and looks need no room.
	if d := take(t, m, charge(tenant, "c", 1)); !d.Allowed || d.Levels[0].Remaining != 16 {
		t.Fatalf("a subject that is held: %+v", d)
	}
	if got := remaining(t, m, tenant, "d"); got != 20 {
		t.Fatalf("a look: %d", got)
	}
	// All or none: one that is held and one that has no room.
	if err := tryNew(charge(tenant, "c", 1), charge(tenant, "d", 1)); !errors.Is(err, memstore.ErrFull) {
		t.Fatalf("with a fourth subject: %v", err)
	}
	if got := remaining(t, m, tenant, "c"); got != 16 {
		t.Fatalf("remaining %d, want 16: the error must charge nothing", got)
	}
	c.advance(100 * time.Millisecond) // the bucket of a is full in this microsecond
	if err := tryNew(charge(tenant, "d", 1)); !errors.Is(err, memstore.ErrFull) {
		t.Fatalf("too early: %v", err)
	}
	c.advance(time.Microsecond)
	if d := take(t, m, charge(tenant, "d", 20)); !d.Allowed {
		t.Fatalf("with a full bucket to forget: %+v", d)
	}
	if err := tryNew(charge(tenant, "e", 1), charge(tenant, "f", 1)); !errors.Is(err, memstore.ErrFull) {
		t.Fatalf("two more: %v", err)
	}
	c.advance(time.Second)
	if d := take(t, m, charge(tenant, "e", 1), charge(tenant, "f", 1)); !d.Allowed {
		t.Fatalf("two more with room for two: %+v", d)
	}
	if got := remaining(t, m, tenant, "d"); got != 10 || m.Subjects() != 3 {
		t.Fatalf("remaining of a live one %d, want 10; %d subjects, want 3", got, m.Subjects())
	}
	if err := tryNew(charge(tenant, "1", 1), charge(tenant, "2", 1), charge(tenant, "3", 1), charge(tenant, "4", 1)); !errors.Is(err, memstore.ErrFull) {
		t.Fatalf("more than MaxSubjects in one call: %v", err)
	}
}

// New subjects push out what is over by themselves, logs and long subjects too,
// and the memory is used again.
func TestLimitsForgetsWhatIsOver(t *testing.T) {
	m, c := newLimits(t, 0)
	short := ratelimit.Rule{Name: "short", Quota: 1, Window: time.Second}
	log := ratelimit.Rule{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: 2, Window: time.Second}
	const n, warm = 60_000, 10_000
	most, before := 0, int64(0)
	for i := range n {
		r, s := short, fmt.Sprint("subject-", i)
		switch i % 3 {
		case 0:
			r = log
		case 1:
			s = strings.Repeat("x", 50) + s
		}
		if d := take(t, m, charge(r, s, 1)); !d.Allowed {
			t.Fatalf("%d: %+v", i, d)
		}
		c.advance(time.Millisecond)
		most = max(most, m.Subjects())
		if i == warm {
			before = heap()
		}
	}
	if more := heap() - before; more > 500_000 {
		t.Errorf("%d bytes more after %d subjects came and went", more, n-warm)
	}
	// A thousand are alive at any time.
	if most > 1500 {
		t.Errorf("up to %d subjects were held, of which 1000 were alive", most)
	}
	for i := n - 1; i > n-900; i -= 3 {
		if got := remaining(t, m, short, fmt.Sprint("subject-", i)); got != 0 {
			t.Fatalf("subject %d was forgotten: remaining %d", i, got)
		}
	}
	runtime.KeepAlive(m)
}

// heap is the size of what is reachable.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

func TestLimitsMemory(t *testing.T) {
	const n = 200_000
	m, _ := newLimits(t, n)
	slow := ratelimit.Rule{Name: "slow", Quota: 1, Window: time.Hour, Burst: 10}
	before := heap()
	var d ratelimit.Decision
	var taken ratelimit.Taken
	buf := make([]ratelimit.Charge, 1)
	for i := range n + 100 { // some more than there is room for
		buf[0] = charge(slow, fmt.Sprintf("tenant-%09d", i), 1) // 16 bytes
		err := m.TakeInto(context.Background(), buf, &d, &taken)
		if i < n && (err != nil || !d.Allowed) || i >= n && !errors.Is(err, memstore.ErrFull) {
			t.Fatalf("subject %d: %+v, %v", i, d, err)
		}
	}
	per := (heap() - before) / n
	t.Logf("%d bytes for each subject of 16 bytes", per)
	if per > 64+16 {
		t.Errorf("%d bytes for each subject of 16 bytes, want at most 64 beyond them", per)
	}
	if m.Subjects() != n {
		t.Errorf("%d subjects, want %d", m.Subjects(), n)
	}
	for i := range n {
		if got := remaining(t, m, slow, fmt.Sprintf("tenant-%09d", i)); got != 9 {
			t.Fatalf("subject %d: remaining %d, want 9", i, got)
		}
	}
	runtime.KeepAlive(m)
}
