package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/redis/rueidis"

	"github.com/escapement-dev/escapement/store/redisstore"
)

// redisServer is a redis-server of this process's own, which keeps everything
// in memory and nothing on disk, so that what is measured is the work of the
// scripts and of the clients.
type redisServer struct {
	addr  string
	admin rueidis.Client // beside the clients that are measured
}

// startRedis starts a server, which is killed by its process's id at the end.
func startRedis(tb testing.TB) *redisServer {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		tb.Fatal(err)
	}
	_, port, _ := strings.Cut(addr, ":")
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", tb.TempDir(),
		"--save", "", "--appendonly", "no", "--logfile", "", "--latency-tracking-info-percentiles", "50 99 99.9")
	cmd.SysProcAttr = dieWithParent()
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatalf("%v (is the Debian package redis-server installed?)", err)
	}
	ready, gone := make(chan bool, 1), make(chan struct{})
	go func() {
		defer close(gone)
		said := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !said && strings.Contains(lines.Text(), "Ready to accept connections") {
				said = true
				ready <- true
			}
		}
		if !said {
			ready <- false
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait() // killed, below
	}()
	tb.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended by itself
		<-gone
	})
	if !<-ready {
		tb.Fatal("redis-server ended before it was ready")
	}
	s := &redisServer{addr: addr}
	s.admin = s.rueidis(tb)
	return s
}

// rueidis is a client with the options that redisstore has from a URL.
func (s *redisServer) rueidis(tb testing.TB) rueidis.Client {
	tb.Helper()
	o, err := redisstore.ParseURL("redis://" + s.addr)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := rueidis.NewClient(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// goredis is the peers' client. It waits for a connection of the pool as long
// as it takes, and does nothing beside its work.
func (s *redisServer) goredis(tb testing.TB, pool int) *redis.Client {
	tb.Helper()
	c := redis.NewClient(&redis.Options{
		Addr: s.addr, PoolSize: pool, MinIdleConns: pool, PoolTimeout: time.Minute, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// store is a redisstore with a client of its own.
func (s *redisServer) store(tb testing.TB) *redisstore.Store {
	tb.Helper()
	st, err := redisstore.New(s.rueidis(tb), redisstore.Options{Prefix: "bench:"})
	if err != nil {
		tb.Fatal(err)
	}
	return st
}

func (s *redisServer) flush(tb testing.TB) {
	tb.Helper()
	if err := s.admin.Do(context.Background(), s.admin.B().Flushall().Build()).Error(); err != nil {
		tb.Fatal(err)
	}
}

// load makes the server know a script and returns its name.
func load(tb testing.TB, c rueidis.Client, text string) string {
	tb.Helper()
	sha, err := c.Do(context.Background(), c.B().ScriptLoad().Script(text).Build()).ToString()
	if err != nil {
		tb.Fatal(err)
	}
	return sha
}

func (s *redisServer) info(tb testing.TB, section string) string {
	tb.Helper()
	text, err := s.admin.Do(context.Background(), s.admin.B().Info().Section(section).Build()).ToString()
	if err != nil {
		tb.Fatal(err)
	}
	return text
}

// use is what a server has done since it was started.
type use struct {
	scripts, scriptTime float64 // EVAL and EVALSHA: calls, and µs in them
	cpu                 float64 // seconds of the main thread, in and around commands
}

var (
	scriptStat = regexp.MustCompile(`(?m)^cmdstat_eval(?:sha)?:calls=(\d+),usec=(\d+),`)
	cpuStat    = regexp.MustCompile(`(?m)^used_cpu_(?:user|sys)_main_thread:([0-9.]+)`)
	slowStat   = regexp.MustCompile(`(?m)^latency_percentiles_usec_evalsha:p50=([0-9.]+),p99=([0-9.]+),p99.9=([0-9.]+)`)
)

func (s *redisServer) used(tb testing.TB) (u use) {
	tb.Helper()
	num := func(text string) float64 {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			tb.Fatal(err)
		}
		return f
	}
	for _, m := range scriptStat.FindAllStringSubmatch(s.info(tb, "commandstats"), -1) {
		u.scripts += num(m[1])
		u.scriptTime += num(m[2])
	}
	for _, m := range cpuStat.FindAllStringSubmatch(s.info(tb, "cpu"), -1) {
		u.cpu += num(m[1])
	}
	return u
}

// measure runs b.N calls by n callers and reports the rate, and what a call
// costs: of the server the time inside of scripts (by the clock), and the
// processor's of the whole thread, which also reads, parses and answers; and
// the processor's of this process.
func (s *redisServer) measure(b *testing.B, n int, caller func() (do func(i int64) error)) {
	b.Helper()
	b.ReportAllocs()
	before, mine := s.used(b), processorTime()
	rate := calls(b, n, caller)
	mine = processorTime() - mine
	after := s.used(b)
	b.ReportMetric(rate, "op/s")
	b.ReportMetric((after.scriptTime-before.scriptTime)*1000/float64(b.N), "script-ns/op")
	b.ReportMetric((after.cpu-before.cpu)*1e9/float64(b.N), "redis-ns/op")
	b.ReportMetric(float64(mine.Nanoseconds())/float64(b.N), "client-ns/op")
}

// calls runs b.N calls by n callers at once, each with a function of its own,
// and returns how many there were per second. Failed calls count, and are
// reported as a metric where there are any.
func calls(b *testing.B, n int, caller func() (do func(i int64) error)) float64 {
	var next, failed atomic.Int64
	var first atomic.Pointer[error]
	ready, done := make(chan struct{}), make(chan struct{})
	for range n {
		do := caller()
		go func() {
			<-ready
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if err := do(i); err != nil {
					failed.Add(1)
					keep := err // only this one escapes to the heap
					first.CompareAndSwap(nil, &keep)
				}
			}
			done <- struct{}{}
		}()
	}
	b.ResetTimer()
	b.StartTimer() // a preparation may have stopped it
	start := time.Now()
	close(ready)
	for range n {
		<-done
	}
	took := time.Since(start)
	b.StopTimer()
	if f := failed.Load(); f > 0 {
		b.ReportMetric(100*float64(f)/float64(b.N), "failed-%")
		fmt.Fprintf(os.Stderr, "%s: %d of %d failed, first: %v\n", b.Name(), f, b.N, *first.Load())
	}
	return float64(b.N) / took.Seconds()
}
