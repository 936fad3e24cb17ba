package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// load is traffic: each worker, for ever, reserves and ends a key of its own
// and takes one unit of a limit. Every call has a deadline.
type load struct {
	t    *testing.T
	s    *redisstore.Store
	stop context.CancelFunc
	wait sync.WaitGroup

	deadline time.Duration

	keys   atomic.Int64
	passed atomic.Int64

	mu     sync.Mutex
	faults map[string]int // by text, without addresses
	rounds []chan struct{}
}

const deadline = time.Second

// patience is the deadline of calls of which none may fail: it is there for a
// machine that others load, and no part of what is tested.
const patience = 10 * time.Second

func startLoad(t *testing.T, s *redisstore.Store, workers int, deadline time.Duration) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{t: t, s: s, stop: cancel, deadline: deadline, faults: map[string]int{}}
	for w := range workers {
		l.rounds = append(l.rounds, make(chan struct{}, 1))
		l.wait.Go(func() {
			for ctx.Err() == nil {
				if err := l.round(); err != nil {
					l.note(err)
					continue
				}
				l.passed.Add(1)
				select {
				case l.rounds[w] <- struct{}{}:
				default:
				}
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

func (l *load) end() {
	l.stop()
	l.wait.Wait()
}

func (l *load) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults[err.Error()]++
	if !errors.Is(err, redisstore.ErrUnavailable) && err.Error() != context.DeadlineExceeded.Error() { // that alone: it had passed before the call
		l.t.Errorf("an error that is not of the kind unavailable: %v", err)
	}
}

// round is one operation from end to end.
func (l *load) round() error {
	ctx, cancel := context.WithTimeout(context.Background(), l.deadline)
	defer cancel()
	c := newClaim(0)
	n := l.keys.Add(1)
	for i := range 8 {
		c.Key.ID[8+i] = byte(n >> (8 * i))
	}
	c.Key.Tenant = fmt.Sprint("tenant", n%500) // spread over the slots
	a, err := l.s.Reserve(ctx, c)
	if err != nil {
		return err
	}
	if a.Outcome != idempotency.Started {
		l.t.Errorf("the only claim for its key is %v", a.Outcome)
	}
	rule := ratelimit.Rule{Name: "r", Quota: 1_000_000, Window: time.Second}
	if _, err := l.s.Take(ctx, []ratelimit.Charge{{Rule: rule, Subject: c.Key.Tenant, Cost: 1}}); err != nil {
		return err
	}
	err = l.s.End(ctx, a.Reservation, idempotency.Done(idempotency.Result{Class: idempotency.Succeeded}))
	if errors.Is(err, idempotency.ErrFenced) {
		// A failover lost the claim: replication is asynchronous.
		return nil
	}
	return err
}

// recovered waits until every worker has come through a whole round, and
// returns how long that took.
func (l *load) recovered() time.Duration {
	l.t.Helper()
	begin := time.Now()
	for range 2 { // the first may have ended before
		for w, r := range l.rounds {
			select {
			case <-r:
			case <-time.After(time.Minute):
				l.mu.Lock()
				defer l.mu.Unlock()
				l.t.Fatalf("worker %d does not come through any more; faults: %v", w, l.faults)
			}
		}
	}
	return time.Since(begin)
}

// calm waits until a thousand rounds in a row come through without a fault.
func (l *load) calm() {
	l.t.Helper()
	for begin := time.Now(); ; {
		faults, passed := l.count(), l.passed.Load()
		for l.passed.Load() < passed+1000 && l.count() == faults {
			l.recovered()
		}
		if l.count() == faults {
			return
		}
		if took := time.Since(begin); took > 15*time.Second {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.t.Fatalf("%v after the new master stood there are still faults: %v", took, l.faults)
		}
	}
}

func (l *load) count() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.faults {
		n += x
	}
	return n
}

func TestSentinelFailover(t *testing.T) {
	s := redistest.StartSentinel(t, 1)
	l := startLoad(t, open(t, "redis+sentinel://"+strings.Join(s.Addrs(), ",")+"/"+redistest.MasterName, nil), 8, deadline)
	l.recovered()
	from := s.Replicas[0].Log()
	s.Master.Kill()
	s.Replicas[0].Expect(t, from, "MASTER MODE enabled")
	l.calm()
}

// A master that lives on as a replica answers READONLY until the client has
// followed.
func TestSentinelTurnsTheMasterIntoAReplica(t *testing.T) {
	s := redistest.StartSentinel(t, 1)
	l := startLoad(t, open(t, "redis+sentinel://"+strings.Join(s.Addrs(), ",")+"/"+redistest.MasterName, nil), 8, deadline)
	l.recovered()
	from, old := s.Replicas[0].Log(), s.Master.Log()
	s.Sentinels[0].Cli(t, "sentinel", "failover", redistest.MasterName)
	s.Replicas[0].Expect(t, from, "MASTER MODE enabled")
	s.Master.Expect(t, old, "MASTER <-> REPLICA sync: Finished with success")
	l.calm()
}

func TestClusterFailover(t *testing.T) {
	c := redistest.StartCluster(t, 3, 1)
	l := startLoad(t, open(t, "redis+cluster://"+strings.Join(c.Addrs(), ","), nil), 12, deadline)
	l.recovered()
	logs := make([]int, len(c.Replicas))
	for i, r := range c.Replicas {
		logs[i] = r.Log()
	}
	c.Masters[0].Kill()
	won := make(chan struct{}, len(c.Replicas))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
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
	l.calm()
}

// TestReshardingIsNotNoticed moves slots between masters under load.
func TestReshardingIsNotNoticed(t *testing.T) {
	c := redistest.StartCluster(t, 3, 0)
	l := startLoad(t, open(t, "redis+cluster://"+strings.Join(c.Addrs(), ","), nil), 6, patience)
	l.recovered()
	id := func(i int) string { return c.Masters[i].Cli(t, "cluster", "myid") }
	for i := range 3 {
		out, err := exec.Command("redis-cli", "--cluster", "reshard", c.Masters[0].Addr, "--cluster-from", id(i), "--cluster-to", id((i+1)%3),
			"--cluster-slots", "300", "--cluster-yes").CombinedOutput()
		if err != nil {
			t.Fatalf("reshard: %v: %s", err, out[max(0, len(out)-500):])
		}
		l.recovered()
	}
	if n := l.count(); n > 0 {
		t.Fatalf("resharding was noticed %d times in %d rounds: %v", n, l.passed.Load(), l.faults)
	}
}

// TestScriptFlushUnderLoad: nobody notices that the server forgets its scripts.
func TestScriptFlushUnderLoad(t *testing.T) {
	server := redistest.Start(t, "--appendfsync", "no")
	l := startLoad(t, open(t, "redis://"+server.Addr, nil), 8, patience)
	for range 50 {
		server.Cli(t, "script", "flush")
		l.recovered()
	}
	if n := l.count(); n > 0 {
		t.Fatalf("SCRIPT FLUSH was noticed %d times: %v", n, l.faults)
	}
}
