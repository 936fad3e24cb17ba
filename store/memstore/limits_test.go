package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
)

// clock is a time that only the test moves.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

func newLimits(t testing.TB, max int) (*memstore.Limits, *clock) {
	t.Helper()
	c := &clock{time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)}
	m, err := memstore.NewLimits(memstore.LimitsOptions{Now: c.Now, MaxSubjects: max})
	if err != nil {
		t.Fatal(err)
	}
	return m, c
}

func take(t testing.TB, m *memstore.Limits, charges ...ratelimit.Charge) ratelimit.Decision {
	t.Helper()
	d, err := m.Take(context.Background(), charges)
	if err != nil {
		t.Fatalf("Take(%+v): %v", charges, err)
	}
	return d
}

func giveBack(t testing.TB, m *memstore.Limits, taken *ratelimit.Taken) {
	t.Helper()
	if err := m.Return(context.Background(), taken); err != nil {
		t.Fatalf("Return: %v", err)
	}
}

var (
	tenant = ratelimit.Rule{Name: "tenant", Quota: 10, Window: time.Second, Burst: 20}
	global = ratelimit.Rule{Name: "global", Quota: 5, Window: time.Second}
	export = ratelimit.Rule{Name: "export", Algorithm: ratelimit.SlidingWindowLog, Quota: 3, Window: time.Minute}
)

func charge(r ratelimit.Rule, subject string, cost int64) ratelimit.Charge {
	return ratelimit.Charge{Rule: r, Subject: subject, Cost: cost}
}

// remaining is what a look says, without any change.
func remaining(t testing.TB, m *memstore.Limits, r ratelimit.Rule, subject string) int64 {
	t.Helper()
	return take(t, m, charge(r, subject, 0)).Levels[0].Remaining
}

func TestLimitsOptions(t *testing.T) {
	for _, n := range []int{-1, 1<<25 + 1} {
		_, err := memstore.NewLimits(memstore.LimitsOptions{MaxSubjects: n})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint(n)) {
			t.Errorf("MaxSubjects %d: %v", n, err)
		}
	}
	// The clock by default: two seconds of tokens are not there at once.
	m, err := memstore.NewLimits(memstore.LimitsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	hour := ratelimit.Rule{Name: "hour", Quota: 1, Window: time.Hour}
	if d := take(t, m, charge(hour, "", 1)); !d.Allowed {
		t.Fatalf("first: %+v", d)
	}
	d := take(t, m, charge(hour, "", 1))
	wait, _ := d.RetryAfter()
	if spent := time.Since(before); d.Allowed || wait > time.Hour || wait < time.Hour-spent-time.Microsecond {
		t.Fatalf("second, %v later: %+v", spent, d)
	}
}

// T5 through the store.
func TestLimitsAtOnceThenOnAverage(t *testing.T) {
	m, c := newLimits(t, 0)
	for i := range 20 {
		if d := take(t, m, charge(tenant, "a", 1)); !d.Allowed || d.Levels[0].Remaining != int64(19-i) {
			t.Fatalf("take %d: %+v", i, d)
		}
	}
	for i := range 30 {
		d := take(t, m, charge(tenant, "a", 1))
		wait, possible := d.RetryAfter()
		if d.Allowed || !possible || wait != 100*time.Millisecond || d.Taken != nil {
			t.Fatalf("round %d: %+v", i, d)
		}
		c.advance(wait - time.Microsecond)
		if d := take(t, m, charge(tenant, "a", 1)); d.Allowed {
			t.Fatalf("round %d: a microsecond early: %+v", i, d)
		}
		c.advance(time.Microsecond)
		if d := take(t, m, charge(tenant, "a", 1)); !d.Allowed {
			t.Fatalf("round %d: after the wait: %+v", i, d)
		}
	}
	if d := take(t, m, charge(tenant, "b", 20)); !d.Allowed {
		t.Fatalf("another subject: %+v", d)
	}
}

// Q1, Q2, Q3, and the levels of a decision.
func TestLimitsAllOrNone(t *testing.T) {
	m, _ := newLimits(t, 0)
	take(t, m, charge(global, "", 4))
	d := take(t, m, charge(tenant, "a", 2), charge(export, "a", 1), charge(global, "", 3))
	if d.Allowed || d.Taken != nil || len(d.Levels) != 3 {
		t.Fatalf("%+v", d)
	}
	want := []ratelimit.Level{
		{Rule: tenant, Subject: "a", Allowed: true, Remaining: 20},
		{Rule: export, Subject: "a", Allowed: true, Remaining: 3},
		{Rule: global, Remaining: 1, RetryAfter: 400 * time.Millisecond, ResetAfter: 800 * time.Millisecond},
	}
	if !reflect.DeepEqual(d.Levels, want) {
		t.Fatalf("levels\n got %+v\nwant %+v", d.Levels, want)
	}
	if n := m.Subjects(); n != 1 {
		t.Fatalf("%d subjects after a refusal, want the one that was charged before", n)
	}
	d = take(t, m, charge(tenant, "a", 2), charge(export, "a", 1), charge(global, "", 1), charge(global, "other", 0))
	want = []ratelimit.Level{
		{Rule: tenant, Subject: "a", Allowed: true, Remaining: 18, ResetAfter: 200 * time.Millisecond},
		{Rule: export, Subject: "a", Allowed: true, Remaining: 2, ResetAfter: time.Minute},
		{Rule: global, Allowed: true, Remaining: 0, ResetAfter: time.Second},
		{Rule: global, Subject: "other", Allowed: true, Remaining: 5},
	}
	if !d.Allowed || !reflect.DeepEqual(d.Levels, want) {
		t.Fatalf("levels\n got %+v\nwant %+v", d.Levels, want)
	}
	if n := m.Subjects(); n != 3 {
		t.Fatalf("%d subjects, want 3: a look makes none", n)
	}
	if d := take(t, m); !d.Allowed || len(d.Levels) != 0 {
		t.Fatalf("no charges: %+v", d)
	}
}

// Two charges of one call on one bucket add up.
func TestLimitsChargesOnOneBucket(t *testing.T) {
	for _, r := range []ratelimit.Rule{
		{Name: "r", Quota: 10, Window: time.Second},
		{Name: "r", Algorithm: ratelimit.SlidingWindowLog, Quota: 10, Window: time.Second},
	} {
		t.Run(r.Algorithm.String(), func(t *testing.T) {
			m, c := newLimits(t, 0)
			d := take(t, m, charge(r, "a", 6), charge(r, "a", 5))
			if d.Allowed || !d.Levels[0].Allowed || d.Levels[0].Remaining != 10 || !d.Levels[1].Never || m.Subjects() != 0 {
				t.Fatalf("6 + 5 of 10: %+v", d)
			}
			d = take(t, m, charge(r, "a", 3), charge(r, "b", 1), charge(r, "a", 4), charge(r, "a", 0))
			if !d.Allowed || d.Levels[0].Remaining != 3 || d.Levels[2].Remaining != 3 || d.Levels[3].Remaining != 3 || d.Levels[1].Remaining != 9 {
				t.Fatalf("3 + 4 of 10: %+v", d)
			}
			if m.Subjects() != 2 {
				t.Fatalf("%d subjects, want 2", m.Subjects())
			}
			refused := take(t, m, charge(r, "a", 2), charge(r, "a", 2))
			wait, possible := refused.RetryAfter()
			if refused.Allowed || !refused.Levels[0].Allowed || !possible {
				t.Fatalf("2 + 2 of 3: %+v", refused)
			}
			c.advance(wait - time.Microsecond)
			if again := take(t, m, charge(r, "a", 2), charge(r, "a", 2)); again.Allowed {
				t.Fatalf("a microsecond early: %+v", again)
			}
			c.advance(time.Microsecond)
			again := take(t, m, charge(r, "a", 2), charge(r, "a", 2))
			if !again.Allowed {
				t.Fatalf("after the wait of %v: %+v", wait, again)
			}
			before := remaining(t, m, r, "a")
			giveBack(t, m, again.Taken)
			if got := remaining(t, m, r, "a"); got != before+4 {
				t.Fatalf("remaining %d after the return, want %d", got, before+4)
			}
		})
	}
	m, _ := newLimits(t, 0)
	other := global
	other.Quota = 6
	if _, err := m.Take(context.Background(), []ratelimit.Charge{charge(global, "a", 1), charge(other, "a", 1)}); err == nil || !strings.Contains(err.Error(), `"global" with different numbers`) {
		t.Fatalf("one name with two meanings: %v", err)
	}
	d := take(t, m, charge(tenant, "a", math.MaxInt64), charge(tenant, "a", math.MaxInt64))
	if d.Allowed || !d.Levels[1].Never {
		t.Fatalf("a sum that overflows: %+v", d)
	}
}

func TestLimitsErrors(t *testing.T) {
	m, _ := newLimits(t, 0)
	take(t, m, charge(tenant, "a", 1))
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	bad := tenant
	bad.Quota = 0
	odd := tenant
	odd.Window += 1
	neg := tenant
	neg.Burst = -1
	burstLog := export
	burstLog.Burst = 3
	take(t, m, charge(export, "a", 1))
	cases := []struct {
		name    string
		ctx     context.Context
		charges []ratelimit.Charge
		want    string
	}{
		{"context", gone, []ratelimit.Charge{charge(tenant, "a", 1)}, context.Canceled.Error()},
		{"quota", context.Background(), []ratelimit.Charge{charge(bad, "a", 1)}, "quota 0"},
		{"window", context.Background(), []ratelimit.Charge{charge(odd, "a", 1)}, "whole microseconds"},
		{"burst", context.Background(), []ratelimit.Charge{charge(neg, "a", 1)}, "burst -1"},
		{"burst of a log", context.Background(), []ratelimit.Charge{charge(burstLog, "a", 1)}, "burst 3"},
		{"cost", context.Background(), []ratelimit.Charge{charge(tenant, "a", -1)}, "cost -1"},
		{"kind", context.Background(), []ratelimit.Charge{{Rule: tenant, Subject: "a", Cost: 1, Kind: 9}}, "kind 9"},
		{"subject", context.Background(), []ratelimit.Charge{charge(tenant, strings.Repeat("x", 256), 1)}, "subject of 256 bytes"},
		{"second charge", context.Background(), []ratelimit.Charge{charge(tenant, "a", 1), charge(bad, "a", 1)}, "different numbers"},
		{"second rule", context.Background(), []ratelimit.Charge{charge(tenant, "a", 1), {Rule: ratelimit.Rule{Name: "x"}, Cost: 1}}, "charge 1: rule \"x\""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d, err := m.Take(c.ctx, c.charges)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want %q in it", err, c.want)
			}
			if !reflect.DeepEqual(d, ratelimit.Decision{}) {
				t.Fatalf("a decision with the error: %+v", d)
			}
			if got := remaining(t, m, tenant, "a"); got != 19 || m.Subjects() != 2 {
				t.Fatalf("something changed: remaining %d, subjects %d", got, m.Subjects())
			}
		})
	}
	taken := take(t, m, charge(tenant, "a", 1)).Taken
	if err := m.Return(gone, taken); !errors.Is(err, context.Canceled) {
		t.Fatalf("Return: %v", err)
	}
	giveBack(t, m, taken) // it was not returned yet
	if got := remaining(t, m, tenant, "a"); got != 19 {
		t.Fatalf("remaining %d, want 19", got)
	}
	if err := m.Reset(gone, "tenant", "a"); !errors.Is(err, context.Canceled) {
		t.Fatalf("Reset: %v", err)
	}
}

func TestLimitsReturn(t *testing.T) {
	m, c := newLimits(t, 0)
	take(t, m, charge(tenant, "a", 15))
	d := take(t, m, charge(tenant, "a", 5), charge(export, "a", 2), charge(global, "", 0))
	c.advance(time.Millisecond)
	giveBack(t, m, d.Taken)
	giveBack(t, m, d.Taken) // once
	giveBack(t, m, nil)
	if a, b := remaining(t, m, tenant, "a"), remaining(t, m, export, "a"); a != 5 || b != 3 {
		t.Fatalf("remaining %d and %d, want 5 and 3", a, b)
	}
	// The returned log holds nothing: it can be charged in full, and be a bucket.
	if d := take(t, m, charge(export, "a", 3)); !d.Allowed {
		t.Fatalf("%+v", d)
	}
	giveBack(t, m, d.Taken)
	// Full in between: nothing is given.
	d = take(t, m, charge(tenant, "b", 20))
	c.advance(time.Hour)
	take(t, m, charge(tenant, "b", 20))
	giveBack(t, m, d.Taken)
	if got := remaining(t, m, tenant, "b"); got != 0 {
		t.Fatalf("remaining %d, want 0", got)
	}
	// Forgotten in between, and made again within one microsecond.
	d = take(t, m, charge(tenant, "c", 20))
	if err := m.Reset(context.Background(), "tenant", "c"); err != nil {
		t.Fatal(err)
	}
	take(t, m, charge(tenant, "c", 20))
	giveBack(t, m, d.Taken)
	if got := remaining(t, m, tenant, "c"); got != 0 {
		t.Fatalf("remaining %d after Reset, want 0", got)
	}
	giveBack(t, m, take(t, m, charge(tenant, "d", 20)).Taken)
	if err := m.Reset(context.Background(), "tenant", "d"); err != nil {
		t.Fatal(err)
	}
	giveBack(t, m, &ratelimit.Taken{Charges: []ratelimit.Charge{charge(tenant, "d", 1)}, Receipts: make([]ratelimit.Receipt, 1)})
	if got := remaining(t, m, tenant, "d"); got != 20 {
		t.Fatalf("remaining %d, want 20", got)
	}
}

func TestLimitsReset(t *testing.T) {
	m, _ := newLimits(t, 0)
	long := strings.Repeat("long", 60)
	take(t, m, charge(tenant, "a", 20), charge(tenant, long, 20), charge(export, "a", 3))
	for _, s := range []string{"a", long, "nobody"} {
		if err := m.Reset(context.Background(), "tenant", s); err != nil {
			t.Fatal(err)
		}
	}
	if a, b, c := remaining(t, m, tenant, "a"), remaining(t, m, tenant, long), remaining(t, m, export, "a"); a != 20 || b != 20 || c != 0 {
		t.Fatalf("remaining %d, %d, %d, want 20, 20, 0", a, b, c)
	}
	if n := m.Subjects(); n != 1 {
		t.Fatalf("%d subjects, want 1", n)
	}
}

// Q4 through the store: the wait that a refusal names stays true although the
// refusal charged nothing.
func TestLimitsClockStepsBack(t *testing.T) {
	for _, r := range []ratelimit.Rule{tenant, export} {
		m, c := newLimits(t, 0)
		both := []ratelimit.Charge{charge(r, "a", 1), charge(global, "", 1)}
		take(t, m, charge(r, "a", r.Capacity()))
		c.advance(-365 * 24 * time.Hour)
		d := take(t, m, both...)
		wait, _ := d.RetryAfter()
		if d.Allowed || wait > r.Window {
			t.Fatalf("%s: after the step: %+v", r.Name, d)
		}
		c.advance(wait - time.Microsecond)
		if d := take(t, m, both...); d.Allowed {
			t.Fatalf("%s: a microsecond early: %+v", r.Name, d)
		}
		c.advance(time.Microsecond)
		if d := take(t, m, both...); !d.Allowed {
			t.Fatalf("%s: after the wait: %+v", r.Name, d)
		}
	}
}

// Q7 through the store, in both directions and between algorithms.
func TestLimitsRuleChanges(t *testing.T) {
	m, c := newLimits(t, 0)
	take(t, m, charge(tenant, "a", 20))
	slow := tenant
	slow.Quota = 1
	c.advance(time.Second) // 10 came back
	d := take(t, m, charge(slow, "a", 11))
	if wait, _ := d.RetryAfter(); d.Allowed || d.Levels[0].Remaining != 10 || wait != time.Second {
		t.Fatalf("lowered: %+v", d)
	}
	d = take(t, m, charge(tenant, "a", 11))
	if wait, _ := d.RetryAfter(); d.Allowed || d.Levels[0].Remaining != 10 || wait != 100*time.Millisecond {
		t.Fatalf("raised: %+v", d)
	}
	log := ratelimit.Rule{Name: "tenant", Algorithm: ratelimit.SlidingWindowLog, Quota: 20, Window: time.Second}
	d = take(t, m, charge(log, "a", 11))
	if wait, _ := d.RetryAfter(); d.Allowed || d.Levels[0].Remaining != 10 || wait != time.Second {
		t.Fatalf("as a log: %+v", d)
	}
	if d = take(t, m, charge(log, "a", 10)); !d.Allowed {
		t.Fatalf("as a log: %+v", d)
	}
	if d = take(t, m, charge(tenant, "a", 1)); d.Allowed || d.Levels[0].Remaining != 0 {
		t.Fatalf("as a bucket again: %+v", d)
	}
	if m.Subjects() != 1 {
		t.Fatalf("%d subjects, want 1", m.Subjects())
	}
}

// With the caller's memory, nothing is allocated, whatever the decision.
func TestLimitsTakeInto(t *testing.T) {
	m, c := newLimits(t, 0)
	var d ratelimit.Decision
	var taken ratelimit.Taken
	one := []ratelimit.Charge{charge(tenant, "a", 1)}
	four := []ratelimit.Charge{charge(tenant, "a", 1), charge(tenant, "b", 1), charge(export, "a", 1), charge(global, "", 1)}
	into := func(charges []ratelimit.Charge) {
		if err := m.TakeInto(context.Background(), charges, &d, &taken); err != nil {
			t.Fatal(err)
		}
		if len(d.Levels) != len(charges) || d.Allowed != (d.Taken == &taken) || d.Allowed && len(taken.Charges) != len(charges) {
			t.Fatalf("%+v", d)
		}
		c.advance(7 * time.Millisecond)
	}
	for range 100 {
		into(four)
	}
	if n := testing.AllocsPerRun(500, func() { into(one); into(four) }); n != 0 {
		t.Errorf("%v allocations per run", n)
	}
	c.advance(time.Hour)
	if n := testing.AllocsPerRun(500, func() {
		if d, err := m.Take(context.Background(), one); err != nil || len(d.Levels) != 1 {
			t.Fatal(d, err)
		}
	}); n != 1 {
		t.Errorf("Take: %v allocations per run, want 1", n)
	}
	if err := m.TakeInto(context.Background(), one, &d, nil); err != nil || d.Taken != nil {
		t.Errorf("without memory for what was taken: %+v, %v", d, err)
	}
	five := append(four, charge(tenant, "c", 1))
	if d := take(t, m, five...); len(d.Levels) != 5 {
		t.Errorf("five charges: %+v", d)
	}
}
