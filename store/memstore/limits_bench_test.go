package memstore_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
)

func benchStore(b *testing.B, max int) *memstore.Limits {
	b.Helper()
	m, err := memstore.NewLimits(memstore.LimitsOptions{MaxSubjects: max})
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// roomy admits everything that a benchmark asks.
var roomy = ratelimit.Rule{Name: "tenant", Quota: 1_000_000_000, Window: time.Second}

func subjects(n int) []string {
	s := make([]string, n)
	for i := range s {
		s[i] = fmt.Sprintf("tenant-%08d", i)
	}
	return s
}

// slow keeps every bucket alive for the length of a benchmark.
var slow = ratelimit.Rule{Name: "tenant", Quota: 1440, Window: 24 * time.Hour, Burst: 1_000_000}

// decision is a Decision with memory for what was taken.
type decision struct {
	ratelimit.Decision
	taken ratelimit.Taken
}

func mustTake(b *testing.B, m *memstore.Limits, charges []ratelimit.Charge, d *decision, allowed bool) {
	if err := m.TakeInto(context.Background(), charges, &d.Decision, &d.taken); err != nil || d.Allowed != allowed {
		b.Helper()
		b.Fatalf("allowed %t, %v", d.Allowed, err)
	}
}

func BenchmarkLimits(b *testing.B) {
	b.Run("one key", func(b *testing.B) {
		m := benchStore(b, 0)
		var d decision
		c := []ratelimit.Charge{{Rule: roomy, Subject: "tenant-1", Cost: 1}}
		b.ReportAllocs()
		for b.Loop() {
			mustTake(b, m, c, &d, true)
		}
	})
	b.Run("one key, Take", func(b *testing.B) {
		m := benchStore(b, 0)
		c := []ratelimit.Charge{{Rule: roomy, Subject: "tenant-1", Cost: 1}}
		b.ReportAllocs()
		for b.Loop() {
			if d, err := m.Take(context.Background(), c); err != nil || !d.Allowed {
				b.Fatal(d, err)
			}
		}
	})
	b.Run("one key, refused", func(b *testing.B) {
		m := benchStore(b, 0)
		var d decision
		c := []ratelimit.Charge{{Rule: ratelimit.Rule{Name: "tenant", Quota: 1, Window: time.Hour}, Subject: "tenant-1", Cost: 1}}
		mustTake(b, m, c, &d, true)
		b.ReportAllocs()
		for b.Loop() {
			mustTake(b, m, c, &d, false)
		}
	})
	b.Run("one key, log", func(b *testing.B) {
		m := benchStore(b, 0)
		var d decision
		c := []ratelimit.Charge{{Rule: ratelimit.Rule{Name: "tenant", Algorithm: ratelimit.SlidingWindowLog, Quota: 10_000, Window: time.Microsecond}, Subject: "tenant-1", Cost: 1}}
		b.ReportAllocs()
		for b.Loop() {
			mustTake(b, m, c, &d, true)
		}
	})
	b.Run("four levels", func(b *testing.B) {
		m := benchStore(b, 0)
		var d decision
		c := []ratelimit.Charge{
			{Rule: roomy, Subject: "tenant-1", Cost: 1},
			{Rule: roomy, Subject: "tenant-2", Cost: 1},
			{Rule: roomy, Subject: "tenant-3", Cost: 1},
			{Rule: roomy, Subject: "tenant-4", Cost: 1},
		}
		b.ReportAllocs()
		for b.Loop() {
			mustTake(b, m, c, &d, true)
		}
	})
	b.Run("parallel, one key", func(b *testing.B) {
		m := benchStore(b, 0)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			var d decision
			c := []ratelimit.Charge{{Rule: roomy, Subject: "tenant-1", Cost: 1}}
			for pb.Next() {
				mustTake(b, m, c, &d, true)
			}
		})
	})
	million := benchStore(b, 0)
	names := subjects(1_000_000)
	var d decision
	for _, n := range names {
		mustTake(b, million, []ratelimit.Charge{{Rule: slow, Subject: n, Cost: 1}}, &d, true)
	}
	// Steps by a number without common factors visit all, far from each other.
	const step = 611_953
	b.Run("a million keys", func(b *testing.B) {
		c := []ratelimit.Charge{{Rule: slow, Cost: 1}}
		i := 0
		b.ReportAllocs()
		for b.Loop() {
			i = (i + step) % len(names)
			c[0].Subject = names[i]
			mustTake(b, million, c, &d, true)
		}
	})
	b.Run("parallel, a million keys", func(b *testing.B) {
		var from atomic.Int64
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			var d decision
			c := []ratelimit.Charge{{Rule: slow, Cost: 1}}
			i := int(from.Add(499_979))
			for pb.Next() {
				i = (i + step) % len(names)
				c[0].Subject = names[i]
				mustTake(b, million, c, &d, true)
			}
		})
	})
	b.Run("a million keys, a new one refused", func(b *testing.B) {
		c := []ratelimit.Charge{{Rule: slow, Subject: "new", Cost: 1}}
		b.ReportAllocs()
		for b.Loop() {
			if err := million.TakeInto(context.Background(), c, &d.Decision, &d.taken); err != memstore.ErrFull {
				b.Fatal(err)
			}
		}
	})
	b.Run("new keys", func(b *testing.B) {
		m := benchStore(b, 0)
		short := ratelimit.Rule{Name: "tenant", Quota: 10, Window: time.Millisecond}
		c := []ratelimit.Charge{{Rule: short, Cost: 1}}
		i := 0
		b.ReportAllocs()
		for b.Loop() {
			i = (i + 1) % len(names)
			c[0].Subject = names[i]
			mustTake(b, m, c, &d, true)
		}
	})
}
