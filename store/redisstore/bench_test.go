package redisstore_test

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
	"github.com/escapement-dev/escapement/store/storetest"
)

// BenchmarkContract is the benchmark that all stores share, on a server that
// writes its append-only file and leaves the rest to the system.
func BenchmarkContract(b *testing.B) {
	storetest.Benchmark(b, harness("redis://"+shared.Addr, func(t testing.TB) { shared.Cli(t, "flushall") }))
}

// BenchmarkScripts measures what a script costs the server: server-ns/op is
// the time that Redis spends in it. 64 callers keep it busy.
func BenchmarkScripts(b *testing.B) {
	server := redistest.Start(b, "--appendonly", "no")
	opt, err := redisstore.ParseURL("redis://" + server.Addr)
	if err != nil {
		b.Fatal(err)
	}
	client, err := rueidis.NewClient(opt)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	s, err := redisstore.New(client, redisstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	roomy := func(name string) ratelimit.Rule {
		return ratelimit.Rule{Name: name, Quota: 1_000_000_000, Window: time.Second}
	}
	take := func(b *testing.B, want bool, charges ...ratelimit.Charge) {
		if d, err := s.Take(ctx, charges); err != nil || d.Allowed != want {
			b.Errorf("allowed is %v, %v, want %v", d.Allowed, err, want)
		}
	}
	subject := func(i int) string { return "subject-" + strconv.Itoa(i%10_000) }
	levels := func(i int) []ratelimit.Charge {
		return []ratelimit.Charge{
			{Rule: roomy("a"), Subject: subject(i), Cost: 1},
			{Rule: roomy("b"), Subject: subject(i), Cost: 1},
			{Rule: roomy("c"), Subject: "all", Cost: 1},
			{Rule: roomy("d"), Subject: subject(i), Cost: 1},
		}
	}
	claimOf := func(i int) idempotency.Claim {
		c := newClaim(i)
		c.Key.ID[3] = byte(i >> 16)
		return c
	}
	done := idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: make([]byte, 200)})
	run := func(name string, prepare func(b *testing.B), do func(b *testing.B, i int)) {
		b.Run(name, func(b *testing.B) {
			server.Cli(b, "flushall")
			if prepare != nil {
				prepare(b)
			}
			before := scriptTime(b, server)
			each(b, 64, do)
			b.ReportMetric(float64(scriptTime(b, server)-before)*1000/float64(b.N), "server-ns/op")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
		})
	}
	empty := rueidis.NewLuaScript("return 1")
	run("empty", nil, func(b *testing.B, _ int) {
		if err := empty.Exec(ctx, client, []string{"k"}, nil).Error(); err != nil {
			b.Error(err)
		}
	})
	run("bucket", nil, func(b *testing.B, i int) { take(b, true, levels(i)[:1]...) })
	run("bucket, hot", nil, func(b *testing.B, _ int) { take(b, true, levels(0)[:1]...) })
	tight := perHour("tight", "s", 5)
	run("bucket, refused", func(b *testing.B) { take(b, true, tight) }, func(b *testing.B, _ int) { take(b, false, perHour("tight", "s", 1)) })
	run("four buckets", nil, func(b *testing.B, i int) { take(b, true, levels(i)...) })
	for _, quota := range []int64{100, ratelimit.MaxLogQuota} {
		log := ratelimit.Rule{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: 100 * time.Millisecond}
		run(fmt.Sprintf("log of %d", quota), nil, func(b *testing.B, _ int) {
			if _, err := s.Take(ctx, []ratelimit.Charge{{Rule: log, Subject: "s", Cost: 1}}); err != nil {
				b.Error(err)
			}
		})
	}
	full := ratelimit.Rule{Name: "full", Algorithm: ratelimit.SlidingWindowLog, Quota: ratelimit.MaxLogQuota, Window: time.Hour}
	run("log of 10000, refused", func(b *testing.B) {
		for range 10 {
			take(b, true, ratelimit.Charge{Rule: full, Subject: "s", Cost: 999})
		}
	}, func(b *testing.B, _ int) {
		take(b, false, ratelimit.Charge{Rule: full, Subject: "s", Cost: 11})
	})
	run("reserve", nil, func(b *testing.B, i int) { reserve(b, s, claimOf(i), idempotency.Started) })
	held := func(b *testing.B) []idempotency.Reservation {
		list := make([]idempotency.Reservation, b.N)
		each(b, 64, func(b *testing.B, i int) { list[i] = reserve(b, s, claimOf(i), idempotency.Started) })
		return list
	}
	var list []idempotency.Reservation
	run("end", func(b *testing.B) { list = held(b) }, func(b *testing.B, i int) {
		if err := s.End(ctx, list[i], done); err != nil {
			b.Error(err)
		}
	})
	run("extend", func(b *testing.B) { list = held(b) }, func(b *testing.B, i int) {
		if _, err := s.Extend(ctx, list[i], time.Hour); err != nil {
			b.Error(err)
		}
	})
	for _, size := range []int{200, 16 << 10, 64 << 10, 1 << 20} {
		run(fmt.Sprintf("replay of %d bytes", size), func(b *testing.B) {
			r := reserve(b, s, claimOf(0), idempotency.Started)
			res := done
			res.Result.Payload = make([]byte, size)
			if err := s.End(ctx, r, res); err != nil {
				b.Error(err)
			}
		}, func(b *testing.B, _ int) { reserve(b, s, claimOf(0), idempotency.Replayed) })
	}
	run("admit, four levels", nil, func(b *testing.B, i int) {
		l := levels(i)
		if d, a, err := s.Admit(ctx, l[:2], l[2:], claimOf(i)); err != nil || !d.Allowed || a.Outcome != idempotency.Started {
			b.Error(d, a, err)
		}
	})
}

func reserve(b *testing.B, s *redisstore.Store, c idempotency.Claim, want idempotency.Outcome) idempotency.Reservation {
	a, err := s.Reserve(b.Context(), c)
	if err != nil || a.Outcome != want {
		b.Errorf("the outcome is %v, %v, want %v", a.Outcome, err, want)
	}
	return a.Reservation
}

// each calls do for every i below b.N, from so many goroutines.
func each(b *testing.B, callers int, do func(b *testing.B, i int)) {
	b.ResetTimer()
	b.StartTimer()
	var wait sync.WaitGroup
	for c := range callers {
		wait.Go(func() {
			for i := c; i < b.N; i += callers {
				do(b, i)
			}
		})
	}
	wait.Wait()
	b.StopTimer()
}

var scriptStats = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=(\d+),`)

// scriptCalls is how many scripts the shared server has run.
func scriptCalls(t *testing.T) int {
	t.Helper()
	m := scriptStats.FindStringSubmatch(shared.Cli(t, "info", "commandstats"))
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// scriptTime is how many microseconds the server has spent in scripts.
func scriptTime(b *testing.B, server *redistest.Server) int64 {
	_, port, _ := strings.Cut(server.Addr, ":")
	out, err := exec.Command("redis-cli", "-p", port, "info", "commandstats").Output()
	if err != nil {
		b.Fatal(err)
	}
	m := scriptStats.FindSubmatch(out)
	if m == nil {
		return 0
	}
	n, err := strconv.ParseInt(string(m[2]), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}
