package storetest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/memstore"
	"github.com/escapement-dev/escapement/store/storetest"
)

// shell stands between callers and memstore as a network would: so that the
// cases about faults, kills and transactions have something to run on, and can
// be seen to fail.
type shell struct {
	*memstore.Records

	mu      sync.Mutex
	stalled chan struct{} // closed when calls may go on; nil: they may
	lose    bool          // the reply of the next Reserve
}

func (s *shell) wait(ctx context.Context) error {
	s.mu.Lock()
	stalled := s.stalled
	s.mu.Unlock()
	if stalled == nil {
		return nil
	}
	select {
	case <-stalled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *shell) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	if err := s.wait(ctx); err != nil {
		return idempotency.Answer{}, err
	}
	a, err := s.Records.Reserve(ctx, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lose {
		s.lose = false
		return idempotency.Answer{}, errors.New("connection reset")
	}
	return a, err
}

func (s *shell) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.Records.End(ctx, r, e)
}

// shellHarness has every capability and fault.
func shellHarness() storetest.Harness {
	h := memory()
	h.New = func(t testing.TB, clock *storetest.Clock) idempotency.Store {
		return &shell{Records: newRecords(t, clock)}
	}
	h.Caps.Reopen = func(t testing.TB, s idempotency.Store, _ *storetest.Clock) idempotency.Store {
		return &shell{Records: s.(*shell).Records} // memory that outlives its owner
	}
	h.Caps.EndInTx = func(t testing.TB, s idempotency.Store, r idempotency.Reservation, e idempotency.Ending) func(bool) {
		return func(commit bool) {
			if !commit {
				return
			}
			if err := s.End(context.Background(), r, e); err != nil {
				t.Errorf("commit: %v", err)
			}
		}
	}
	h.Faults.Stall = func(t testing.TB, s idempotency.Store) func() {
		x := s.(*shell)
		stalled := make(chan struct{})
		x.mu.Lock()
		x.stalled = stalled
		x.mu.Unlock()
		return func() {
			x.mu.Lock()
			x.stalled = nil
			x.mu.Unlock()
			close(stalled)
		}
	}
	h.Faults.LoseReply = func(t testing.TB, s idempotency.Store) {
		x := s.(*shell)
		x.mu.Lock()
		x.lose = true
		x.mu.Unlock()
	}
	h.Faults.Restart = func(testing.TB, idempotency.Store) {}
	return h
}

func TestEveryCapability(t *testing.T) {
	h := shellHarness()
	h.NewLimits = nil
	storetest.Run(t, h)
}

func TestSuiteRefusesFaultyShells(t *testing.T) {
	for _, x := range []struct {
		name   string
		caught string
		spoil  func(h *storetest.Harness)
	}{
		{"a kill loses everything", "ReopenFinds ReopenKeepsWhat ReopenKeepsSettings", func(h *storetest.Harness) {
			h.Caps.Reopen = func(t testing.TB, _ idempotency.Store, clock *storetest.Clock) idempotency.Store {
				return &shell{Records: newRecords(t, clock)}
			}
		}},
		{"a kill loses the last payload", "ReopenKeepsWhat", func(h *storetest.Harness) {
			h.Caps.Reopen = func(t testing.TB, s idempotency.Store, clock *storetest.Clock) idempotency.Store {
				return &truncating{shell: &shell{Records: s.(*shell).Records}}
			}
		}},
		{"a transaction's work is seen before it commits", "F7", func(h *storetest.Harness) {
			h.Caps.EndInTx = func(t testing.TB, s idempotency.Store, r idempotency.Reservation, e idempotency.Ending) func(bool) {
				if err := s.End(context.Background(), r, e); err != nil {
					t.Fatalf("End: %v", err)
				}
				return func(bool) {}
			}
		}},
		{"a rolled back transaction commits", "F7", func(h *storetest.Harness) {
			h.Caps.EndInTx = func(t testing.TB, s idempotency.Store, r idempotency.Reservation, e idempotency.Ending) func(bool) {
				return func(bool) {
					if err := s.End(context.Background(), r, e); err != nil {
						t.Errorf("commit: %v", err)
					}
				}
			}
		}},
		{"a lost reply takes the key with it", "R10LostReply", func(h *storetest.Harness) {
			h.Faults.LoseReply = func(t testing.TB, s idempotency.Store) {
				// Another's claim instead of the caller's: no Void frees it.
				stolen := idempotency.Claim{Key: firstKey(t), Owner: idempotency.NewOwner(), Terms: idempotency.Terms{Lease: 1e9, Retention: 1e9}}
				if _, err := s.Reserve(context.Background(), stolen); err != nil {
					t.Fatalf("Reserve: %v", err)
				}
			}
		}},
		{"a restart forgets", "R10Restart", func(h *storetest.Harness) {
			h.Faults.Restart = func(t testing.TB, s idempotency.Store) {
				s.(*shell).Records = newRecords(t, storetest.NewClock())
			}
		}},
	} {
		t.Run(strings.ReplaceAll(x.name, " ", "_"), func(t *testing.T) {
			h := shellHarness()
			x.spoil(&h)
			mustRefuse(t, h, x.caught)
		})
	}
}

// truncating loses the end of every payload.
type truncating struct{ *shell }

func (s *truncating) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	a, err := s.shell.Reserve(ctx, c)
	a.Record.Result.Payload = nil
	return a, err
}

// firstKey is the key that the suite's first claim of a case has: the case is
// run once, on a store that writes it down.
func firstKey(t testing.TB) idempotency.Key {
	t.Helper()
	spy := &spy{}
	h := storetest.Harness{New: func(t testing.TB, clock *storetest.Clock) idempotency.Store {
		spy.Store = newRecords(t, clock)
		return spy
	}}
	for _, c := range storetest.Cases(h) {
		if c.Name == "R1FreeKeyStarts" {
			c.Run(t, h)
		}
	}
	return spy.first
}

// spy is a store of which nothing is seen but idempotency.Store.
type spy struct {
	idempotency.Store
	first idempotency.Key
}

func (s *spy) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	if s.first == (idempotency.Key{}) {
		s.first = c.Key
	}
	return s.Store.Reserve(ctx, c)
}

// TestPlainStore shows that a store that has written no more than
// idempotency.Store can be tested.
func TestPlainStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{New: func(t testing.TB, clock *storetest.Clock) idempotency.Store {
		return struct{ idempotency.Store }{newRecords(t, clock)}
	}})
}

// TestOnlyLimits shows that a store of limits alone can be tested.
func TestOnlyLimits(t *testing.T) { storetest.RunLimits(t, memory()) }

func TestCapabilitiesMustBeTrue(t *testing.T) {
	undeclared := memory()
	undeclared.Caps = storetest.Capabilities{}
	mustRefuse(t, undeclared, "Capabilities")
	missing := memory()
	missing.New = func(t testing.TB, clock *storetest.Clock) idempotency.Store {
		return struct{ idempotency.Store }{newRecords(t, clock)}
	}
	mustRefuse(t, missing, "Capabilities StepsAre ListEmpty SettingsAre")
}

func TestNamesOfCasesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range storetest.Cases(shellHarness()) {
		if seen[c.Name] {
			t.Errorf("two cases are called %s", c.Name)
		}
		seen[c.Name] = true
	}
	for _, clause := range []string{
		"R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", "R12",
		"F1", "F2", "F3", "F4", "F5", "F6", "F7", "F9", "E1", "E2", "Q1", "Q2", "Q3", "Q4", "Q5", "Q6", "Q7",
	} {
		found := false
		for name := range seen {
			rest, begins := strings.CutPrefix(name, clause)
			found = found || begins && rest != "" && (rest[0] < '0' || rest[0] > '9')
		}
		if !found {
			t.Errorf("no case tests the clause %s", clause)
		}
	}
}
