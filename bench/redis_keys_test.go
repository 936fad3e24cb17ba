package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// claims numbers the keys that are claimed, so that each is new.
var claims atomic.Uint64

func newClaim() idempotency.Claim {
	c := idempotency.Claim{Key: idempotency.Key{Tenant: "bench"}, Owner: idempotency.NewOwner(), Terms: terms}
	binary.BigEndian.PutUint64(c.Key.ID[:], claims.Add(1))
	return c
}

// four are the levels that a request may have: the tenant's and everybody's
// requests, and the tenant's and the operation's executions. None refuses.
func four(i int64) (requests, executions []ratelimit.Charge) {
	level := func(name, subject string) ratelimit.Charge {
		return ratelimit.Charge{Rule: ratelimit.Rule{Name: name, Quota: perSecond, Window: time.Second}, Subject: subject, Cost: 1}
	}
	tenant := "tenant-" + strconv.FormatInt(i%10_000, 10)
	return []ratelimit.Charge{level("tenant", tenant), level("all", "all")},
		[]ratelimit.Charge{level("runs", tenant), level("orders", tenant)}
}

// BenchmarkRedisAdmit compares one level with four and a reservation, both in
// one round trip, and with the five round trips that they would be otherwise.
func BenchmarkRedisAdmit(b *testing.B) {
	s := startRedis(b)
	st := s.store(b)
	ctx := context.Background()
	one := func(i int64) error {
		requests, _ := four(i)
		d, err := st.Take(ctx, requests[:1])
		return verdict(d.Allowed, err)
	}
	admit := func(i int64) error {
		requests, executions := four(i)
		d, a, err := st.Admit(ctx, requests, executions, newClaim())
		return verdict(d.Allowed && a.Outcome == idempotency.Started, err)
	}
	apart := func(i int64) error {
		requests, executions := four(i)
		for _, c := range append(requests, executions...) {
			if d, err := st.Take(ctx, []ratelimit.Charge{c}); err != nil || !d.Allowed {
				return verdict(d.Allowed, err)
			}
		}
		a, err := st.Reserve(ctx, newClaim())
		return verdict(a.Outcome == idempotency.Started, err)
	}
	for _, callers := range []int{1, 128} {
		for _, w := range []struct {
			name string
			do   func(int64) error
		}{{"one_level", one}, {"four_and_key", admit}, {"five_calls", apart}} {
			s.flush(b)
			b.Run(fmt.Sprintf("callers=%d/impl=%s", callers, w.name), func(b *testing.B) {
				s.measure(b, callers, func() func(int64) error { return w.do })
			})
		}
	}
}

// finished makes a done key with an answer of so many bytes and returns its
// claim, which a repeat of the request makes again.
func finished(tb testing.TB, st *redisstore.Store, size int) idempotency.Claim {
	tb.Helper()
	ctx := context.Background()
	c := newClaim()
	a, err := st.Reserve(ctx, c)
	if err != nil || a.Outcome != idempotency.Started {
		tb.Fatal(a.Outcome, err)
	}
	r := result
	r.Payload = make([]byte, size)
	if err := st.End(ctx, a.Reservation, idempotency.Done(r)); err != nil {
		tb.Fatal(err)
	}
	c.Owner = idempotency.NewOwner()
	return c
}

// BenchmarkRedisReplay claims a key that is done, and gets its answer; beside
// it a GET of a string of the same size, which is the limit.
func BenchmarkRedisReplay(b *testing.B) {
	s := startRedis(b)
	st, plain := s.store(b), s.rueidis(b)
	ctx := context.Background()
	for _, size := range []int{200, 16 << 10} {
		claim := finished(b, st, size)
		key := "plain" + strconv.Itoa(size)
		if err := plain.Do(ctx, plain.B().Set().Key(key).Value(string(make([]byte, size))).Build()).Error(); err != nil {
			b.Fatal(err)
		}
		for _, callers := range []int{1, 128} {
			b.Run(fmt.Sprintf("bytes=%d/callers=%d/impl=get", size, callers), func(b *testing.B) {
				s.measure(b, callers, func() func(int64) error {
					return func(int64) error {
						v, err := plain.Do(ctx, plain.B().Get().Key(key).Build()).ToString()
						return verdict(len(v) == size, err)
					}
				})
			})
			b.Run(fmt.Sprintf("bytes=%d/callers=%d/impl=escapement", size, callers), func(b *testing.B) {
				s.measure(b, callers, func() func(int64) error {
					return func(int64) error {
						a, err := st.Reserve(ctx, claim)
						return verdict(a.Outcome == idempotency.Replayed && len(a.Record.Result.Payload) == size, err)
					}
				})
			})
		}
	}
}

// slow is a rule that five requests exhaust for most of an hour.
var slow = ratelimit.Rule{Name: "slow", Quota: 5, Window: time.Hour}

func cached(tb testing.TB, s *redisServer) *redisstore.Cached {
	tb.Helper()
	c, err := s.store(tb).Cached(redisstore.DenyCacheOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// exhaust takes all that the slow rule gives to a subject.
func exhaust(tb testing.TB, st ratelimit.Store, subject string) {
	tb.Helper()
	d, err := st.Take(context.Background(), []ratelimit.Charge{{Rule: slow, Subject: subject, Cost: 5}})
	if err != nil || !d.Allowed {
		tb.Fatal(d.Allowed, err)
	}
}

// BenchmarkRedisDenied asks again and again for what is refused. A refusal is
// believed for one second: more scripts than one per second and caller, for
// those that ask at that very moment, are a failure.
func BenchmarkRedisDenied(b *testing.B) {
	s := startRedis(b)
	c := cached(b, s)
	ctx := context.Background()
	exhaust(b, c, "attacker")
	for _, callers := range []int{1, 2} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			before := s.used(b)
			start := time.Now()
			s.measure(b, callers, func() func(int64) error {
				charges := []ratelimit.Charge{{Rule: slow, Subject: "attacker", Cost: 1}}
				return func(int64) error {
					d, err := c.Take(ctx, charges)
					return verdict(!d.Allowed, err)
				}
			})
			scripts := s.used(b).scripts - before.scripts
			if most := float64(callers) * (1 + time.Since(start).Seconds()); scripts > most {
				b.Errorf("%v scripts ran, want at most %v", scripts, most)
			}
			b.ReportMetric(scripts, "scripts")
		})
	}
}

// BenchmarkRedisAttack sends ten requests of one attacker, who is over its
// limit, with each request of others. One operation is those eleven. scripts/op
// is what Redis sees of them: 1 without the attack.
func BenchmarkRedisAttack(b *testing.B) {
	s := startRedis(b)
	ctx := context.Background()
	rule := ratelimit.Rule{Name: "roomy", Quota: perSecond, Window: time.Second}
	for _, attack := range []int{0, 10} {
		b.Run(fmt.Sprintf("attack=%d", attack), func(b *testing.B) {
			c := cached(b, s)
			s.flush(b)
			exhaust(b, c, "attacker")
			before := s.used(b)
			s.measure(b, 16, func() func(int64) error {
				bad := []ratelimit.Charge{{Rule: slow, Subject: "attacker", Cost: 1}}
				good := []ratelimit.Charge{{Rule: rule, Cost: 1}}
				return func(i int64) error {
					for range attack {
						if d, err := c.Take(ctx, bad); err != nil || d.Allowed {
							return fmt.Errorf("the attacker: allowed is %v, %v", d.Allowed, err)
						}
					}
					good[0].Subject = "tenant-" + strconv.FormatInt(i%1000, 10)
					d, err := c.Take(ctx, good)
					return verdict(d.Allowed, err)
				}
			})
			b.ReportMetric((s.used(b).scripts-before.scripts)/float64(b.N), "scripts/op")
		})
	}
}

// BenchmarkRedisScripts measures the server's time in each script, for 16
// callers: the mean, and the 50th, 99th and 99.9th percentile, in µs. The
// percentiles are Redis's own, and rounded up to a few percent.
func BenchmarkRedisScripts(b *testing.B) {
	s := startRedis(b)
	st, plain := s.store(b), s.rueidis(b)
	ctx := context.Background()
	empty := load(b, plain, "return 1")
	var held []idempotency.Reservation
	hold := func(b *testing.B) {
		held = make([]idempotency.Reservation, b.N)
		calls(b, 16, func() func(int64) error {
			return func(i int64) error {
				a, err := st.Reserve(ctx, newClaim())
				held[i-1] = a.Reservation
				return verdict(a.Outcome == idempotency.Started, err)
			}
		})
	}
	var done idempotency.Claim
	replay := func(b *testing.B) { done = finished(b, st, 200) }
	replayed := func(int64) error {
		a, err := st.Reserve(ctx, done)
		return verdict(a.Outcome == idempotency.Replayed, err)
	}
	log := func(quota int64, window time.Duration) ratelimit.Rule {
		return ratelimit.Rule{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: window}
	}
	type work struct {
		name    string
		prepare func(b *testing.B)
		do      func(i int64) error
	}
	list := []work{
		{"empty", nil, func(int64) error {
			return plain.Do(ctx, plain.B().Evalsha().Sha1(empty).Numkeys(1).Key("k").Build()).Error()
		}},
		{"take_1", nil, func(i int64) error {
			requests, _ := four(i)
			d, err := st.Take(ctx, requests[:1])
			return verdict(d.Allowed, err)
		}},
		{"take_1_refused", func(b *testing.B) { exhaust(b, st, "s") }, func(int64) error {
			d, err := st.Take(ctx, []ratelimit.Charge{{Rule: slow, Subject: "s", Cost: 1}})
			return verdict(!d.Allowed, err)
		}},
		{"take_4", nil, func(i int64) error {
			requests, executions := four(i)
			d, err := st.Take(ctx, append(requests, executions...))
			return verdict(d.Allowed, err)
		}},
		{"reserve", nil, func(int64) error {
			a, err := st.Reserve(ctx, newClaim())
			return verdict(a.Outcome == idempotency.Started, err)
		}},
		{"admit_4_and_key", nil, func(i int64) error {
			requests, executions := four(i)
			d, a, err := st.Admit(ctx, requests, executions, newClaim())
			return verdict(d.Allowed && a.Outcome == idempotency.Started, err)
		}},
		{"end_512B", hold, func(i int64) error { return st.End(ctx, held[i-1], idempotency.Done(result)) }},
		{"extend", hold, func(i int64) error {
			_, err := st.Extend(ctx, held[i-1], time.Hour)
			return err
		}},
		{"replay_200B", replay, replayed},
	}
	// The log is measured where it has most to do: full, with entries that
	// leave all the time; filled in one call; and refusing, where it searches.
	for _, quota := range []int64{100, 1000, ratelimit.MaxLogQuota} {
		rolling, brief, full := log(quota, 50*time.Millisecond), log(quota, time.Microsecond), log(quota, time.Hour)
		take := func(r ratelimit.Rule, cost int64) (ratelimit.Decision, error) {
			return st.Take(ctx, []ratelimit.Charge{{Rule: r, Subject: "s", Cost: cost}})
		}
		list = append(list,
			work{fmt.Sprintf("log_%d", quota), nil, func(int64) error {
				_, err := take(rolling, 1) // some pass
				return err
			}},
			work{fmt.Sprintf("log_%d_at_once", quota), nil, func(int64) error {
				_, err := take(brief, quota) // nearly all pass
				return err
			}},
			work{fmt.Sprintf("log_%d_refused", quota), func(b *testing.B) {
				if d, err := take(full, quota); err != nil || !d.Allowed {
					b.Fatal(d.Allowed, err)
				}
			}, func(int64) error {
				d, err := take(full, 1)
				return verdict(!d.Allowed, err)
			}})
	}
	for _, w := range list {
		b.Run("impl="+w.name, func(b *testing.B) {
			s.flush(b)
			if w.prepare != nil {
				w.prepare(b)
			}
			s.resetStats(b)
			s.measure(b, 16, func() func(int64) error { return w.do })
			s.reportPercentiles(b)
		})
	}
}

func (s *redisServer) resetStats(tb testing.TB) {
	tb.Helper()
	if err := s.admin.Do(context.Background(), s.admin.B().ConfigResetstat().Build()).Error(); err != nil {
		tb.Fatal(err)
	}
}

func (s *redisServer) reportPercentiles(b *testing.B) {
	b.Helper()
	m := slowStat.FindStringSubmatch(s.info(b, "latencystats"))
	if m == nil {
		return // of the first run, which is of one EVAL
	}
	for i, name := range [...]string{"p50-µs", "p99-µs", "p99.9-µs"} {
		f, err := strconv.ParseFloat(m[i+1], 64)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(f, name)
	}
}
