package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// patience is how long the suite waits, in real time, for what must come
// without waiting for anybody. It passes only where a store hangs.
const patience = 30 * time.Second

// env is one test's store and clock.
type env struct {
	testing.TB
	h     Harness
	clock *Clock
	s     idempotency.Store

	mu      sync.Mutex
	current context.Context // ends with the patience
	since   time.Time
}

func newEnv(t testing.TB, h Harness) *env {
	t.Helper()
	clock := NewClock()
	return &env{TB: t, h: h, clock: clock, s: h.New(t, clock)}
}

// ctx returns a context that lasts for at least half of the patience.
func (e *env) ctx() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current == nil || time.Since(e.since) > patience/2 {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		e.Cleanup(cancel)
		e.current, e.since = ctx, time.Now()
	}
	return e.current
}

func (e *env) steps() idempotency.StepStore   { return optional[idempotency.StepStore](e) }
func (e *env) keeper() idempotency.Keeper     { return optional[idempotency.Keeper](e) }
func (e *env) settings() idempotency.Settings { return optional[idempotency.Settings](e) }

// optional is the store as an interface that its harness says it has.
func optional[T any](e *env) T {
	s, has := e.s.(T)
	if !has {
		e.Fatalf("the harness says that the store is a %T, and it is not", (*T)(nil))
	}
	return s
}

// testKey is the n-th key of a test, of the tenant "acme".
func testKey(n int) idempotency.Key { return tenantKey("acme", n) }

func tenantKey(tenant string, n int) idempotency.Key {
	return idempotency.Key{ID: sha256.Sum256(fmt.Appendf(nil, "storetest %s %d", tenant, n)), Tenant: tenant}
}

// printOf is the fingerprint of what a request means, with a tag.
func printOf(tag, meaning string) idempotency.Fingerprint {
	return idempotency.Fingerprint{Tag: tag, Sum: sha256.Sum256([]byte(meaning))}
}

// Times of the terms that tests use unless they say otherwise.
const (
	lease     = 10 * time.Second
	quiet     = 5 * time.Second
	retention = time.Hour
	tick      = time.Microsecond
)

// terms are the usual terms with the given policy.
func terms(u idempotency.OnUnknown) idempotency.Terms {
	return idempotency.Terms{Lease: lease, Retention: retention, Quiet: quiet, OnUnknown: u}
}

// claim is a fresh attempt to own k.
func claim(k idempotency.Key, u idempotency.OnUnknown) idempotency.Claim {
	return idempotency.Claim{
		Key: k, Prints: []idempotency.Fingerprint{printOf("v1", "the request")}, Owner: idempotency.NewOwner(),
		Terms: terms(u), Origin: idempotency.Origin{Method: "POST", Route: "/orders", Trace: "0af7651916cd43dd8448eb211c80319c"},
	}
}

// again is the claim of another attempt for the same.
func again(c idempotency.Claim) idempotency.Claim {
	c.Owner = idempotency.NewOwner()
	return c
}

// ok is a result that succeeded.
func ok(payload string) idempotency.Result {
	return idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: []byte(payload)}
}

// later is a result that may run again after its window.
func later(payload string, window time.Duration) idempotency.Result {
	return idempotency.Result{Class: idempotency.FailedRetryable, Status: 503, Payload: []byte(payload), Window: window}
}

// reserve reserves and demands the outcome.
func (e *env) reserve(c idempotency.Claim, want idempotency.Outcome) idempotency.Answer {
	e.Helper()
	a, err := e.s.Reserve(e.ctx(), c)
	if err != nil {
		e.Fatalf("Reserve: %v", err)
	}
	if a.Outcome != want {
		e.Fatalf("Reserve is %v, want %v; the record is %v", a.Outcome, want, show(a.Record))
	}
	if want != idempotency.Started {
		if a.Reservation != (idempotency.Reservation{}) {
			e.Fatalf("Reserve is %v and has the reservation %+v", want, a.Reservation)
		}
		return a
	}
	r := a.Reservation
	if r.Key != c.Key || r.Owner != c.Owner || r.Token < 1 {
		e.Fatalf("the reservation is %+v: want the claim's key and owner, and a token of at least 1", r)
	}
	return a
}

// start reserves and demands the key.
func (e *env) start(c idempotency.Claim) idempotency.Reservation {
	e.Helper()
	return e.reserve(c, idempotency.Started).Reservation
}

func (e *env) end(r idempotency.Reservation, g idempotency.Ending) {
	e.Helper()
	if err := e.s.End(e.ctx(), r, g); err != nil {
		e.Fatalf("End(%v): %v", g.Kind, err)
	}
}

func (e *env) done(r idempotency.Reservation, res idempotency.Result) {
	e.Helper()
	e.end(r, idempotency.Done(res))
}

func (e *env) extend(r idempotency.Reservation, d time.Duration) time.Time {
	e.Helper()
	end, err := e.s.Extend(e.ctx(), r, d)
	if err != nil {
		e.Fatalf("Extend: %v", err)
	}
	return end
}

func (e *env) void(k idempotency.Key, o idempotency.Owner) {
	e.Helper()
	if err := e.s.Void(e.ctx(), k, o); err != nil {
		e.Fatalf("Void: %v", err)
	}
}

func (e *env) saveStep(r idempotency.Reservation, s idempotency.Step) {
	e.Helper()
	if err := e.steps().SaveStep(e.ctx(), r, s); err != nil {
		e.Fatalf("SaveStep(%q): %v", s.Name, err)
	}
}

func (e *env) sweep(limit int) int {
	e.Helper()
	n, err := e.keeper().Sweep(e.ctx(), limit)
	if err != nil {
		e.Fatalf("Sweep: %v", err)
	}
	if n < 0 || n > limit {
		e.Fatalf("Sweep(%d) removed %d (E1)", limit, n)
	}
	return n
}

// sweepAll sweeps until nothing is left to remove.
func (e *env) sweepAll() (n int) {
	e.Helper()
	for range 1000 {
		got := e.sweep(100)
		if got == 0 {
			return n
		}
		n += got
	}
	e.Fatal("Sweep finds something to remove without end")
	return n
}

func (e *env) lookup(k idempotency.Key) idempotency.Record {
	e.Helper()
	r, err := e.s.Lookup(e.ctx(), k)
	if err != nil {
		e.Fatalf("Lookup: %v", err)
	}
	return r
}

// free demands that Lookup finds nothing.
func (e *env) free(k idempotency.Key) {
	e.Helper()
	r, err := e.s.Lookup(e.ctx(), k)
	e.isErr("Lookup", err, idempotency.ErrNotFound)
	if err == nil {
		e.Fatalf("Lookup finds %v, want nothing", show(r))
	}
}

func (e *env) isErr(what string, err, want error) {
	e.Helper()
	if !errors.Is(err, want) {
		e.Fatalf("%s returns %v, want %v", what, err, want)
	}
}

// fenced demands ErrFenced, and that the record did not change.
func (e *env) fenced(what string, k idempotency.Key, f func() error) {
	e.Helper()
	before, errBefore := e.s.Lookup(e.ctx(), k)
	err := f()
	e.isErr(what, err, idempotency.ErrFenced)
	after, errAfter := e.s.Lookup(e.ctx(), k)
	if errBefore != nil || errAfter != nil {
		if !errors.Is(errBefore, idempotency.ErrNotFound) || !errors.Is(errAfter, idempotency.ErrNotFound) {
			e.Fatalf("Lookup before and after %s: %v and %v", what, errBefore, errAfter)
		}
		return
	}
	e.same("after "+what+", which is fenced,", after, before)
	if before.Revision != after.Revision {
		e.Fatalf("%s is fenced and the revision went from %d to %d", what, before.Revision, after.Revision)
	}
}

// same demands that two records say the same.
func (e *env) same(what string, got, want idempotency.Record) {
	e.Helper()
	if d := diff(got, want); d != "" {
		e.Fatalf("%s the record differs: %s", what, d)
	}
}

// at demands that a time is the expected one.
func (e *env) at(what string, got, want time.Time) {
	e.Helper()
	if !got.Equal(want) {
		e.Fatalf("%s is %v, want %v", what, got.UTC().Format(time.RFC3339Nano), want.UTC().Format(time.RFC3339Nano))
	}
}
