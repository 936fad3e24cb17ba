package ratelimit_test

import (
	"math/big"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// T5: rate 10/s, burst 20: 20 at once, then ten per second.
func TestBucketAtOnceThenOnAverage(t *testing.T) {
	r := ratelimit.Rule{Name: "t5", Quota: 10, Window: time.Second, Burst: 20}
	var s ratelimit.State
	var l ratelimit.Level
	now := at(epoch)
	for i := range 20 {
		if s, l = r.Take(s, 1, now); !l.Allowed || l.Remaining != int64(19-i) {
			t.Fatalf("take %d at once: %+v", i, l)
		}
	}
	for i := range 50 {
		s, l = r.Take(s, 1, now)
		if l.Allowed || l.RetryAfter != 100*time.Millisecond || l.ResetAfter != 2*time.Second {
			t.Fatalf("empty bucket, round %d: %+v", i, l)
		}
		now = now.Add(l.RetryAfter)
		if s, l = r.Take(s, 1, now); !l.Allowed {
			t.Fatalf("after the wait, round %d: %+v", i, l)
		}
	}
}

// The function does what rational numbers say, for every rule that is valid,
// through changes of the rule (L1, L4, L5, Q2, Q3, Q6, Q7).
func TestBucketIsExact(t *testing.T) {
	seeded(t, 100, func(t *testing.T, rnd *rand.Rand) {
		r := anyBucket(rnd)
		changes := rnd.IntN(2) == 0
		var m bucketModel
		var s ratelimit.State
		now := epoch
		for i := range 200 {
			if changes && rnd.IntN(10) == 0 {
				r = anyNear(rnd, r)
			}
			now += anyStep(rnd, r)
			cost := anyCost(rnd, r)
			before := s
			next, got := r.Take(s, cost, at(now))
			want := m.take(r, cost, now)
			if got != want {
				t.Fatalf("step %d, %+v, cost %d, state %+v:\n got %+v\nwant %+v", i, r, cost, s, got, want)
			}
			if !reflect.DeepEqual(s, before) {
				t.Fatalf("step %d: Take changed its argument", i)
			}
			sameRate := s.Window == 0 || s.Window == micros(r.Window) && s.Quota == r.Quota
			if (cost == 0 || !got.Allowed && sameRate) && !reflect.DeepEqual(next, s) {
				t.Fatalf("step %d: cost %d, allowed %t changed %+v to %+v", i, cost, got.Allowed, s, next)
			}
			if small := now < 1<<53-micros(ratelimit.MaxFull); next.Rem < 0 || next.Rem >= max(1, next.Quota) ||
				small && (next.Arrival >= 1<<53 || next.Since >= 1<<53) {
				t.Fatalf("step %d: state out of bounds: %+v", i, next)
			}
			s = next
			checkWait(t, r, s, got, cost, now)
		}
	})
}

// checkWait is Q6 at one refusal.
func checkWait(t *testing.T, r ratelimit.Rule, s ratelimit.State, l ratelimit.Level, cost, now int64) {
	t.Helper()
	if l.Allowed || l.Never {
		if l.RetryAfter != 0 {
			t.Fatalf("RetryAfter with allowed %t, never %t: %v", l.Allowed, l.Never, l.RetryAfter)
		}
		return
	}
	wait := micros(l.RetryAfter)
	if wait < 1 {
		t.Fatalf("refused with RetryAfter %v", l.RetryAfter)
	}
	if _, after := r.Take(s, cost, at(now+wait)); !after.Allowed {
		t.Fatalf("%+v, cost %d: waiting %v is not enough: %+v", r, cost, l.RetryAfter, after)
	}
	if _, early := r.Take(s, cost, at(now+wait-1)); early.Allowed {
		t.Fatalf("%+v, cost %d: 1 µs less than %v is enough", r, cost, l.RetryAfter)
	}
	if _, full := r.Take(s, r.Capacity(), at(now+micros(l.ResetAfter))); !full.Allowed {
		t.Fatalf("%+v: not full after ResetAfter %v: %+v", r, l.ResetAfter, full)
	}
}

// anyNear is a rule whose sliders differ from those of r, but not so far that a
// debt would not fit (see TestBucketDebtThatDoesNotFit).
func anyNear(rnd *rand.Rand, r ratelimit.Rule) ratelimit.Rule {
	for {
		n := r
		f := []int64{1, 2, 3, 10}[rnd.IntN(4)]
		switch rnd.IntN(6) {
		case 0:
			n.Quota *= f
		case 1:
			n.Quota = max(1, n.Quota/f)
		case 2:
			n.Window *= time.Duration(f)
		case 3:
			n.Window = max(time.Microsecond, (n.Window / time.Duration(f)).Truncate(time.Microsecond))
		case 4:
			n.Burst = n.Capacity() * f
		case 5:
			n.Burst = max(1, n.Capacity()/f)
		}
		room := n
		room.Burst = min(ratelimit.MaxQuota, max(n.Capacity(), r.Capacity())*100)
		if n.Validate() == nil && (room.Validate() == nil || n == r) {
			return n
		}
	}
}

// admission is a charge that passed, at a time of a clock that never steps.
type admission struct {
	real    int64
	integ   *big.Rat // units that the rates made until then
	cost    int64
	rule    ratelimit.Rule
	receipt ratelimit.Receipt
	gone    bool
}

// Q5 for the bucket, Q4 and Q7: in every interval no more is admitted than the
// greatest burst and what the rates make, whatever the clock, the switches and
// the returns do. Returned charges do not count from their return on.
func TestBucketBound(t *testing.T) {
	seeded(t, 150, func(t *testing.T, rnd *rand.Rand) {
		start := ratelimit.Rule{
			Name: "bound", Quota: 1 + rnd.Int64N(20), Window: time.Duration(1+rnd.Int64N(200)) * time.Microsecond,
			Burst: 1 + rnd.Int64N(30),
		}
		steps, switches, returns := rnd.IntN(2) == 0, rnd.IntN(2) == 0, rnd.IntN(2) == 0
		r, s := start, ratelimit.State{}
		paid := r // the rule at whose rate the debt goes down
		most := r.Capacity()
		real, clock := int64(0), epoch
		integ := new(big.Rat)
		var all []admission
		for i := range 300 {
			d := anyStep(rnd, r)
			if rnd.IntN(3) > 0 {
				d = 0
			}
			real += d
			clock += d
			integ = new(big.Rat).Add(integ, new(big.Rat).Mul(rate(paid), rat(d)))
			if steps && rnd.IntN(20) == 0 {
				clock -= rnd.Int64N(500)
			}
			if switches && rnd.IntN(15) == 0 {
				r = anyNear(rnd, r)
				most = max(most, r.Capacity())
			}
			if returns && len(all) > 0 && rnd.IntN(3) == 0 {
				a := &all[len(all)-1-rnd.IntN(min(len(all), 12))]
				if !a.gone {
					s = a.rule.Return(s, a.cost, a.receipt, at(clock))
					a.gone = true
				}
				continue
			}
			cost := anyCost(rnd, r)
			next, l := r.Take(s, cost, at(clock))
			if cost > 0 && !l.Never {
				paid = r
			}
			s = next
			if !l.Allowed || cost == 0 {
				continue
			}
			all = append(all, admission{real, integ, cost, r, s.Receipt(clock), false})
			sum := new(big.Rat)
			for j := len(all) - 1; j >= 0; j-- {
				if all[j].gone {
					continue
				}
				sum.Add(sum, rat(all[j].cost))
				bound := new(big.Rat).Sub(integ, all[j].integ)
				bound.Add(bound, rat(most))
				if sum.Cmp(bound) > 0 {
					t.Fatalf("step %d (clock steps %t, switches %t, returns %t): since real %d, now %d: admitted %s, bound %s",
						i, steps, switches, returns, all[j].real, real, sum.FloatString(2), bound.FloatString(2))
				}
			}
		}
	})
}

// Q4: after a step back of any size the subject waits for one time-to-full at
// most, and a refusal's wait stays true although nothing was taken.
func TestBucketClockStepsBack(t *testing.T) {
	r := ratelimit.Rule{Name: "back", Quota: 10, Window: time.Second}
	for _, step := range []time.Duration{time.Microsecond, time.Second, time.Hour, 50 * 365 * 24 * time.Hour} {
		s, l := r.Take(ratelimit.State{}, 10, at(epoch))
		if !l.Allowed {
			t.Fatalf("first: %+v", l)
		}
		now := at(epoch).Add(-step)
		s, l = r.Take(s, 1, now)
		if l.Allowed || l.Remaining != 0 || l.RetryAfter != 100*time.Millisecond || l.ResetAfter != time.Second {
			t.Fatalf("after a step back of %v: %+v", step, l)
		}
		if _, l = r.Take(s, 1, now.Add(l.RetryAfter)); !l.Allowed {
			t.Fatalf("the wait was not enough after a step back of %v: %+v", step, l)
		}
	}
}

// Q7: raised and lowered rates start from the debt in units, and what passed
// until the first request under the new rule counts at the old rate.
func TestBucketRuleChanges(t *testing.T) {
	second := ratelimit.Rule{Name: "change", Quota: 100, Window: time.Second}
	hour := ratelimit.Rule{Name: "change", Quota: 100, Window: time.Hour}
	small := ratelimit.Rule{Name: "change", Quota: 100, Window: time.Second, Burst: 10}
	cases := []struct {
		name      string
		from, to  ratelimit.Rule
		wait      time.Duration
		remaining int64
		retry     time.Duration // of a cost of all that remains and one more
	}{
		{"raised", hour, second, time.Hour / 2, 50, 10 * time.Millisecond},
		{"lowered", second, hour, time.Second / 4, 25, 36 * time.Second},
		{"burst lowered: all that is owed is paid first", second, small, 0, 0, 910 * time.Millisecond},
		{"burst lowered, part was paid", second, small, 950 * time.Millisecond, 5, 10 * time.Millisecond},
		{"burst raised: nothing is given", small, second, 0, 90, 10 * time.Millisecond},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, _ := c.from.Take(ratelimit.State{}, c.from.Capacity(), at(epoch))
			now := at(epoch).Add(c.wait)
			s, l := c.to.Take(s, c.remaining+1, now)
			if l.Allowed || l.Remaining != c.remaining || l.RetryAfter != c.retry {
				t.Fatalf("got %+v, want remaining %d, retry after %v", l, c.remaining, c.retry)
			}
			checkWait(t, c.to, s, l, c.remaining+1, now.UnixMicro())
		})
	}
}

// Fifty switches back and forth make no tokens.
func TestBucketSwitchingMakesNothing(t *testing.T) {
	for _, pair := range [][2]ratelimit.Rule{
		{{Quota: 10, Window: time.Second, Burst: 100}, {Quota: 1, Window: time.Second, Burst: 100}},
		{{Quota: 10, Window: time.Second, Burst: 100}, {Quota: 10, Window: time.Second, Burst: 1}},
		{{Quota: 3, Window: 7 * time.Second, Burst: 100}, {Quota: 700, Window: time.Minute, Burst: 50}},
	} {
		var s ratelimit.State
		var l ratelimit.Level
		admitted := int64(0)
		now := at(epoch)
		s, _ = pair[0].Take(s, 100, now)
		for i := range 50 {
			for {
				if s, l = pair[i%2].Take(s, 1, now); !l.Allowed {
					break
				}
				admitted++
			}
		}
		if admitted != 0 {
			t.Errorf("%+v: %d units from switches alone", pair, admitted)
		}
	}
}

// A debt that would take longer than MaxFull at the new rate goes on at the old
// one; waits stay exact, and switching back finds the debt.
func TestBucketDebtThatDoesNotFit(t *testing.T) {
	fast := ratelimit.Rule{Name: "fit", Quota: 1_000_000, Window: time.Second}
	slow := ratelimit.Rule{Name: "fit", Quota: 1, Window: 30 * 24 * time.Hour, Burst: 10}
	s, _ := fast.Take(ratelimit.State{}, 1_000_000, at(epoch))
	next, l := slow.Take(s, 1, at(epoch))
	if l.Allowed || l.RetryAfter != 999_991*time.Microsecond || !reflect.DeepEqual(next, s) {
		t.Fatalf("%+v, state %+v, want it as it was", l, next)
	}
	checkWait(t, slow, next, l, 1, epoch)
	checkWait(t, slow, next, l, 1, epoch)
	if _, l = fast.Take(next, 1, at(epoch)); l.Allowed {
		t.Fatalf("switching back made tokens: %+v", l)
	}
	// The clock steps back a day while it waits.
	back := epoch - int64(24*time.Hour/time.Microsecond)
	next, l = slow.Take(next, 1, at(back))
	if l.Allowed || l.RetryAfter != 999_991*time.Microsecond {
		t.Fatalf("after a step back: %+v", l)
	}
	checkWait(t, slow, next, l, 1, back)
}

// A Take repeated at the rate's own pace admits exactly the rate, also where a
// unit takes less than a microsecond.
func TestBucketExtremeRates(t *testing.T) {
	for _, r := range []ratelimit.Rule{
		{Quota: 300_000, Window: time.Second, Burst: 1000},
		{Quota: 1_000_000_000, Window: time.Second, Burst: 2_000_000},
		{Quota: 1_000_000_000_000, Window: time.Second, Burst: 2_000_000_000},
		{Quota: 7, Window: 3 * time.Microsecond, Burst: 8},
		{Quota: 1, Window: 30 * 24 * time.Hour},
	} {
		var s ratelimit.State
		var l ratelimit.Level
		step := micros(r.Window) / r.Quota / 3
		step = max(step, 1)
		took, now := int64(0), epoch
		for range 3000 {
			_, look := r.Take(s, 0, at(now))
			if s, l = r.Take(s, look.Remaining, at(now)); !l.Allowed {
				t.Fatalf("%+v: remaining %d could not be taken: %+v", r, look.Remaining, l)
			}
			took += look.Remaining
			now += step
		}
		made := floor(new(big.Rat).Mul(rate(r), rat(now-step-epoch)))
		if want := r.Capacity() + made; took != want {
			t.Errorf("%+v: took %d, want exactly %d", r, took, want)
		}
	}
}

func TestBucketIncrement(t *testing.T) {
	r := ratelimit.Rule{Quota: 3, Window: time.Second, Burst: 10}
	us, rem, ok := r.Increment(2)
	if us != 666_666 || rem != 2 || !ok {
		t.Errorf("Increment(2) = %d, %d, %t", us, rem, ok)
	}
	for _, cost := range []int64{-1, 11} {
		if _, _, ok := r.Increment(cost); ok {
			t.Errorf("Increment(%d) is ok", cost)
		}
	}
	// A script's additions with carry lead to the same state.
	seeded(t, 50, func(t *testing.T, rnd *rand.Rand) {
		r := anyBucket(rnd)
		var s ratelimit.State
		now := epoch
		for range 50 {
			now += anyStep(rnd, r)
			cost := 1 + rnd.Int64N(r.Capacity())
			us, rem, _ := r.Increment(cost)
			fullUs, fullRem, _ := r.Increment(r.Capacity())
			a, b := max(s.Arrival, now), s.Rem
			if s.Arrival < now {
				b = 0
			}
			a, b = a+us, b+rem
			if b >= r.Quota {
				a, b = a+1, b-r.Quota
			}
			fits := a-now < fullUs || a-now == fullUs && b <= fullRem
			next, l := r.Take(s, cost, at(now))
			if l.Allowed != fits || fits && (next.Arrival != a || next.Rem != b) {
				t.Fatalf("%+v cost %d: script %t %d %d, rule %t %+v", r, cost, fits, a, b, l.Allowed, next)
			}
			s = next
		}
	})
}
