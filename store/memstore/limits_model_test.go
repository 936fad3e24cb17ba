package memstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
)

func seed(t *testing.T) *rand.Rand {
	n := rand.Uint64()
	if s := os.Getenv("ESCAPEMENT_SEED"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("ESCAPEMENT_SEED=%q: %v", s, err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with ESCAPEMENT_SEED=%d", n)
		}
	})
	return rand.New(rand.NewPCG(n, 1))
}

// model keeps every state in a map for ever, and applies the rules of the
// ground to copies.
type model struct {
	states map[string]ratelimit.State
}

func (m *model) take(charges []ratelimit.Charge, now time.Time) ratelimit.Decision {
	d := ratelimit.Decision{Allowed: true}
	after := map[string]ratelimit.State{}
	sums := map[string]int64{}
	t := &ratelimit.Taken{}
	for _, c := range charges {
		k := c.Rule.Name + "/" + c.Subject
		if _, ok := after[k]; !ok {
			after[k] = m.states[k]
		}
		sum := c.Cost
		if c.Cost > 0 {
			sums[k] += c.Cost
			sum = sums[k]
		}
		_, l := c.Rule.Take(m.states[k], sum, now)
		l.Subject = c.Subject
		s, _ := c.Rule.Take(after[k], c.Cost, now)
		after[k] = s
		t.Charges = append(t.Charges, c)
		t.Receipts = append(t.Receipts, s.Receipt(ratelimit.Micros(now)))
		d.Levels = append(d.Levels, l)
		d.Allowed = d.Allowed && l.Allowed
	}
	if d.Allowed {
		d.Taken = t
		for k, s := range after {
			m.states[k] = s
		}
	}
	for i, c := range charges {
		k := c.Rule.Name + "/" + c.Subject
		if !d.Allowed && !d.Levels[i].Allowed {
			m.states[k], _ = c.Rule.Take(m.states[k], sumTo(charges, i), now)
			continue
		}
		_, look := c.Rule.Take(m.states[k], 0, now)
		d.Levels[i].Remaining, d.Levels[i].ResetAfter = look.Remaining, look.ResetAfter
	}
	return d
}

// sumTo is the cost of the charges up to i on the bucket of charge i.
func sumTo(charges []ratelimit.Charge, i int) (sum int64) {
	for _, c := range charges[:i+1] {
		if c.Rule.Name == charges[i].Rule.Name && c.Subject == charges[i].Subject {
			sum += c.Cost
		}
	}
	return sum
}

// The store decides what the rules say, for few and many subjects, with several
// charges, changes of rules, returns and resets, while it forgets what is over.
func TestLimitsAgainstTheRules(t *testing.T) {
	rnd := seed(t)
	for round := range 20 {
		m, c := newLimits(t, 0)
		o := model{map[string]ratelimit.State{}}
		rules := []ratelimit.Rule{
			{Name: "a", Quota: 3, Window: time.Second, Burst: 5},
			{Name: "b", Quota: 700, Window: time.Minute, Burst: 9},
			{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: 4, Window: time.Second},
		}
		people := 1 + rnd.IntN(1+round*round)
		type pair struct{ ours, theirs *ratelimit.Taken }
		var pairs []pair
		for i := range 3000 {
			c.advance(time.Duration(rnd.IntN(300_000/people+2)) * time.Microsecond)
			switch rnd.IntN(20) {
			case 0: // sliders
				r := &rules[rnd.IntN(2)]
				r.Quota, r.Burst = 1+rnd.Int64N(900), rnd.Int64N(12)
				r.Window = time.Duration(1+rnd.IntN(60)) * time.Second
			case 1, 2, 3:
				if n := len(pairs); n > 0 {
					p := &pairs[n-1-rnd.IntN(min(n, 10))]
					giveBack(t, m, p.ours)
					if p.theirs.Once() {
						for j, ch := range p.theirs.Charges {
							k := ch.Rule.Name + "/" + ch.Subject
							o.states[k] = ch.Rule.Return(o.states[k], ch.Cost, p.theirs.Receipts[j], c.now)
						}
					}
				}
				continue
			case 4:
				r, s := rules[rnd.IntN(3)].Name, subject(rnd, people)
				if err := m.Reset(context.Background(), r, s); err != nil {
					t.Fatal(err)
				}
				// As the store does it, so that old receipts are void.
				o.states[r+"/"+s] = ratelimit.State{Since: o.states[r+"/"+s].Since + 1}
				continue
			}
			var charges []ratelimit.Charge
			for range 1 + rnd.IntN(6)*rnd.IntN(2) {
				charges = append(charges, charge(rules[rnd.IntN(3)], subject(rnd, people), rnd.Int64N(3)*rnd.Int64N(3)))
			}
			got, want := take(t, m, charges...), o.take(charges, c.now)
			if got.Allowed {
				pairs = append(pairs, pair{got.Taken, want.Taken})
			}
			if got.Allowed != want.Allowed || !reflect.DeepEqual(got.Levels, want.Levels) {
				t.Fatalf("round %d, step %d, charges %+v:\n got %+v\nwant %+v", round, i, charges, got.Levels, want.Levels)
			}
		}
	}
}

func subject(rnd *rand.Rand, people int) string {
	n := rnd.IntN(people)
	if n%3 == 0 {
		return fmt.Sprint(strings.Repeat("long", 9+n%40), n) // 37 bytes and more
	}
	return fmt.Sprint(n)
}

// Many at once: never more than the bound, all or none, no deadlock whatever
// the order of the charges.
func TestLimitsConcurrently(t *testing.T) {
	t.Run("taken", func(t *testing.T) {
		sum, x, y := takeConcurrently(t, false)
		if sum != 700 || x != 300 || y != 0 {
			t.Errorf("admitted %d, remaining %d and %d, want 700, 300 and 0", sum, x, y)
		}
	})
	// A Return gives back no more than what is surely still owed: of two that
	// cross, one may give nothing. So what is left may be less, never more.
	t.Run("some given back", func(t *testing.T) {
		sum, x, y := takeConcurrently(t, true)
		if sum+x > 1000 || sum+y > 700 || sum == 0 {
			t.Errorf("admitted %d, remaining %d and %d: more than 1000 and 700", sum, x, y)
		}
	})
}

// takeConcurrently takes one unit of a's 1000 and b's 700 until b is empty,
// and returns what was taken and not given back, and what remains of both.
func takeConcurrently(t *testing.T, back bool) (sum, x, y int64) {
	m, _ := newLimits(t, 0)
	a := ratelimit.Rule{Name: "a", Quota: 1000, Window: time.Hour}
	b := ratelimit.Rule{Name: "b", Quota: 700, Window: time.Hour}
	var wg sync.WaitGroup
	admitted := make([]int64, 8)
	for g := range admitted {
		wg.Go(func() {
			var d ratelimit.Decision
			var taken ratelimit.Taken
			for i := range 600 {
				charges := []ratelimit.Charge{charge(a, "x", 1), charge(b, "x", 1), charge(a, fmt.Sprint(g, i), 1)}
				if g%2 == 0 {
					charges[0], charges[1] = charges[1], charges[0]
				}
				if err := m.TakeInto(context.Background(), charges, &d, &taken); err != nil {
					t.Error(err)
					return
				}
				if d.Allowed {
					admitted[g]++
					if back && i%5 == 0 {
						if err := m.Return(context.Background(), &taken); err != nil {
							t.Error(err)
						}
						admitted[g]--
					}
				}
			}
		})
	}
	wg.Wait()
	for _, n := range admitted {
		sum += n
	}
	return sum, remaining(t, m, a, "x"), remaining(t, m, b, "x")
}

// Calls that name the same subjects in opposite orders do not wait for each
// other for ever. The clock holds up one call, which has one of the two, until
// others stand in line for both.
func TestLimitsOppositeOrders(t *testing.T) {
	var hold atomic.Bool
	held, release := make(chan bool), make(chan bool)
	m, err := memstore.NewLimits(memstore.LimitsOptions{Now: func() time.Time {
		if hold.CompareAndSwap(true, false) {
			held <- true
			<-release
		}
		return time.Unix(1_800_000_000, 0)
	}})
	if err != nil {
		t.Fatal(err)
	}
	look := func(subjects ...string) {
		var charges []ratelimit.Charge
		for _, s := range subjects {
			charges = append(charges, charge(tenant, s, 0))
		}
		if d, err := m.Take(context.Background(), charges); err != nil || !d.Allowed {
			t.Error(d, err)
		}
	}
	for i := range 200 {
		x, y := fmt.Sprint("x", i), fmt.Sprint("y", i)
		var wg sync.WaitGroup
		hold.Store(true)
		wg.Go(func() { look(y) })
		<-held
		for g := range 8 {
			if g%2 == 0 {
				wg.Go(func() { look(y, x) })
			} else {
				wg.Go(func() { look(x, y) })
			}
		}
		for range 20 {
			runtime.Gosched()
		}
		release <- true
		wg.Wait()
	}
}

// Many at once on a full store: the count stays right and within its bound.
func TestLimitsConcurrentlyFull(t *testing.T) {
	m, err := memstore.NewLimits(memstore.LimitsOptions{MaxSubjects: 100})
	if err != nil {
		t.Fatal(err)
	}
	short := ratelimit.Rule{Name: "short", Quota: 1, Window: 50 * time.Microsecond}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				_, err := m.Take(context.Background(), []ratelimit.Charge{charge(short, fmt.Sprint(g, i), 1), charge(short, fmt.Sprint(i), 1)})
				if err != nil && err != memstore.ErrFull {
					t.Error(err)
				}
				if n := m.Subjects(); n < 0 || n > 100 {
					t.Errorf("%d subjects", n)
				}
				if i%10 == 0 {
					if err := m.Reset(context.Background(), "short", fmt.Sprint(g, i)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	for g := range 8 {
		for i := range 2000 {
			for _, s := range []string{fmt.Sprint(g, i), fmt.Sprint(i)} {
				if err := m.Reset(context.Background(), "short", s); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if n := m.Subjects(); n != 0 {
		t.Errorf("%d subjects after all were reset", n)
	}
}
