package redisstore_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/store/redisstore"
	"github.com/escapement-dev/escapement/store/storetest"
)

// shared is a server for all tests that do not hurt theirs.
var shared *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "redisstore")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		if shared, err = redistest.New(dir, "--appendfsync", "no"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		shared.Kill()
		if err := goleak.Find(
			// rueidis leaves a connection that a refresh replaced open for five
			// more seconds, also when its client is closed.
			goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}())
}

var prefixes atomic.Int64

// open returns a store on the server with a prefix of its own.
func open(t testing.TB, url string, clock *storetest.Clock) *redisstore.Store {
	t.Helper()
	return openAt(t, url, fmt.Sprintf("test%d:", prefixes.Add(1)), clock)
}

func openAt(t testing.TB, url, prefix string, clock *storetest.Clock) *redisstore.Store {
	t.Helper()
	o := redisstore.Options{Prefix: prefix}
	if clock != nil {
		o.Now = clock.Now
	}
	s, err := redisstore.Open(url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// reopen is a store of another process, as it were, on the same data.
func reopen(t testing.TB, url string, s *redisstore.Store, clock *storetest.Clock) *redisstore.Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return openAt(t, url, redisstore.PrefixOf(s), clock)
}

func fixedClock() *storetest.Clock { return storetest.NewClock() }

func contextFor(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}
