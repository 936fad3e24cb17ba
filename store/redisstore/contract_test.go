package redisstore_test

import (
	"testing"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/storetest"
)

func TestContractStandalone(t *testing.T) {
	url := "redis://" + shared.Addr
	storetest.Run(t, storetest.Harness{
		New: func(t testing.TB, clock *storetest.Clock) idempotency.Store {
			t.Cleanup(func() { shared.Cli(t, "flushall") })
			return open(t, url, clock)
		},
		Caps: storetest.Capabilities{Steps: true, Keeper: true, Settings: true},
	})
}
