package ratelimit_test

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

func anyLog(rnd *rand.Rand) ratelimit.Rule {
	return ratelimit.Rule{
		Name: "log", Algorithm: ratelimit.SlidingWindowLog,
		Quota: 1 + rnd.Int64N(12), Window: time.Duration(1+rnd.Int64N(60)) * time.Microsecond,
	}
}

// The log does what a list of all admissions says (L2, L4, L5, Q2, Q3, Q6).
func TestLogIsExact(t *testing.T) {
	seeded(t, 100, func(t *testing.T, rnd *rand.Rand) {
		r := anyLog(rnd)
		var m logModel
		var s ratelimit.State
		now := epoch
		for i := range 200 {
			if rnd.IntN(30) == 0 { // the sliders; a greater quota has its own test
				r.Window = time.Duration(1+rnd.Int64N(60)) * time.Microsecond
				r.Quota = max(1, r.Quota-rnd.Int64N(2))
			}
			now += rnd.Int64N(micros(r.Window)/r.Quota + 2)
			cost := anyCost(rnd, r)
			before := s
			before.Log = slices.Clone(s.Log)
			next, got := r.Take(s, cost, at(now))
			if want := m.take(r, cost, now); got != want {
				t.Fatalf("step %d, %+v, cost %d, state %+v:\n got %+v\nwant %+v", i, r, cost, s, got, want)
			}
			if !reflect.DeepEqual(s, before) {
				t.Fatalf("step %d: Take changed its argument", i)
			}
			same := s.Window == 0 || s.Window == micros(r.Window) && s.Quota == r.Quota
			if (cost == 0 || !got.Allowed && same) && !reflect.DeepEqual(next, s) {
				t.Fatalf("step %d: cost %d, allowed %t changed %+v to %+v", i, cost, got.Allowed, s, next)
			}
			if n := int64(len(next.Log) - next.Head); n > 12 {
				t.Fatalf("step %d: %d entries for a quota of 12 at most", i, n)
			}
			s = next
			checkWait(t, r, s, got, cost, now)
		}
	})
}

// Q5 for the log, Q4: at most the quota in every half-open window of real time,
// whatever the clock and the returns do.
func TestLogBound(t *testing.T) {
	seeded(t, 150, func(t *testing.T, rnd *rand.Rand) {
		r := anyLog(rnd)
		window := micros(r.Window)
		var s ratelimit.State
		var all []admission
		real, clock := int64(0), epoch
		for i := range 300 {
			d := rnd.Int64N(window/r.Quota + 2)
			real += d
			clock += d
			if rnd.IntN(15) == 0 {
				clock -= rnd.Int64N(3 * window)
			}
			if len(all) > 0 && rnd.IntN(4) == 0 {
				a := &all[len(all)-1-rnd.IntN(min(len(all), 12))]
				if !a.gone {
					s = r.Return(s, a.cost, a.receipt, at(clock))
					a.gone = true
				}
				continue
			}
			cost := anyCost(rnd, r)
			var l ratelimit.Level
			if s, l = r.Take(s, cost, at(clock)); !l.Allowed || cost == 0 {
				continue
			}
			all = append(all, admission{real: real, cost: cost, receipt: s.Receipt(clock)})
			sum := int64(0)
			for j := len(all) - 1; j >= 0 && all[j].real > real-window; j-- {
				if !all[j].gone {
					sum += all[j].cost
				}
			}
			if sum > r.Quota {
				t.Fatalf("step %d: %d in the window that ends at %d, quota %d", i, sum, real, r.Quota)
			}
		}
	})
}

func TestLogWindowIsHalfOpen(t *testing.T) {
	r := ratelimit.Rule{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: 2, Window: time.Second}
	s, _ := r.Take(ratelimit.State{}, 1, at(epoch))
	s, l := r.Take(s, 1, at(epoch)) // the same microsecond counts again
	if !l.Allowed || l.Remaining != 0 {
		t.Fatalf("second in one microsecond: %+v", l)
	}
	if s, l = r.Take(s, 1, at(epoch+999_999)); l.Allowed || l.RetryAfter != time.Microsecond {
		t.Fatalf("one microsecond before the end: %+v", l)
	}
	if s, l = r.Take(s, 2, at(epoch+1_000_000)); !l.Allowed {
		t.Fatalf("at the end: %+v", l)
	}
	if len(s.Log)-s.Head != 2 {
		t.Fatalf("entries: %v from %d", s.Log, s.Head)
	}
}

// A flood of refusals leaves no trace: the subject recovers as if it had not been.
func TestLogRefusalsLeaveNoTrace(t *testing.T) {
	r := ratelimit.Rule{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: 3, Window: time.Second}
	s, _ := r.Take(ratelimit.State{}, 3, at(epoch))
	for i := range int64(1000) {
		next, l := r.Take(s, 1, at(epoch+i*999))
		if l.Allowed || !reflect.DeepEqual(next, s) {
			t.Fatalf("refusal %d: %+v", i, l)
		}
	}
	if _, l := r.Take(s, 3, at(epoch+1_000_000)); !l.Allowed {
		t.Fatalf("after the window: %+v", l)
	}
}

func TestLogClockStepsBack(t *testing.T) {
	r := ratelimit.Rule{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: 2, Window: time.Second}
	s, _ := r.Take(ratelimit.State{}, 2, at(epoch))
	now := at(epoch).Add(-365 * 24 * time.Hour)
	s, l := r.Take(s, 1, now)
	if l.Allowed || l.RetryAfter != time.Second {
		t.Fatalf("after the step: %+v", l)
	}
	checkWait(t, r, s, l, 1, now.UnixMicro())
}

// In place, the memory of a log is bounded by its quota and reused.
func TestLogMemory(t *testing.T) {
	r := ratelimit.Rule{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: 100, Window: time.Second}
	var s ratelimit.State
	var l ratelimit.Level
	now := epoch
	take := func() {
		now += 10_000
		if r.TakeAt(&s, 1, now, &l); !l.Allowed {
			t.Fatalf("refused: %+v", l)
		}
	}
	for range 1000 {
		take()
	}
	if n := testing.AllocsPerRun(1000, take); n != 0 {
		t.Errorf("%v allocations per take", n)
	}
	if cap(s.Log) > 200 {
		t.Errorf("capacity %d for a quota of 100", cap(s.Log))
	}
}

// Q7 between algorithms: units stay owed, and no switch makes any.
func TestAlgorithmChanges(t *testing.T) {
	bucket := ratelimit.Rule{Name: "x", Quota: 10, Window: time.Second}
	log := ratelimit.Rule{Name: "x", Algorithm: ratelimit.SlidingWindowLog, Quota: 10, Window: time.Second}
	s, _ := bucket.Take(ratelimit.State{}, 10, at(epoch))
	now := epoch + 450_000 // 4.5 came back, 5.5 are owed
	if _, l := log.Take(s, 0, at(now)); l.Remaining != 4 || l.ResetAfter != time.Second {
		t.Fatalf("look at a bucket's state: %+v", l)
	}
	s, l := log.Take(s, 5, at(now))
	if l.Allowed || l.Remaining != 4 {
		t.Fatalf("bucket to log: %+v", l)
	}
	checkWait(t, log, s, l, 5, now)
	if s, l = bucket.Take(s, 5, at(now)); l.Allowed || l.Remaining != 4 {
		t.Fatalf("log to bucket: %+v", l)
	}
	checkWait(t, bucket, s, l, 5, now)
	if s, l = log.Take(s, 4, at(now)); !l.Allowed || l.Remaining != 0 {
		t.Fatalf("and back: %+v", l)
	}
	if _, l = bucket.Take(s, 1, at(now)); l.Allowed || l.RetryAfter != 100*time.Millisecond {
		t.Fatalf("nothing is left: %+v", l)
	}
	// A log's debt that a bucket would need centuries for becomes its capacity.
	s, _ = ratelimit.Rule{Name: "x", Algorithm: log.Algorithm, Quota: 1000, Window: time.Second}.Take(ratelimit.State{}, 1000, at(epoch))
	slow := ratelimit.Rule{Name: "x", Quota: 1, Window: ratelimit.MaxWindow}
	if s, l = slow.Take(s, 1, at(epoch)); l.Allowed || l.RetryAfter != ratelimit.MaxWindow {
		t.Fatalf("slow bucket: %+v", l)
	}
	checkWait(t, slow, s, l, 1, epoch)
	// A bucket that owes nothing leaves no entries.
	s, _ = bucket.Take(ratelimit.State{}, 1, at(epoch))
	if s, l = log.Take(s, 10, at(epoch+100_000)); !l.Allowed || len(s.Log) != 10 {
		t.Fatalf("full bucket to log: %+v, %+v", l, s)
	}
}
