package redisstore_test

import (
	"strings"
	"testing"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
	"github.com/escapement-dev/escapement/store/storetest"
)

// harness is the harness of stores at a URL, which clear empties.
func harness(url string, clear func(t testing.TB)) storetest.Harness {
	return storetest.Harness{
		New: func(t testing.TB, clock *storetest.Clock) idempotency.Store {
			t.Cleanup(func() { clear(t) })
			return open(t, url, clock)
		},
		NewLimits: func(t testing.TB, clock *storetest.Clock) ratelimit.Store {
			return open(t, url, clock)
		},
		Caps: storetest.Capabilities{
			Steps: true, Keeper: true, Settings: true,
			Reopen: func(t testing.TB, s idempotency.Store, clock *storetest.Clock) idempotency.Store {
				return reopen(t, url, s.(*redisstore.Store), clock)
			},
			ReopenLimits: func(t testing.TB, s ratelimit.Store, clock *storetest.Clock) ratelimit.Store {
				return reopen(t, url, s.(*redisstore.Store), clock)
			},
		},
	}
}

func TestContractStandalone(t *testing.T) {
	h := harness("redis://"+shared.Addr, func(t testing.TB) { shared.Cli(t, "flushall") })
	storetest.Run(t, h)
}

func TestContractCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, 0)
	h := harness("redis+cluster://"+strings.Join(c.Addrs(), ","), func(t testing.TB) {
		for _, m := range c.Masters {
			m.Cli(t, "flushall")
		}
	})
	h.Caps.SplitTake = true
	storetest.Run(t, h)
}
