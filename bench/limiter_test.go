package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	slimiter "github.com/sethvargo/go-limiter"
	smemory "github.com/sethvargo/go-limiter/memorystore"
	"golang.org/x/time/rate"

	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
)

// limiter is one contender. Each caller makes its own take, which returns
// whether one token of key was admitted.
type limiter struct {
	name string
	open func(tb testing.TB, keys int, q quota) (caller func() (take func(key string) bool))
}

// quota is what each key may take.
type quota struct {
	n   int64
	per time.Duration
}

// quotaOf lets nearly all pass. With one key that needs a high rate; with many
// the rate is low, so that no bucket is full again, and could be forgotten,
// before its key comes back.
func quotaOf(keys int) quota {
	if keys == 1 {
		return quota{1_000_000_000, time.Second}
	}
	return quota{1_000_000, 366 * 24 * time.Hour}
}

var limiters = []limiter{
	{"escapement", func(tb testing.TB, keys int, q quota) func() func(string) bool {
		l, err := memstore.NewLimits(memstore.LimitsOptions{MaxSubjects: 4 * keys})
		if err != nil {
			tb.Fatal(err)
		}
		rule := ratelimit.Rule{Name: "bench", Quota: q.n, Window: q.per}
		ctx := context.Background()
		return func() func(string) bool {
			charges := []ratelimit.Charge{{Rule: rule, Cost: 1}}
			var d ratelimit.Decision
			return func(key string) bool {
				charges[0].Subject = key
				if err := l.TakeInto(ctx, charges, &d, nil); err != nil {
					tb.Error(err)
				}
				return d.Allowed
			}
		}
	}},
	{"sethvargo", func(tb testing.TB, _ int, q quota) func() func(string) bool {
		s, err := smemory.New(&smemory.Config{Tokens: uint64(q.n), Interval: q.per, SweepInterval: time.Hour, SweepMinTTL: time.Hour})
		if err != nil {
			tb.Fatal(err)
		}
		var store slimiter.Store = s
		ctx := context.Background()
		tb.Cleanup(func() { _ = store.Close(ctx) })
		take := func(key string) bool {
			_, _, _, ok, err := store.Take(ctx, key)
			if err != nil {
				tb.Error(err)
			}
			return ok
		}
		return func() func(string) bool { return take }
	}},
	{"xtimerate", func(_ testing.TB, _ int, q quota) func() func(string) bool {
		var m sync.Map
		limit := rate.Limit(float64(q.n) / q.per.Seconds())
		take := func(key string) bool {
			v, ok := m.Load(key)
			if !ok {
				v, _ = m.LoadOrStore(key, rate.NewLimiter(limit, int(q.n)))
			}
			return v.(*rate.Limiter).Allow()
		}
		return func() func(string) bool { return take }
	}},
}

func subjects(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("tenant-%09d", i)
	}
	return out
}

// BenchmarkLimiter takes one token: of one key, and of a random one of a
// million; from one goroutine and from all processors.
func BenchmarkLimiter(b *testing.B) {
	for _, n := range []int{1, 1_000_000} {
		keys := subjects(n)
		for _, l := range limiters {
			caller := l.open(b, n, quotaOf(n))
			take := caller()
			for _, k := range keys {
				take(k)
			}
			b.Run(fmt.Sprintf("keys=%d/callers=1/impl=%s", n, l.name), func(b *testing.B) {
				b.ReportAllocs()
				r := rand.New(rand.NewPCG(1, 2))
				for b.Loop() {
					take(keys[r.IntN(n)])
				}
			})
			b.Run(fmt.Sprintf("keys=%d/callers=%d/impl=%s", n, runtime.GOMAXPROCS(0), l.name), func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					take := caller()
					r := rand.New(rand.NewPCG(rand.Uint64(), 2))
					for pb.Next() {
						take(keys[r.IntN(n)])
					}
				})
			})
		}
	}
}

// BenchmarkLimiterMemory reports the heap bytes of a million subjects, per
// subject, without the keys themselves.
func BenchmarkLimiterMemory(b *testing.B) {
	const n = 1_000_000
	keys := subjects(n)
	for _, l := range limiters {
		b.Run("impl="+l.name, func(b *testing.B) {
			for b.Loop() {
				before := heap()
				take := l.open(b, n, quotaOf(n))()
				for _, k := range keys {
					take(k)
				}
				b.ReportMetric(float64(heap()-before)/n, "B/key")
				runtime.KeepAlive(take)
			}
		})
	}
	runtime.KeepAlive(keys)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
