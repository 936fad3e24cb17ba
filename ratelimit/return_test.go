package ratelimit_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

var tenPerSecond = ratelimit.Rule{Name: "ret", Quota: 10, Window: time.Second, Burst: 20}

// take is a charge that must pass, and its receipt.
func take(t *testing.T, r ratelimit.Rule, s ratelimit.State, cost, now int64) (ratelimit.State, ratelimit.Receipt) {
	t.Helper()
	s, l := r.Take(s, cost, at(now))
	if !l.Allowed {
		t.Fatalf("cost %d at %d: %+v", cost, now, l)
	}
	return s, s.Receipt(now)
}

func left(r ratelimit.Rule, s ratelimit.State, now int64) int64 {
	_, l := r.Take(s, 0, at(now))
	return l.Remaining
}

func TestReturnAtOnceGivesAll(t *testing.T) {
	s, _ := take(t, tenPerSecond, ratelimit.State{}, 7, epoch)
	before := s
	s, rc := take(t, tenPerSecond, s, 13, epoch)
	s = tenPerSecond.Return(s, 13, rc, at(epoch))
	if s.Arrival != before.Arrival || s.Rem != before.Rem {
		t.Fatalf("got %+v, want the arrival of %+v", s, before)
	}
}

// In a bucket that never ran full, the whole cost comes back however late.
func TestReturnLateFromABusyBucket(t *testing.T) {
	s, _ := take(t, tenPerSecond, ratelimit.State{}, 15, epoch)
	s, rc := take(t, tenPerSecond, s, 5, epoch)
	now := epoch + 1_000_000
	s = tenPerSecond.Return(s, 5, rc, at(now))
	if got := left(tenPerSecond, s, now); got != 15 {
		t.Fatalf("remaining %d, want 15: only the first 15 and a second of refill", got)
	}
}

// A bucket that was full between take and return gets nothing.
func TestReturnAfterFullGivesNothing(t *testing.T) {
	s, rc := take(t, tenPerSecond, ratelimit.State{}, 5, epoch)
	later := epoch + 600_000
	s, _ = take(t, tenPerSecond, s, 20, later)
	if got := tenPerSecond.Return(s, 5, rc, at(later)); !reflect.DeepEqual(got, s) {
		t.Fatalf("%+v became %+v", s, got)
	}
	// Also if the state was forgotten in between.
	s, _ = take(t, tenPerSecond, ratelimit.State{}, 20, later)
	if got := tenPerSecond.Return(s, 5, rc, at(later)); !reflect.DeepEqual(got, s) {
		t.Fatalf("forgotten: %+v became %+v", s, got)
	}
}

// What the bucket would have regained without the charge is not given again.
func TestReturnGivesOnlyWhatStillWeighs(t *testing.T) {
	s, rc := take(t, tenPerSecond, ratelimit.State{}, 10, epoch)
	now := epoch + 500_000 // 5 came back; without the charge nothing was owed
	s, _ = take(t, tenPerSecond, s, 3, now)
	s = tenPerSecond.Return(s, 10, rc, at(now))
	if got := left(tenPerSecond, s, now); got != 17 {
		t.Fatalf("remaining %d, want 17", got)
	}
}

// An earlier return lowers what a later one may give.
func TestReturnsDoNotAddUp(t *testing.T) {
	s, a := take(t, tenPerSecond, ratelimit.State{}, 10, epoch)
	s, b := take(t, tenPerSecond, s, 10, epoch)
	s = tenPerSecond.Return(s, 10, a, at(epoch))
	now := epoch + 800_000
	s, _ = take(t, tenPerSecond, s, 5, now)
	s = tenPerSecond.Return(s, 10, b, at(now))
	if got := left(tenPerSecond, s, now); got != 15 {
		t.Fatalf("remaining %d, want 15", got)
	}
}

func TestReturnInDoubtGivesNothing(t *testing.T) {
	s, rc := take(t, tenPerSecond, ratelimit.State{}, 20, epoch)
	other := tenPerSecond
	other.Quota = 11
	log := ratelimit.Rule{Name: "ret", Algorithm: ratelimit.SlidingWindowLog, Quota: 20, Window: time.Second}
	changed, _ := other.Take(s, 1, at(epoch)) // refused, but restated
	stepped, _ := tenPerSecond.Take(s, 1, at(epoch-1))
	logged, lrc := take(t, log, ratelimit.State{}, 5, epoch)
	small, src := take(t, tenPerSecond, ratelimit.State{}, 5, epoch)
	small, _ = take(t, other, small, 1, epoch)
	small, _ = take(t, tenPerSecond, small, 1, epoch) // both rates admitted
	cases := []struct {
		name string
		rule ratelimit.Rule
		s    ratelimit.State
		cost int64
		rc   ratelimit.Receipt
		now  int64
	}{
		{"nothing there", tenPerSecond, ratelimit.State{}, 20, rc, epoch},
		{"no cost", tenPerSecond, s, 0, rc, epoch},
		{"negative cost", tenPerSecond, s, -5, rc, epoch},
		{"zero receipt", tenPerSecond, s, 20, ratelimit.Receipt{}, epoch},
		{"cost above the capacity", tenPerSecond, s, 21, rc, epoch},
		{"another rate in the rule", other, s, 20, rc, epoch},
		{"another rate in the state", tenPerSecond, changed, 20, rc, epoch},
		{"another rate in both", other, changed, 20, rc, epoch},
		{"another rate in between", tenPerSecond, small, 5, src, epoch},
		{"another algorithm", log, s, 20, rc, epoch},
		{"the clock stepped back, seen by a take", tenPerSecond, stepped, 20, rc, epoch - 1},
		{"the clock stepped back, not seen yet", tenPerSecond, s, 20, rc, epoch - 1},
		{"after the time to full", tenPerSecond, s, 20, rc, epoch + 2_000_000},
		{"log: the clock stepped back", log, logged, 5, lrc, epoch - 1},
		{"log: no such entries", log, logged, 5, ratelimit.Receipt{At: epoch + 1, Since: lrc.Since}, epoch + 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := c.rule.Return(c.s, c.cost, c.rc, at(c.now)); !reflect.DeepEqual(got, c.s) {
				t.Errorf("%+v became %+v", c.s, got)
			}
		})
	}
}

func TestReturnToALog(t *testing.T) {
	log := ratelimit.Rule{Name: "ret", Algorithm: ratelimit.SlidingWindowLog, Quota: 10, Window: time.Second}
	s, a := take(t, log, ratelimit.State{}, 3, epoch)
	s, _ = take(t, log, s, 4, epoch)
	s, c := take(t, log, s, 2, epoch+5)
	before := s
	s = log.Return(s, 3, a, at(epoch+6))
	if got := left(log, s, epoch+6); got != 4 {
		t.Fatalf("remaining %d, want 4", got)
	}
	if got := left(log, before, epoch+6); got != 1 {
		t.Fatalf("Return changed its argument: remaining %d, want 1", got)
	}
	s = log.Return(s, 2, c, at(epoch+1_000_100)) // too late: nobody notices
	if !s.Idle(epoch + 1_000_100) {
		t.Fatalf("%+v is not idle", s)
	}
	// The last entries leave a state of which nothing is known.
	s, a = take(t, log, ratelimit.State{}, 3, epoch)
	s = log.Return(s, 3, a, at(epoch))
	if !s.Idle(epoch) || left(log, s, epoch) != 10 {
		t.Fatalf("%+v is not idle", s)
	}
	s, _ = take(t, log, s, 3, epoch)
	if got := log.Return(s, 3, a, at(epoch)); !reflect.DeepEqual(got, s) {
		t.Fatalf("a receipt of the time before: %+v became %+v", s, got)
	}
}

func TestIdle(t *testing.T) {
	log := ratelimit.Rule{Name: "ret", Algorithm: ratelimit.SlidingWindowLog, Quota: 10, Window: time.Second}
	b, _ := take(t, tenPerSecond, ratelimit.State{}, 1, epoch)
	l, _ := take(t, log, ratelimit.State{}, 1, epoch)
	for _, c := range []struct {
		name string
		s    ratelimit.State
		now  int64
		want bool
	}{
		{"nothing", ratelimit.State{}, 0, true},
		{"bucket, almost full", b, epoch + 99_999, false},
		{"bucket, full in this microsecond", b, epoch + 100_000, false},
		{"bucket, full", b, epoch + 100_001, true},
		{"log, in the window", l, epoch + 999_999, false},
		{"log, out of the window", l, epoch + 1_000_000, true},
	} {
		if got := c.s.Idle(c.now); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}

func TestTakenOnce(t *testing.T) {
	var none *ratelimit.Taken
	if none.Once() {
		t.Error("nil may be returned")
	}
	tk := &ratelimit.Taken{Charges: make([]ratelimit.Charge, 2), Receipts: make([]ratelimit.Receipt, 2)}
	if !tk.Once() || tk.Once() {
		t.Error("not exactly once")
	}
	if tk.Renew(); len(tk.Charges) != 0 || len(tk.Receipts) != 0 || !tk.Once() {
		t.Error("Renew did not renew")
	}
}
