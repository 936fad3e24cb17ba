package redisstore_test

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/guard"
	"github.com/escapement-dev/escapement/store/memstore"
)

// newGuard is a guard whose rules do what their names say.
func newGuard(t testing.TB, s ratelimit.Store, deadline time.Duration) *guard.Guard {
	t.Helper()
	local, err := memstore.NewLimits(memstore.LimitsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	policies := map[string]guard.OnUnavailable{"local": guard.OnLocal, "open": guard.OnOpen, "closed": guard.OnClosed}
	g, err := guard.New(s, guard.Options{
		Deadline: deadline, Pause: 200 * time.Millisecond, Local: local,
		Fallback: func(rule string) guard.Fallback { return guard.Fallback{On: policies[rule]} },
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestGuardWhileRedisHangs: the server is frozen; no call takes much longer
// than the deadline, with the breaker open hardly any time, goroutines stay
// few, and the limit comes back with the server.
func TestGuardWhileRedisHangs(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, "redis://"+server.Addr, nil)
	g := newGuard(t, s, 30*time.Millisecond)
	charge := func(rule string) []ratelimit.Charge { return []ratelimit.Charge{perHour(rule, "s", 1)} }
	if d, err := g.Take(t.Context(), charge("local")); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	server.Pause(t)
	before := runtime.NumGoroutine()
	var took []time.Duration
	for range 5000 {
		begin := time.Now()
		if d, err := g.Take(t.Context(), charge("open")); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	if p99, most := took[len(took)*99/100], took[len(took)-1]; p99 > time.Millisecond*5 || most > time.Second {
		t.Fatalf("with Redis hung, p99 is %v and the longest call took %v", p99, most)
	}
	if n := runtime.NumGoroutine(); n > before+50 {
		t.Fatalf("%d goroutines became %d", before, n)
	}
	server.Resume(t)
	for begin := time.Now(); ; {
		if d, err := g.Take(t.Context(), charge("closed")); err == nil && d.Allowed {
			break
		}
		if time.Since(begin) > 20*time.Second {
			t.Fatal("the server is back and is not asked")
		}
	}
}
