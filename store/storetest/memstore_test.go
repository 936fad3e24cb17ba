package storetest_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
	"github.com/escapement-dev/escapement/store/storetest"
)

func TestMain(m *testing.M) {
	// The mutants fail on purpose: no files about it, and no long search for
	// the shortest way to it.
	for name, value := range map[string]string{"rapid.nofailfile": "true", "rapid.shrinktime": "20ms"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// memory is the harness of memstore.
func memory() storetest.Harness {
	return storetest.Harness{
		New:       func(t testing.TB, clock *storetest.Clock) idempotency.Store { return newRecords(t, clock) },
		NewLimits: func(t testing.TB, clock *storetest.Clock) ratelimit.Store { return newLimits(t, clock) },
		Caps:      storetest.Capabilities{Steps: true, Keeper: true, Settings: true},
	}
}

func newLimits(t testing.TB, clock *storetest.Clock) *memstore.Limits {
	s, err := memstore.NewLimits(memstore.LimitsOptions{Now: clock.Now})
	if err != nil {
		t.Fatalf("memstore.NewLimits: %v", err)
	}
	return s
}

func newRecords(t testing.TB, clock *storetest.Clock) *memstore.Records {
	s, err := memstore.NewRecords(memstore.RecordsOptions{Now: clock.Now})
	if err != nil {
		t.Fatalf("memstore.NewRecords: %v", err)
	}
	return s
}

func TestMemstore(t *testing.T) { storetest.Run(t, memory()) }

func BenchmarkMemstore(b *testing.B) { storetest.Benchmark(b, memory()) }
