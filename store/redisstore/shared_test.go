package redisstore_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// TestTwoNodesShareALimit: T5 over two nodes, whose own clocks are an hour ahead
// of and behind the server's and do not matter. The bound is judged by the
// store's own times of admission.
func TestTwoNodesShareALimit(t *testing.T) {
	prefix := fmt.Sprintf("test%d:", prefixes.Add(1))
	url := "redis://" + shared.Addr
	var nodes []*redisstore.Cached
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		// What refuses here without asking is all that has a clock of its own.
		n, err := openAt(t, url, prefix, nil).Cached(redisstore.DenyCacheOptions{Now: func() time.Time { return time.Now().Add(off) }})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	rule := ratelimit.Rule{Name: "r", Quota: 10, Window: time.Second, Burst: 20}
	var mu sync.Mutex
	var times []int64
	begin := time.Now()
	var wait sync.WaitGroup
	for i := range 16 {
		wait.Go(func() {
			for time.Since(begin) < 1500*time.Millisecond {
				d, err := nodes[i%2].Take(t.Context(), []ratelimit.Charge{{Rule: rule, Subject: "s", Cost: 1}})
				if err != nil {
					t.Error(err)
					return
				}
				if d.Allowed {
					mu.Lock()
					times = append(times, d.Taken.Receipts[0].At)
					mu.Unlock()
				}
			}
		})
	}
	wait.Wait()
	slices.Sort(times)
	if len(times) < 30 {
		t.Fatalf("in 1.5 s only %d passed, want 20 at once and 10 per second", len(times))
	}
	for i := range times {
		for j := i; j < len(times); j++ {
			if n, span := int64(j-i+1), times[j]-times[i]; (n-20)*100_000 > span {
				t.Fatalf("%d passed within %d µs", n, span)
			}
		}
	}
}

// TestTakeoverAfterAKill: one node is killed with a claim held; of the 20
// attempts at the other, again and again, exactly one takes over.
func TestTakeoverAfterAKill(t *testing.T) {
	prefix := fmt.Sprintf("test%d:", prefixes.Add(1))
	url := "redis://" + shared.Addr
	const role = "REDISSTORE_TEST_HOLDER"
	if at := os.Getenv(role); at != "" { // the node that is killed
		holdForEver(t, at, os.Getenv(role+"_PREFIX"))
		return
	}
	node := exec.Command(os.Args[0], "-test.run", "^TestTakeoverAfterAKill$")
	node.Env = append(os.Environ(), role+"="+url, role+"_PREFIX="+prefix)
	out, err := node.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "held" {
	}
	if err := node.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = node.Wait() // it was killed

	s := openAt(t, url, prefix, nil)
	var started, takeovers atomic.Int64
	var wait sync.WaitGroup
	begin := time.Now()
	for range 20 {
		wait.Go(func() {
			for time.Since(begin) < 30*time.Second {
				a, err := s.Reserve(t.Context(), heldClaim())
				switch {
				case err != nil:
					t.Error(err)
					return
				case a.Outcome == idempotency.Started:
					started.Add(1)
					if a.Reservation.Takeover && a.Reservation.Token == 2 {
						takeovers.Add(1)
					}
					if err := s.End(t.Context(), a.Reservation, idempotency.Done(idempotency.Result{Class: idempotency.Succeeded})); err != nil {
						t.Error(err)
					}
					return
				case a.Outcome == idempotency.Replayed:
					return
				case a.Outcome != idempotency.InProgress:
					t.Errorf("an attempt is %v", a.Outcome)
					return
				}
			}
			t.Error("nobody takes over")
		})
	}
	wait.Wait()
	if started.Load() != 1 || takeovers.Load() != 1 {
		t.Fatalf("%d attempts started, %d as takeovers, want one", started.Load(), takeovers.Load())
	}
}

func heldClaim() idempotency.Claim {
	c := newClaim(1)
	c.Terms = idempotency.Terms{Lease: 300 * time.Millisecond, Retention: time.Hour, OnUnknown: idempotency.Retry}
	return c
}

// holdForEver claims the key, says so, and never ends.
func holdForEver(t *testing.T, url, prefix string) {
	s := openAt(t, url, prefix, nil)
	a, err := s.Reserve(t.Context(), heldClaim())
	if err != nil || a.Outcome != idempotency.Started {
		t.Fatal(a.Outcome, err)
	}
	fmt.Println("held")
	select {}
}
