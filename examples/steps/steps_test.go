package steps

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/pgserver"
	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/store/memstore"
	"github.com/escapement-dev/escapement/store/pgstore"
	"github.com/escapement-dev/escapement/store/redisstore"
	"github.com/escapement-dev/escapement/store/sqlitestore"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := pgserver.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var errDied = errors.New("the node died")

// agency books whatever it is told to, under the key that it is told.
type agency struct {
	mu    sync.Mutex
	keys  bool // it knows keys; else it can be asked
	calls int
	made  map[string]string // ids by what and key
	times map[string]int    // bookings by what
	dies  func(what string) bool
}

func (a *agency) Do(_ context.Context, what, key string) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	id := a.made[what+key]
	if id == "" || !a.keys {
		a.times[what]++
		id = fmt.Sprintf("%s-%d", what, a.calls)
		a.made[what+key] = id
	}
	if a.dies(what) {
		panic(errDied)
	}
	return id, nil
}

func (a *agency) Options(what string) escapement.StepOptions {
	if a.keys {
		return escapement.StepOptions{KeysFor: time.Hour}
	}
	return escapement.StepOptions{Status: func(_ context.Context, key string) (escapement.StepResult, escapement.StepStatus, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if id := a.made[what+key]; id != "" {
			return escapement.StepResult{ID: id}, escapement.StepFound, nil
		}
		return escapement.StepResult{}, escapement.StepAbsent, nil
	}}
}

// stores opens every store that keeps records.
var stores = map[string]func(t *testing.T) idempotency.Store{
	"memory": func(t *testing.T) idempotency.Store {
		s, err := memstore.NewRecords(memstore.RecordsOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	},
	"sqlite": func(t *testing.T) idempotency.Store {
		s, err := sqlitestore.Open(t.Context(), filepath.Join(t.TempDir(), "records.db"), sqlitestore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	},
	"postgres": func(t *testing.T) idempotency.Store {
		pool, err := pgxpool.New(t.Context(), pgserver.Shared(t).URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		if _, _, err := pgstore.Migrate(t.Context(), pool, ""); err != nil {
			t.Fatal(err)
		}
		s, err := pgstore.New(t.Context(), pool, pgstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	},
	"redis": func(t *testing.T) idempotency.Store {
		s, err := redisstore.Open("redis://"+redistest.Start(t).Addr, redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	},
}

// P2, P3: on every store, an attempt that dies after the second effect is
// followed by one that returns the first effect, and finds out the second.
func TestP3TripOnEveryStore(t *testing.T) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := open(t)
			gate, err := escapement.New(escapement.Options{Records: store})
			if err != nil {
				t.Fatal(err)
			}
			for _, keys := range []bool{false, true} {
				t.Run(map[bool]string{true: "keys", false: "status"}[keys], func(t *testing.T) {
					a := &agency{keys: keys, made: map[string]string{}, times: map[string]int{}}
					died := false
					a.dies = func(what string) bool {
						dies := what == "room" && !died
						died = died || dies
						return dies
					}
					policy := escapement.DefaultPolicy()
					policy.Timeout, policy.Terms.Quiet = 2*time.Second, 2*time.Second
					policy.Terms.OnUnknown = idempotency.Probe
					var id idempotency.ID
					rand.Read(id[:]) // the database outlives the test
					req := escapement.Request{Key: idempotency.Key{ID: id, Tenant: "acme"}, Policy: policy}
					if v, err := gate.Do(t.Context(), req, Trip(a)); err != nil || v.Panicked != error(errDied) || !v.Recorded {
						t.Fatalf("%+v, %v", v, err)
					}
					over := time.Now()
					tick := time.NewTicker(50 * time.Millisecond)
					defer tick.Stop()
					var v escapement.Verdict
					for v.Outcome != escapement.Admitted {
						<-tick.C
						if v, err = gate.Do(t.Context(), req, Trip(a)); err != nil || v.Outcome != escapement.Admitted && v.Outcome != escapement.InProgress {
							t.Fatalf("%v, %v", v.Outcome, err)
						}
					}
					if quiet := time.Since(over); quiet < policy.Terms.Quiet-100*time.Millisecond {
						t.Errorf("taken over after %v", quiet)
					}
					if got := string(v.Ending.Result.Payload); got != "flight flight-1, room room-2" || !v.Recorded {
						t.Errorf("%s, recorded: %v", got, v.Recorded)
					}
					if a.times["flight"] != 1 || a.times["room"] != 1 {
						t.Errorf("booked %v", a.times)
					}
					rec, err := store.Lookup(t.Context(), req.Key)
					if err != nil || len(rec.Steps) != 2 || !rec.Takeover {
						t.Fatalf("%+v, %v", rec, err)
					}
					for _, s := range rec.Steps {
						if !s.Done || s.ProviderKey != idempotency.StepKey(req.Key, s.Name) || s.ProviderID == "" {
							t.Errorf("%+v", s)
						}
					}
				})
			}
		})
	}
}
