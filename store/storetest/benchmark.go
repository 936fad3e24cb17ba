package storetest

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// benchCallers are how many goroutines share the work of a benchmark.
var benchCallers = []int{1, 32, 256}

// Benchmark measures a store as every other is measured:
//
//   - pairs: Reserve and End, with a payload of 200 bytes, of a new key each;
//   - replays: Reserve of one of 1000 keys that are done;
//   - takes: Take of one charge, of one of 1000 subjects;
//   - levels: Take of four charges.
//
// One operation of a benchmark is one pair, replay or Take. The number of
// callers is in the benchmark's name. The clock advances by 1 µs with each pair,
// and a record expires 50 ms after its end, so that a bounded store has
// something to evict.
func Benchmark(b *testing.B, h Harness) {
	if h.New != nil {
		for _, n := range benchCallers {
			b.Run(fmt.Sprintf("pairs/callers=%d", n), func(b *testing.B) { benchPairs(b, h, n) })
		}
		for _, n := range benchCallers {
			b.Run(fmt.Sprintf("replays/callers=%d", n), func(b *testing.B) { benchReplays(b, h, n) })
		}
	}
	if h.NewLimits != nil {
		for _, n := range benchCallers {
			b.Run(fmt.Sprintf("takes/callers=%d", n), func(b *testing.B) { benchTakes(b, h, n, 1) })
		}
		for _, n := range benchCallers {
			b.Run(fmt.Sprintf("levels/callers=%d", n), func(b *testing.B) { benchTakes(b, h, n, 4) })
		}
	}
}

// share lets callers do b.N operations together.
func share(b *testing.B, callers int, do func(i int) error) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wait sync.WaitGroup
	for range callers {
		wait.Go(func() {
			for failed.Load() == nil {
				i := next.Add(1) - 1
				if i >= int64(b.N) {
					return
				}
				if err := do(int(i)); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wait.Wait()
	b.StopTimer()
	if err := failed.Load(); err != nil {
		b.Fatal(*err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}

// benchClaim is a claim of a key that is spread as hashed keys are.
func benchClaim(i int) idempotency.Claim {
	c := claim(idempotency.Key{Tenant: "acme"}, idempotency.Hold)
	binary.BigEndian.PutUint64(c.Key.ID[:], uint64(i+1)*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint64(c.Key.ID[8:], uint64(i+1))
	return c
}

func benchPairs(b *testing.B, h Harness, callers int) {
	clock := NewClock()
	s := h.New(b, clock)
	ctx := context.Background()
	result := idempotency.Done(ok(string(allBytes(200))))
	share(b, callers, func(i int) error {
		clock.Advance(time.Microsecond)
		c := benchClaim(i)
		c.Terms.Retention = 50 * time.Millisecond
		a, err := s.Reserve(ctx, c)
		if err := outcome(a, err)(idempotency.Started); err != nil {
			return err
		}
		return s.End(ctx, a.Reservation, result)
	})
}

func benchReplays(b *testing.B, h Harness, callers int) {
	const keys = 1000
	s := h.New(b, NewClock())
	ctx := context.Background()
	result := idempotency.Done(ok(string(allBytes(200))))
	for i := range keys {
		a, err := s.Reserve(ctx, benchClaim(i))
		if err == nil {
			err = s.End(ctx, a.Reservation, result)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	share(b, callers, func(i int) error {
		a, err := s.Reserve(ctx, benchClaim(i*7919%keys))
		return outcome(a, err)(idempotency.Replayed)
	})
}

func benchTakes(b *testing.B, h Harness, callers, levels int) {
	const subjects = 1000
	s := h.NewLimits(b, NewClock())
	ctx := context.Background()
	charges := make([][]ratelimit.Charge, subjects)
	for i := range charges {
		for l := range levels {
			charges[i] = append(charges[i], charge(bucket(fmt.Sprintf("level-%d", l), ratelimit.MaxQuota, time.Hour, 0), fmt.Sprint("tenant ", i), 1))
		}
	}
	share(b, callers, func(i int) error {
		d, err := s.Take(ctx, charges[i*7919%subjects])
		if err == nil && !d.Allowed {
			err = fmt.Errorf("refused: %s", showLevels(d.Levels))
		}
		return err
	})
}
