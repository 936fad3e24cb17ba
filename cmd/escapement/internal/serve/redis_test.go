package serve

import (
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
	"github.com/escapement-dev/escapement/internal/redistest"
)

// Thousands of requests while Redis hangs, with keys and without: the server
// has as many goroutines as before, but for a few; and as many again when Redis
// goes on.
func TestGoroutinesWhileRedisHangs(t *testing.T) {
	redis := redistest.Start(t, "--appendfsync", "no")
	r := newRig(t, setup{change: func(c *config.Config) {
		c.Store = config.StoreURL{Kind: "redis", Address: "redis://" + redis.Addr}
	}})
	const callers = 16
	// Connections stay: each has its goroutines from the beginning.
	var most atomic.Int64
	crowd := func(phase string, n int, want map[int]bool) {
		t.Helper()
		var wg sync.WaitGroup
		for w := range callers {
			wg.Go(func() {
				for i := range n / callers {
					var a answer
					if i%2 == 0 {
						a = r.do("GET", "/v1/limited", "")
					} else {
						a = r.do("POST", "/v1/notes", `{"note":"n"}`, "Idempotency-Key", fmt.Sprint(phase, w, "-", i))
					}
					if !want[a.status] {
						t.Errorf("%s: %v", phase, a)
						return
					}
					for now := int64(runtime.NumGoroutine()); ; {
						if m := most.Load(); now <= m || most.CompareAndSwap(m, now) {
							break
						}
					}
				}
			})
		}
		wg.Wait()
	}
	healthy := map[int]bool{http.StatusOK: true, http.StatusCreated: true, http.StatusTooManyRequests: true, http.StatusServiceUnavailable: true}
	crowd("warm", 320, healthy)
	before := most.Load()
	redis.Pause(t)
	crowd("hung", 4000, map[int]bool{http.StatusOK: true, http.StatusTooManyRequests: true, http.StatusServiceUnavailable: true})
	hung := most.Load()
	redis.Resume(t)
	r.eventually(func() bool {
		return r.do("POST", "/v1/notes", `{"note":"n"}`, "Idempotency-Key", "after").status == http.StatusCreated
	})
	t.Logf("at most %d goroutines before, %d while Redis hung", before, hung)
	if hung > before+4*callers {
		t.Errorf("at most %d goroutines became %d", before, hung)
	}
	r.eventually(func() bool { return int64(runtime.NumGoroutine()) <= before })
}
