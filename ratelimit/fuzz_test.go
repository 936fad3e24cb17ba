package ratelimit_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// FuzzTake compares two takes with rational numbers, from any valid rule.
func FuzzTake(f *testing.F) {
	f.Add(int64(10), int64(1_000_000), int64(20), int64(20), int64(50_000), int64(1))
	f.Add(int64(1_000_000_000_000), int64(1), int64(0), int64(1), int64(0), int64(1_000_000_000_000))
	f.Add(int64(1), int64(31_622_400_000_000), int64(100), int64(100), int64(1), int64(1))
	f.Add(int64(3), int64(7), int64(5), int64(4), int64(3), int64(2))
	f.Fuzz(func(t *testing.T, quota, window, burst, first, gap, second int64) {
		if window < 0 || window > micros(ratelimit.MaxWindow) || first < 0 || second < 0 || gap < 0 || gap > 4*micros(ratelimit.MaxFull) {
			return
		}
		r := ratelimit.Rule{Name: "fuzz", Quota: quota, Window: time.Duration(window) * time.Microsecond, Burst: burst}
		if r.Validate() != nil {
			return
		}
		var m bucketModel
		var s ratelimit.State
		now := epoch
		for _, cost := range []int64{first, second, 1} {
			want := m.take(r, cost, now)
			next, got := r.Take(s, cost, at(now))
			if got != want {
				t.Fatalf("%+v, cost %d, state %+v:\n got %+v\nwant %+v", r, cost, s, got, want)
			}
			s = next
			checkWait(t, r, s, got, cost, now)
			now += gap
		}
	})
}

// FuzzAnyState feeds states that no rule wrote: no panic, no negative answer
// where a refusal is due, and a cost of 0 changes nothing.
func FuzzAnyState(f *testing.F) {
	f.Add(int64(1), int64(2), int64(3), int64(4), int64(5), int64(6), int64(7), int64(8), uint8(0))
	f.Add(int64(1)<<62, int64(-1), int64(1)<<62, int64(1)<<62, int64(1)<<62, int64(0), int64(0), int64(-1)<<62, uint8(1))
	f.Fuzz(func(t *testing.T, arrival, rem, window, quota, burst, since, returned, now int64, kind uint8) {
		s := ratelimit.State{Arrival: arrival, Rem: rem, Window: window, Quota: quota, Burst: burst, Since: since, Returned: returned}
		if kind&2 != 0 {
			s.Log = []int64{min(arrival, rem), max(arrival, rem)}
		}
		r := ratelimit.Rule{Name: "fuzz", Quota: 5, Window: time.Second}
		if kind&1 != 0 {
			r.Algorithm = ratelimit.SlidingWindowLog
		}
		for _, cost := range []int64{0, 1, 5, 6} {
			next, l := r.Take(s, cost, time.UnixMicro(now))
			if l.Remaining < 0 || l.Remaining > 5 || l.Never != (cost > 5) || cost == 0 && !reflect.DeepEqual(next, s) {
				t.Fatalf("cost %d, state %+v: %+v", cost, s, l)
			}
			r.Return(next, cost, next.Receipt(now), time.UnixMicro(now))
			next.Idle(now)
		}
	})
}
