package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Tenants without number, each new, as fast as they go: clear answers, and
// memory within bounds.
func TestHostileTenants(t *testing.T) {
	t.Parallel()
	tenants, more := int64(20_000), int64(64<<20)
	if soak() {
		tenants, more = 600_000, 512<<20
	}
	demo, err := serve(plainProgram, []string{"TMPDIR=" + t.TempDir()}, false, "--demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	demo.cleanup(t)
	request{key: "warm", body: "{}"}.send(demo.url).want(t, http.StatusCreated, "")
	first, _ := resident(t, demo.process)

	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	fast := &http.Client{Transport: transport, Timeout: patience}
	var next, faults atomic.Int64
	var wg sync.WaitGroup
	from := time.Now()
	for range 16 {
		wg.Go(func() {
			for {
				n := next.Add(1)
				if n > tenants || faults.Load() > 10 {
					return
				}
				method, path, want := http.MethodGet, "/search", http.StatusOK
				if n%20 == 0 { // a new key of a new tenant
					method, path, want = http.MethodPost, "/v1/notes", http.StatusCreated
				}
				r, err := http.NewRequest(method, demo.url+path, nil)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("X-Tenant-Id", fmt.Sprintf("tenant-%d-%s", n, strings.Repeat("x", int(n%100))))
				r.Header.Set("X-Api-Key", fmt.Sprint("key-", n))
				if method == http.MethodPost {
					// Under another map key: net/http must not send it twice.
					r.Header["idempotency-key"] = []string{fmt.Sprint("k-", n)}
				}
				resp, err := fast.Do(r)
				if err != nil {
					faults.Add(1)
					t.Errorf("tenant %d: %v", n, err)
					continue
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != want {
					faults.Add(1)
					t.Errorf("tenant %d: %s %q %v", n, resp.Status, b, err)
				}
			}
		})
	}
	wg.Wait()
	grows(t, demo.process, first, more, fmt.Sprintf("%d tenants in %v", tenants, time.Since(from)))
	if c := mustCount(t, demo.url, "notes"); c != (counts{tenants / 20, tenants / 20}) {
		t.Errorf("the upstream says of notes %+v, want %d", c, tenants/20)
	}
	if err := demo.terminate(); err != nil {
		t.Error(err)
	}
}
