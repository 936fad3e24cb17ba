package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	uredis "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/escapement-dev/escapement/ratelimit"
)

// perSecond is what every key may take: so much that nothing is refused, since
// not every peer does the same work for a refusal.
const perSecond = 1_000_000

var errRefused = errors.New("refused")

// redisLimiter is one contender. Each caller makes its own take, of one token.
type redisLimiter struct {
	name string
	pool int // connections of go-redis; 0: not by go-redis
	open func(tb testing.TB, s *redisServer, pool int) (caller func() (take func(key string) error))
}

// The pools are the best at 128 callers of those in BenchmarkRedisPool.
var redisLimiters = []redisLimiter{
	{"empty", 0, func(tb testing.TB, s *redisServer, _ int) func() func(string) error {
		c := s.rueidis(tb)
		ctx := context.Background()
		sha := load(tb, c, "return 1")
		return same(func(key string) error {
			return c.Do(ctx, c.B().Evalsha().Sha1(sha).Numkeys(1).Key(key).Build()).Error()
		})
	}},
	{"escapement", 0, func(tb testing.TB, s *redisServer, _ int) func() func(string) error {
		st := s.store(tb)
		ctx := context.Background()
		rule := ratelimit.Rule{Name: "bench", Quota: perSecond, Window: time.Second}
		return func() func(string) error {
			charges := []ratelimit.Charge{{Rule: rule, Cost: 1}}
			return func(key string) error {
				charges[0].Subject = key
				d, err := st.Take(ctx, charges)
				return verdict(d.Allowed, err)
			}
		}
	}},
	{"redis_rate", 128, func(tb testing.TB, s *redisServer, pool int) func() func(string) error {
		l := redis_rate.NewLimiter(s.goredis(tb, pool))
		ctx := context.Background()
		limit := redis_rate.PerSecond(perSecond)
		return same(func(key string) error {
			r, err := l.Allow(ctx, key, limit)
			return verdict(err == nil && r.Allowed > 0, err)
		})
	}},
	{"throttled", 64, func(tb testing.TB, s *redisServer, pool int) func() func(string) error {
		st, err := goredisstore.NewCtx(s.goredis(tb, pool), "throttled:")
		if err != nil {
			tb.Fatal(err)
		}
		l, err := throttled.NewGCRARateLimiterCtx(st, throttled.RateQuota{MaxRate: throttled.PerSec(perSecond), MaxBurst: perSecond - 1})
		if err != nil {
			tb.Fatal(err)
		}
		ctx := context.Background()
		return same(func(key string) error {
			limited, _, err := l.RateLimitCtx(ctx, key, 1)
			return verdict(!limited, err)
		})
	}},
	{"ulule", 32, func(tb testing.TB, s *redisServer, pool int) func() func(string) error {
		st, err := uredis.NewStore(s.goredis(tb, pool))
		if err != nil {
			tb.Fatal(err)
		}
		l := ulule.New(st, ulule.Rate{Period: time.Second, Limit: perSecond})
		ctx := context.Background()
		return same(func(key string) error {
			c, err := l.Get(ctx, key)
			return verdict(!c.Reached, err)
		})
	}},
}

// same is for contenders that all callers share.
func same(take func(string) error) func() func(string) error {
	return func() func(string) error { return take }
}

func verdict(allowed bool, err error) error {
	if err == nil && !allowed {
		return errRefused
	}
	return err
}

// sequence is the keys in the order in which they are asked: one hot key, or
// drawn from so many by Zipf's law (s = 1.1).
func sequence(keys int) []string {
	if keys == 1 {
		return []string{"tenant-000000000"}
	}
	names, out := subjects(keys), make([]string, 1<<18)
	z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, uint64(keys-1))
	for i := range out {
		out[i] = names[z.Uint64()]
	}
	return out
}

func (l redisLimiter) run(b *testing.B, s *redisServer, callers, pool int, keys []string) {
	caller := l.open(b, s, pool)
	if err := caller()(keys[0]); err != nil { // so that the server knows the script
		b.Fatal(err)
	}
	s.measure(b, callers, func() func(int64) error {
		take := caller()
		return func(i int64) error { return take(keys[i%int64(len(keys))]) }
	})
}

// BenchmarkRedisLimiter takes one token of one hot key, and of 100,000 keys by
// Zipf's law. The empty script is the limit: one EVALSHA that does nothing, by
// the same client as ours.
func BenchmarkRedisLimiter(b *testing.B) {
	s := startRedis(b)
	for _, n := range []int{1, 100_000} {
		keys := sequence(n)
		for _, callers := range []int{1, 16, 128, 512} {
			for _, l := range redisLimiters {
				s.flush(b)
				b.Run(fmt.Sprintf("keys=%d/callers=%d/impl=%s", n, callers, l.name), func(b *testing.B) {
					l.run(b, s, callers, l.pool, keys)
				})
			}
		}
	}
}

// BenchmarkRedisPool is how the pools of the peers were chosen.
func BenchmarkRedisPool(b *testing.B) {
	s := startRedis(b)
	for _, n := range []int{1, 100_000} {
		keys := sequence(n)
		for _, pool := range []int{4, 8, 16, 32, 64, 128} {
			for _, l := range redisLimiters {
				if l.pool == 0 {
					continue
				}
				s.flush(b)
				b.Run(fmt.Sprintf("keys=%d/callers=128/pool=%d/impl=%s", n, pool, l.name), func(b *testing.B) {
					l.run(b, s, 128, pool, keys)
				})
			}
		}
	}
}
