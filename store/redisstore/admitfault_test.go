package redisstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// left is what a rule of five per hour has left for the subject "s".
func left(t *testing.T, s *redisstore.Store, rule string) int64 {
	t.Helper()
	d, err := s.Take(t.Context(), []ratelimit.Charge{perHour(rule, "s", 0)})
	if err != nil {
		t.Fatal(err)
	}
	return d.Levels[0].Remaining
}

// TestAdmitIsNeverSentTwice: an Admit whose reply is lost is an error; its
// charges were taken once, its claim is held, and Void frees it (R10). Nothing
// of the first attempt comes back later (R12).
func TestAdmitIsNeverSentTwice(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server)
	s := open(t, "redis://"+proxy.Addr, nil)
	requests, executions := []ratelimit.Charge{perHour("r", "s", 1)}, []ratelimit.Charge{perHour("e", "s", 1)}
	if _, a, err := s.Admit(t.Context(), requests, executions, newClaim(1)); err != nil || a.Outcome != idempotency.Started {
		t.Fatal(a.Outcome, err)
	}
	proxy.LoseReply()
	c := newClaim(2)
	_, _, err := s.Admit(t.Context(), requests, executions, c)
	if !errors.Is(err, redisstore.ErrUnavailable) || errors.Is(err, redisstore.ErrNotExecuted) {
		t.Fatalf("Admit whose reply is lost: %v", err)
	}
	if r, e := left(t, s, "r"), left(t, s, "e"); r != 3 || e != 3 {
		t.Fatalf("after two Admits, of which one had no reply, %d and %d are left", r, e)
	}
	if a, err := s.Reserve(t.Context(), newClaim(2)); err != nil || a.Outcome != idempotency.InProgress {
		t.Fatalf("the key of the lost Admit is %v, %v", a.Outcome, err)
	}
	if err := s.Void(t.Context(), c.Key, c.Owner); err != nil {
		t.Fatal(err)
	}
	// The copy that was under way all the time finds that it was given up.
	if _, a, err := s.Admit(t.Context(), nil, nil, c); err != nil || a.Outcome != idempotency.Refused {
		t.Fatalf("a late copy of what was voided is %v, %v", a.Outcome, err)
	}
	if _, a, err := s.Admit(t.Context(), requests, executions, newClaim(2)); err != nil || a.Outcome != idempotency.Started {
		t.Fatalf("after Void the key is %v, %v", a.Outcome, err)
	}
	if r, e := left(t, s, "r"), left(t, s, "e"); r != 2 || e != 2 {
		t.Fatalf("after three Admits %d and %d are left", r, e)
	}
}

// TestGateVoidsALostAdmit: the same from a client's view. The operation does
// not run, the key is free afterwards, and what was charged stays charged.
func TestGateVoidsALostAdmit(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server)
	s := open(t, "redis://"+proxy.Addr, nil)
	g, err := escapement.New(escapement.Options{Records: s, Limits: s})
	if err != nil {
		t.Fatal(err)
	}
	var runs atomic.Int64
	do := func(i int) (escapement.Verdict, error) {
		c := newClaim(i)
		execution := perHour("e", "s", 1)
		execution.Kind = ratelimit.Executions
		return g.Do(t.Context(), escapement.Request{
			Key: c.Key, Policy: escapement.Policy{Terms: c.Terms, Timeout: time.Minute},
			Charges: []ratelimit.Charge{perHour("r", "s", 1), execution},
		}, func(context.Context, *escapement.Run) idempotency.Ending {
			runs.Add(1)
			return idempotency.Done(idempotency.Result{Class: idempotency.Succeeded})
		})
	}
	if v, err := do(1); err != nil || v.Outcome != escapement.Admitted {
		t.Fatal(v.Outcome, err)
	}
	proxy.LoseReply()
	if v, err := do(2); !errors.Is(err, escapement.ErrRecords) || runs.Load() != 1 {
		t.Fatalf("a request whose Admit had no reply is %v, %v, and %d ran", v.Outcome, err, runs.Load())
	}
	if err := g.Shutdown(t.Context()); err != nil { // waits for the Void
		t.Fatal(err)
	}
	if a, err := s.Reserve(t.Context(), newClaim(2)); err != nil || a.Outcome != idempotency.Started || a.Reservation.Takeover {
		t.Fatalf("after the Gate's Void the key is %v, %v", a.Outcome, err)
	}
	if r, e := left(t, s, "r"), left(t, s, "e"); r != 3 || e != 3 {
		t.Fatalf("of both rules %d and %d are left, want 3", r, e)
	}
}

// TestTakeoverOfAnAdmitAfterAKill: a node is killed after its Admit. Of 20
// attempts at another exactly one takes over, and only it and the killed one
// are charged as executions (A1, A2, R6).
func TestTakeoverOfAnAdmitAfterAKill(t *testing.T) {
	const role = "REDISSTORE_TEST_ADMITTER"
	url, many := "redis://"+shared.Addr, func(name string) []ratelimit.Charge {
		return []ratelimit.Charge{{Rule: ratelimit.Rule{Name: name, Quota: 1_000_000, Window: 1000 * time.Hour}, Subject: "s", Cost: 1}}
	}
	if prefix := os.Getenv(role); prefix != "" { // the node that is killed
		s := openAt(t, os.Getenv(role+"_URL"), prefix, nil)
		if _, a, err := s.Admit(t.Context(), many("r"), many("e"), heldClaim()); err != nil || a.Outcome != idempotency.Started {
			t.Fatal(a.Outcome, err)
		}
		fmt.Println("held")
		select {}
	}
	prefix := fmt.Sprintf("test%d:", prefixes.Add(1))
	node := exec.Command(os.Args[0], "-test.run", "^TestTakeoverOfAnAdmitAfterAKill$")
	node.Env = append(os.Environ(), role+"="+prefix, role+"_URL="+url)
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
	var asked, started atomic.Int64
	var wait sync.WaitGroup
	begin := time.Now()
	for range 20 {
		wait.Go(func() {
			for time.Since(begin) < 30*time.Second {
				d, a, err := s.Admit(t.Context(), many("r"), many("e"), heldClaim())
				if err != nil || !d.Allowed {
					t.Error(d.Allowed, err)
					return
				}
				asked.Add(1)
				switch a.Outcome {
				case idempotency.InProgress:
					continue
				case idempotency.Started:
					started.Add(1)
					if !a.Reservation.Takeover || a.Reservation.Token != 2 {
						t.Errorf("%+v is no takeover", a.Reservation)
					}
					if err := s.End(t.Context(), a.Reservation, idempotency.Done(idempotency.Result{Class: idempotency.Succeeded})); err != nil {
						t.Error(err)
					}
				case idempotency.Replayed:
				default:
					t.Errorf("an attempt is %v", a.Outcome)
				}
				return
			}
			t.Error("nobody takes over")
		})
	}
	wait.Wait()
	if started.Load() != 1 {
		t.Fatalf("%d attempts started, want one", started.Load())
	}
	spent := func(name string) int64 {
		c := many(name)
		c[0].Cost = 0
		d, err := s.Take(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return 1_000_000 - d.Levels[0].Remaining
	}
	if r, e := spent("r"), spent("e"); r != 1+asked.Load() || e != 2 {
		t.Fatalf("%d requests and %d executions were charged, want %d and 2", r, e, 1+asked.Load())
	}
}
