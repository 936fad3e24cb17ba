package storetest_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/memstore"
	"github.com/escapement-dev/escapement/store/storetest"
)

type (
	ctx         = context.Context
	reservation = idempotency.Reservation
	ending      = idempotency.Ending
	key         = idempotency.Key
	claim       = idempotency.Claim
	answer      = idempotency.Answer
)

// mutant is memstore with one fault. A method whose fault is nil is right.
type mutant struct {
	*memstore.Records
	clock *storetest.Clock

	mu    sync.Mutex
	calls int
	kept  map[idempotency.ID][]byte

	reserve func(m *mutant, c ctx, cl claim) (answer, error)
	extend  func(m *mutant, c ctx, r reservation, d time.Duration) (time.Time, error)
	end     func(m *mutant, c ctx, r reservation, e ending) error
	void    func(m *mutant, c ctx, k key, o idempotency.Owner) error
	lookup  func(m *mutant, c ctx, k key) (idempotency.Record, error)
	step    func(m *mutant, c ctx, r reservation, s idempotency.Step) error
	sweep   func(m *mutant, c ctx, limit int) (int, error)
	list    func(m *mutant, c ctx, f idempotency.Filter) (idempotency.Page, error)
	settle  func(m *mutant, c ctx, k key, v idempotency.Revision, r idempotency.Result) error
	forget  func(m *mutant, c ctx, k key, v idempotency.Revision) error
	put     func(m *mutant, c ctx, name string, value []byte, version int64) error
	log     func(m *mutant, c ctx, e idempotency.AuditEntry) error
}

func (m *mutant) Reserve(c ctx, cl claim) (answer, error) {
	if m.reserve != nil {
		return m.reserve(m, c, cl)
	}
	return m.Records.Reserve(c, cl)
}

func (m *mutant) Extend(c ctx, r reservation, d time.Duration) (time.Time, error) {
	if m.extend != nil {
		return m.extend(m, c, r, d)
	}
	return m.Records.Extend(c, r, d)
}

func (m *mutant) End(c ctx, r reservation, e ending) error {
	if m.end != nil {
		return m.end(m, c, r, e)
	}
	return m.Records.End(c, r, e)
}

func (m *mutant) Void(c ctx, k key, o idempotency.Owner) error {
	if m.void != nil {
		return m.void(m, c, k, o)
	}
	return m.Records.Void(c, k, o)
}

func (m *mutant) Lookup(c ctx, k key) (idempotency.Record, error) {
	if m.lookup != nil {
		return m.lookup(m, c, k)
	}
	return m.Records.Lookup(c, k)
}

func (m *mutant) SaveStep(c ctx, r reservation, s idempotency.Step) error {
	if m.step != nil {
		return m.step(m, c, r, s)
	}
	return m.Records.SaveStep(c, r, s)
}

func (m *mutant) Sweep(c ctx, limit int) (int, error) {
	if m.sweep != nil {
		return m.sweep(m, c, limit)
	}
	return m.Records.Sweep(c, limit)
}

func (m *mutant) List(c ctx, f idempotency.Filter) (idempotency.Page, error) {
	if m.list != nil {
		return m.list(m, c, f)
	}
	return m.Records.List(c, f)
}

func (m *mutant) Settle(c ctx, k key, v idempotency.Revision, r idempotency.Result) error {
	if m.settle != nil {
		return m.settle(m, c, k, v, r)
	}
	return m.Records.Settle(c, k, v, r)
}

func (m *mutant) Forget(c ctx, k key, v idempotency.Revision) error {
	if m.forget != nil {
		return m.forget(m, c, k, v)
	}
	return m.Records.Forget(c, k, v)
}

func (m *mutant) PutIf(c ctx, name string, value []byte, version int64) error {
	if m.put != nil {
		return m.put(m, c, name, value, version)
	}
	return m.Records.PutIf(c, name, value, version)
}

func (m *mutant) Append(c ctx, e idempotency.AuditEntry) error {
	if m.log != nil {
		return m.log(m, c, e)
	}
	return m.Records.Append(c, e)
}

// holder is the reservation that the record says owns the key.
func (m *mutant) holder(c ctx, k key) (reservation, idempotency.Record) {
	rec, _ := m.Records.Lookup(c, k)
	return reservation{Key: k, Owner: rec.Owner, Token: rec.Token, LeaseEnd: rec.LeaseEnd}, rec
}

// terms is a fault in what a claim asks for.
func terms(change func(t *idempotency.Terms)) func(m *mutant) {
	return func(m *mutant) {
		m.reserve = func(m *mutant, c ctx, cl claim) (answer, error) {
			if cl.Validate() == nil {
				change(&cl.Terms)
			}
			return m.Records.Reserve(c, cl)
		}
	}
}

// answers is a fault in what Reserve says.
func answers(change func(m *mutant, c ctx, cl claim, a *answer)) func(m *mutant) {
	return func(m *mutant) {
		m.reserve = func(m *mutant, c ctx, cl claim) (answer, error) {
			a, err := m.Records.Reserve(c, cl)
			if err == nil {
				change(m, c, cl, &a)
			}
			return a, err
		}
	}
}

// ends is a fault in what End is told.
func ends(change func(m *mutant, r *reservation, e *ending)) func(m *mutant) {
	return func(m *mutant) {
		m.end = func(m *mutant, c ctx, r reservation, e ending) error {
			change(m, &r, &e)
			return m.Records.End(c, r, e)
		}
	}
}

func TestSuiteRefusesMutants(t *testing.T) {
	for _, x := range mutants {
		t.Run(strings.ReplaceAll(x.name, " ", "_"), func(t *testing.T) {
			h := memory()
			h.New = func(t testing.TB, clock *storetest.Clock) idempotency.Store {
				m := &mutant{Records: newRecords(t, clock), clock: clock, kept: map[idempotency.ID][]byte{}}
				x.spoil(m)
				return m
			}
			mustRefuse(t, h, x.caught)
		})
	}
}

// mustRefuse demands that for each of the beginnings a case fails whose name
// begins so. Random cases may be tried several times.
func mustRefuse(t *testing.T, h storetest.Harness, beginnings string) {
	t.Helper()
	for _, begin := range strings.Fields(beginnings) {
		caught, names := false, 0
		for _, c := range storetest.Cases(h) {
			if !strings.HasPrefix(c.Name, begin) || caught {
				continue
			}
			names++
			tries := 1
			if strings.HasPrefix(c.Name, "Machine") || strings.HasPrefix(c.Name, "History") || strings.HasPrefix(c.Name, "Property") {
				tries = 20
			}
			for i := 0; i < tries && !caught; i++ {
				failed, log := fails(t, c, h)
				if failed {
					caught = true
					t.Logf("%s: %s", c.Name, firstLine(log))
				}
			}
		}
		if names == 0 {
			t.Errorf("no case begins with %q", begin)
		} else if !caught {
			t.Errorf("no case %q... fails", begin)
		}
	}
}

// TestSuitePassesTheRightStore shows that the recorder does not make cases
// fail: without a fault, the wrapper passes.
func TestSuitePassesTheRightStore(t *testing.T) {
	h := memory()
	h.New = func(t testing.TB, clock *storetest.Clock) idempotency.Store {
		return &mutant{Records: newRecords(t, clock), clock: clock}
	}
	for _, c := range storetest.Cases(h) {
		if failed, log := fails(t, c, h); failed {
			t.Errorf("%s fails: %s", c.Name, log)
		}
	}
}

func firstLine(s string) string {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "[rapid]") && !strings.HasPrefix(line, "To reproduce") {
			return line
		}
	}
	return s
}
