package redisstore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/ratelimit"
)

// BenchmarkGuardWhileRedisIsAway is what a Take takes while Redis is slow by
// 50 ms, half open, hung or refusing: the first calls, which wait for their
// deadline of 20 ms, and those after, of which one a second does.
func BenchmarkGuardWhileRedisIsAway(b *testing.B) {
	for _, fault := range []struct {
		name  string
		begin func(s *redistest.Server, x *redistest.Proxy)
		end   func(s *redistest.Server, x *redistest.Proxy)
	}{
		{"none", func(*redistest.Server, *redistest.Proxy) {}, func(*redistest.Server, *redistest.Proxy) {}},
		{"slow", func(_ *redistest.Server, x *redistest.Proxy) { x.Delay(50 * time.Millisecond) }, func(_ *redistest.Server, x *redistest.Proxy) { x.Delay(0) }},
		{"halfopen", func(_ *redistest.Server, x *redistest.Proxy) { x.Swallow(true) }, func(_ *redistest.Server, x *redistest.Proxy) { x.Swallow(false) }},
		{"hung", func(s *redistest.Server, _ *redistest.Proxy) { s.Pause(b) }, func(s *redistest.Server, _ *redistest.Proxy) { s.Resume(b) }},
		{"refusing", func(_ *redistest.Server, x *redistest.Proxy) { x.Refuse(b, true) }, func(_ *redistest.Server, x *redistest.Proxy) { x.Refuse(b, false) }},
	} {
		b.Run(fault.name, func(b *testing.B) {
			server := redistest.Start(b, "--appendfsync", "no")
			x := redistest.StartProxy(b, server)
			g := newGuard(b, open(b, "redis://"+x.Addr, nil), 20*time.Millisecond)
			charge := []ratelimit.Charge{{Rule: ratelimit.Rule{Name: "local", Quota: 1_000_000_000, Window: time.Second}, Subject: "s", Cost: 1}}
			take := func() time.Duration {
				begin := time.Now()
				if d, err := g.Take(b.Context(), charge); err != nil || !d.Allowed {
					b.Fatal(d, err)
				}
				return time.Since(begin)
			}
			for range 1000 {
				take()
			}
			fault.begin(server, x)
			defer fault.end(server, x)
			var first, rest []time.Duration
			for range 5 {
				first = append(first, take())
			}
			for b.Loop() {
				rest = append(rest, take())
			}
			slices.Sort(rest)
			at := func(part float64) float64 {
				return float64(rest[min(len(rest)-1, int(float64(len(rest))*part))].Nanoseconds()) / 1000
			}
			b.ReportMetric(float64(slices.Max(first).Microseconds())/1000, "first-ms")
			b.ReportMetric(at(.5), "p50-µs")
			b.ReportMetric(at(.99), "p99-µs")
			b.ReportMetric(at(.999), "p99.9-µs")
		})
	}
}
