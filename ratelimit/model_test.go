package ratelimit_test

import (
	"math/big"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// seeded runs f with several random sources; a failure names the seed, and
// ESCAPEMENT_SEED=n repeats it.
func seeded(t *testing.T, runs int, f func(t *testing.T, rnd *rand.Rand)) {
	t.Helper()
	first := rand.Uint64()
	if s := os.Getenv("ESCAPEMENT_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("ESCAPEMENT_SEED=%q: %v", s, err)
		}
		first, runs = n, 1
	}
	for i := range uint64(runs) {
		seed := first + i
		t.Run("", func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("repeat with ESCAPEMENT_SEED=%d", seed)
				}
			}()
			f(t, rand.New(rand.NewPCG(seed, 1)))
		})
		if t.Failed() {
			return
		}
	}
}

// epoch is where the tests' clocks start.
const epoch = int64(1_790_000_000_000_000)

func at(us int64) time.Time { return time.UnixMicro(us) }

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func micros(d time.Duration) int64 { return d.Microseconds() }

// rate is a rule's units per microsecond.
func rate(r ratelimit.Rule) *big.Rat { return big.NewRat(r.Quota, micros(r.Window)) }

// floor and ceil round to whole numbers.
func floor(x *big.Rat) int64 {
	return new(big.Int).Div(x.Num(), x.Denom()).Int64() // Euclidean; the denominator is positive
}

func ceil(x *big.Rat) int64 { return -floor(new(big.Rat).Neg(x)) }

// bucketModel is a token bucket in rational numbers: what is missing, in
// units, at a time. It knows nothing of arrival times.
type bucketModel struct {
	rule ratelimit.Rule // the rate at which the debt goes down
	debt *big.Rat
	at   int64
}

// look settles the past and restates the debt for r, without keeping it.
func (m *bucketModel) look(r ratelimit.Rule, now int64) bucketModel {
	if m.debt == nil {
		return bucketModel{r, new(big.Rat), now}
	}
	d := new(big.Rat).Mul(rate(m.rule), rat(now-m.at))
	d.Sub(m.debt, d)
	if d.Sign() < 0 {
		d.SetInt64(0)
	}
	if rate(m.rule).Cmp(rate(r)) != 0 || m.rule.Window != r.Window {
		// A state counts parts of a unit: one Window-th. It rounds up.
		w := big.NewInt(micros(r.Window))
		parts := new(big.Rat).Mul(d, new(big.Rat).SetInt(w))
		up := new(big.Int).Neg(parts.Num())
		up.Div(up, parts.Denom()) // Euclidean: towards the greater, negated
		d.SetFrac(up.Neg(up), w)
	}
	return bucketModel{r, d, now}
}

func (m *bucketModel) take(r ratelimit.Rule, cost, now int64) ratelimit.Level {
	seen := m.look(r, now)
	l := ratelimit.Level{Rule: r}
	capacity := rat(r.Capacity())
	after := new(big.Rat).Add(seen.debt, rat(cost))
	switch {
	case cost > r.Capacity():
		l.Never = true
	case cost == 0:
		l.Allowed = true
	case after.Cmp(capacity) <= 0:
		l.Allowed = true
		seen.debt = after
		*m = seen
	default:
		over := new(big.Rat).Sub(after, capacity)
		l.RetryAfter = time.Duration(ceil(over.Quo(over, rate(r)))) * time.Microsecond
		if m.debt != nil {
			*m = seen
		}
	}
	l.Remaining = max(0, floor(new(big.Rat).Sub(capacity, seen.debt)))
	l.ResetAfter = time.Duration(ceil(new(big.Rat).Quo(seen.debt, rate(r)))) * time.Microsecond
	return l
}

// logModel is a sliding window log that remembers everything.
type logModel struct{ times []int64 }

func (m *logModel) live(window, now int64) []int64 {
	var live []int64
	for _, t := range m.times {
		if t+window > now {
			live = append(live, t)
		}
	}
	return live
}

func (m *logModel) take(r ratelimit.Rule, cost, now int64) ratelimit.Level {
	l := ratelimit.Level{Rule: r}
	window := micros(r.Window)
	live := m.live(window, now)
	switch {
	case cost > r.Quota:
		l.Never = true
	case int64(len(live))+cost <= r.Quota || cost == 0:
		l.Allowed = true
		for range cost {
			m.times = append(m.times, now)
		}
	default:
		for wait := int64(1); ; wait++ { // by trial
			if int64(len(m.live(window, now+wait)))+cost <= r.Quota {
				l.RetryAfter = time.Duration(wait) * time.Microsecond
				break
			}
		}
	}
	live = m.live(window, now)
	l.Remaining = max(0, r.Quota-int64(len(live)))
	if len(live) > 0 {
		l.ResetAfter = time.Duration(live[len(live)-1]+window-now) * time.Microsecond
	}
	return l
}

// anyBucket is a valid token bucket from the whole range of what is valid.
func anyBucket(rnd *rand.Rand) ratelimit.Rule {
	for {
		r := ratelimit.Rule{
			Name:   "any",
			Quota:  upTo(rnd, ratelimit.MaxQuota),
			Window: time.Duration(upTo(rnd, micros(ratelimit.MaxWindow))) * time.Microsecond,
		}
		switch rnd.IntN(4) {
		case 0:
			r.Burst = upTo(rnd, ratelimit.MaxQuota)
		case 1:
			r.Burst = 1 + rnd.Int64N(100)
		case 2:
			r.Quota = []int64{1, 3, 7, 1000, 300_000, 1e9, 1e12}[rnd.IntN(7)]
			r.Window = []time.Duration{time.Microsecond, 7 * time.Microsecond, time.Second, time.Minute, 30 * 24 * time.Hour, ratelimit.MaxWindow}[rnd.IntN(6)]
		}
		if r.Validate() == nil {
			return r
		}
	}
}

// upTo is 1 to n, of any order of magnitude.
func upTo(rnd *rand.Rand, n int64) int64 {
	bits := 1 + rnd.IntN(62)
	return 1 + (rnd.Int64()>>(63-bits))%n
}

// anyCost is 0, small, about the capacity, or anything.
func anyCost(rnd *rand.Rand, r ratelimit.Rule) int64 {
	switch rnd.IntN(8) {
	case 0:
		return 0
	case 1:
		return r.Capacity()
	case 2:
		return r.Capacity() + 1
	case 3, 4:
		return 1 + rnd.Int64N(r.Capacity())
	}
	return 1
}

// anyStep is how far the clock moves on: often about what a unit takes.
func anyStep(rnd *rand.Rand, r ratelimit.Rule) int64 {
	unit := micros(r.Window)/r.Quota + 1
	switch rnd.IntN(6) {
	case 0:
		return 0
	case 1:
		return 1
	case 2:
		us, _, _ := r.Increment(r.Capacity())
		return rnd.Int64N(us + 2)
	}
	return rnd.Int64N(2*unit + 1)
}
