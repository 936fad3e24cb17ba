package sqlitestore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/escapement-dev/escapement/idempotency"
)

// BenchmarkPairs measures durable reserve and end pairs per second.
func BenchmarkPairs(b *testing.B) {
	for _, callers := range []int{1, 32, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := open(b, newFile(b), Options{})
			e := done("{\"id\":\"ord_1\",\"count\":1}")
			b.ReportAllocs()
			b.ResetTimer()
			each(b, callers, func(ctx context.Context) error {
				a, err := s.Reserve(ctx, newClaim(newKey()))
				if err != nil {
					return err
				}
				return s.End(ctx, a.Reservation, e)
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
		})
	}
}

// BenchmarkReplay measures claims that are answered by a replay.
func BenchmarkReplay(b *testing.B) {
	for _, callers := range []int{1, 32} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := open(b, newFile(b), Options{})
			c := newClaim(newKey())
			if err := s.End(context.Background(), start(b, s, c), done("{\"id\":\"ord_1\",\"count\":1}")); err != nil {
				b.Fatal(err)
			}
			c.Owner = idempotency.NewOwner()
			b.ReportAllocs()
			b.ResetTimer()
			each(b, callers, func(ctx context.Context) error {
				a, err := s.Reserve(ctx, c)
				if err == nil && a.Outcome != idempotency.Replayed {
					err = fmt.Errorf("outcome %v", a.Outcome)
				}
				return err
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "replays/s")
		})
	}
}

// each runs f b.N times, from so many goroutines.
func each(b *testing.B, callers int, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := f(ctx); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
