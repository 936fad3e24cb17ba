package sqlitestore

import (
	"testing"

	"github.com/escapement-dev/escapement/store/storetest"
)

func BenchmarkStore(b *testing.B) {
	storetest.Benchmark(b, harness(func(t testing.TB, path string, clock *storetest.Clock) *Store {
		return open(t, path, Options{Now: clock.Now})
	}))
}
