package sqlitestore

import (
	"context"
	"database/sql"
	"testing"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/storetest"
)

func TestSuite(t *testing.T) {
	storetest.Run(t, harness(func(t testing.TB, path string, clock *storetest.Clock) *Store {
		return open(t, path, Options{Now: clock.Now})
	}))
}

// The same on a database of the caller's.
func TestSuiteNew(t *testing.T) {
	storetest.Run(t, harness(func(t testing.TB, path string, clock *storetest.Clock) *Store {
		s, err := New(context.Background(), ownDatabase(t, path), Options{Now: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}))
}

// ownDatabase opens a caller's own database.
func ownDatabase(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func harness(attach func(testing.TB, string, *storetest.Clock) *Store) storetest.Harness {
	return storetest.Harness{
		New: func(t testing.TB, clock *storetest.Clock) idempotency.Store { return attach(t, newFile(t), clock) },
		Caps: storetest.Capabilities{
			Steps: true, Keeper: true, Settings: true,
			Reopen: func(t testing.TB, s idempotency.Store, clock *storetest.Clock) idempotency.Store {
				return attach(t, s.(*Store).file, clock)
			},
		},
		Faults: storetest.Faults{
			Stall: func(t testing.TB, s idempotency.Store) func() { return lock(t, s.(*Store).file) },
		},
	}
}
