package storetest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/memstore"
	"github.com/escapement-dev/escapement/store/storetest"
)

// bounded is a memstore with bounds, and its clock.
func bounded(t *testing.T, records int, bytes int64) (*memstore.Records, *storetest.Clock) {
	t.Helper()
	clock := storetest.NewClock()
	s, err := memstore.NewRecords(memstore.RecordsOptions{Now: clock.Now, MaxRecords: records, MaxBytes: bytes})
	if err != nil {
		t.Fatal(err)
	}
	return s, clock
}

func claimOf(n byte, onUnknown idempotency.OnUnknown) idempotency.Claim {
	return idempotency.Claim{
		Key: idempotency.Key{ID: idempotency.ID{0: n * 37, 1: n, 31: 1}, Tenant: "acme"}, Owner: idempotency.NewOwner(),
		Terms: idempotency.Terms{Lease: time.Minute, Retention: time.Hour, OnUnknown: onUnknown},
	}
}

func reserve(t *testing.T, s idempotency.Store, c idempotency.Claim) idempotency.Reservation {
	t.Helper()
	a, err := s.Reserve(context.Background(), c)
	if err != nil || a.Outcome != idempotency.Started {
		t.Fatalf("Reserve is %v, %v", a.Outcome, err)
	}
	return a.Reservation
}

func succeed(t *testing.T, s idempotency.Store, r idempotency.Reservation, payload string) {
	t.Helper()
	res := idempotency.Result{Class: idempotency.Succeeded, Payload: []byte(payload)}
	if err := s.End(context.Background(), r, idempotency.Done(res)); err != nil {
		t.Fatalf("End: %v", err)
	}
}

func TestRecordsRefuseRatherThanForget(t *testing.T) {
	ctx := context.Background()
	s, clock := bounded(t, 8, 0)
	var held []idempotency.Reservation
	for i := range byte(8) {
		held = append(held, reserve(t, s, claimOf(i+1, idempotency.OnUnknown(i%4))))
	}
	late := claimOf(100, idempotency.Hold)
	if _, err := s.Reserve(ctx, late); !errors.Is(err, idempotency.ErrFull) {
		t.Fatalf("Reserve of a new key when all are live: %v, want ErrFull", err)
	}
	if err := s.Void(ctx, late.Key, late.Owner); !errors.Is(err, idempotency.ErrFull) {
		t.Fatalf("Void of a new key when all are live: %v, want ErrFull", err)
	}
	for i, r := range held { // calls about keys that are there go on
		c := claimOf(byte(i+1), idempotency.Hold)
		if a, err := s.Reserve(ctx, c); err != nil || a.Outcome != idempotency.InProgress {
			t.Fatalf("Reserve of a held key when full is %v, %v", a.Outcome, err)
		}
		if err := s.Void(ctx, r.Key, c.Owner); err != nil {
			t.Fatalf("Void of another's attempt when full: %v", err)
		}
		if _, err := s.Extend(ctx, r, 2*time.Minute); err != nil {
			t.Fatalf("Extend when full: %v", err)
		}
	}
	succeed(t, s, held[3], "the first to be over")
	clock.Advance(time.Hour - time.Microsecond)
	if _, err := s.Reserve(ctx, late); !errors.Is(err, idempotency.ErrFull) && err != nil {
		t.Fatalf("Reserve: %v", err)
	}
	if rec, err := s.Lookup(ctx, held[3].Key); err != nil || rec.State != idempotency.Ended {
		t.Fatalf("1µs before its time the result is %v, %v", rec.State, err)
	}
	clock.Advance(time.Microsecond)
	reserve(t, s, claimOf(101, idempotency.Hold))
	for _, i := range []int{0, 2} { // hold and probe: unknown, and never forgotten
		if rec, err := s.Lookup(ctx, held[i].Key); err != nil || rec.Owner != held[i].Owner {
			t.Fatalf("an unknown record was forgotten: %v", err)
		}
	}
	if s.Len() > 8 {
		t.Fatalf("the store has %d records, and its bound is 8", s.Len())
	}
}

func TestRecordsKeepWhatAttemptsBringHome(t *testing.T) {
	ctx := context.Background()
	s, clock := bounded(t, 0, 16<<10)
	first := reserve(t, s, claimOf(1, idempotency.Hold))
	second := reserve(t, s, claimOf(2, idempotency.Hold))
	big := strings.Repeat("x", 1<<20)
	succeed(t, s, first, big)
	if s.Bytes() < 1<<20 {
		t.Fatalf("a payload of 1 MiB counts %d bytes", s.Bytes())
	}
	if _, err := s.Reserve(ctx, claimOf(3, idempotency.Hold)); !errors.Is(err, idempotency.ErrFull) {
		t.Fatalf("Reserve of a new key over the bound: %v, want ErrFull", err)
	}
	succeed(t, s, second, big)
	for _, r := range []idempotency.Reservation{first, second} {
		if rec, err := s.Lookup(ctx, r.Key); err != nil || len(rec.Result.Payload) != 1<<20 {
			t.Fatalf("the result has %d bytes, %v", len(rec.Result.Payload), err)
		}
	}
	clock.Advance(time.Hour)
	reserve(t, s, claimOf(3, idempotency.Hold))
	if s.Bytes() > 16<<10 {
		t.Fatalf("after the results expired the store counts %d bytes", s.Bytes())
	}
}

func TestRecordsLeaveNothingBehind(t *testing.T) {
	ctx := context.Background()
	s, clock := bounded(t, 0, 0)
	for i := range byte(200) {
		c := claimOf(i, idempotency.OnUnknown(i%4))
		c.Terms.Remember = time.Duration(i%2) * time.Hour
		r := reserve(t, s, c)
		if i%2 == 0 {
			if err := s.SaveStep(ctx, r, idempotency.Step{Name: "pay", Done: true, Answer: []byte("paid")}); err != nil {
				t.Fatal(err)
			}
		}
		switch i % 5 {
		case 0:
			if err := s.End(ctx, r, idempotency.Done(idempotency.Result{Class: idempotency.FailedRetryable})); err != nil {
				t.Fatal(err)
			}
		case 1, 2:
			succeed(t, s, r, strings.Repeat("x", int(i)))
		case 3: // it goes on for a while
			if _, err := s.Extend(ctx, r, 2*time.Minute); err != nil {
				t.Fatal(err)
			}
			succeed(t, s, r, "late")
		default:
			if err := s.Void(ctx, c.Key, c.Owner); err != nil {
				t.Fatal(err)
			}
		}
	}
	clock.Advance(100 * time.Hour)
	for range 1000 {
		if n, err := s.Sweep(ctx, 3); err != nil || n == 0 {
			break
		}
	}
	left := 0
	page, err := s.List(ctx, idempotency.Filter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range page.Records { // a step makes a voided attempt unknown: that is kept
		if r.Status() != idempotency.StatusUnknown {
			t.Fatalf("after everything expired there is a record that is %v", r.Status())
		}
		left++
		if err := s.Forget(ctx, r.Key, r.Revision); err != nil {
			t.Fatal(err)
		}
	}
	if left == 0 || left == 200 {
		t.Fatalf("%d unknown records are left: want some, not all", left)
	}
	clock.Advance(time.Hour)
	if _, err := s.Sweep(ctx, 1000); err != nil {
		t.Fatal(err)
	}
	if s.Len() != 0 || s.Bytes() != 0 {
		t.Fatalf("an empty store has %d records and counts %d bytes", s.Len(), s.Bytes())
	}
}

func TestRecordsGiveBackWhatDidNotRun(t *testing.T) {
	s, _ := bounded(t, 1, 0)
	for i := range byte(50) {
		r := reserve(t, s, claimOf(i+1, idempotency.Hold))
		if err := s.End(context.Background(), r, idempotency.NotRun()); err != nil {
			t.Fatal(err)
		}
	}
	if s.Len() != 0 {
		t.Fatalf("after NotRun the store has %d records", s.Len())
	}
}

func TestRecordsKeepTheirBoundUnderConcurrency(t *testing.T) {
	const most, callers, keys = 50, 16, 40
	ctx := context.Background()
	s, _ := bounded(t, most, 0)
	var wait sync.WaitGroup
	var mu sync.Mutex
	started, full := 0, 0
	for g := range callers {
		wait.Go(func() {
			for i := range keys {
				c := claimOf(byte(i), idempotency.Hold)
				c.Key.ID[2] = byte(g)
				a, err := s.Reserve(ctx, c)
				mu.Lock()
				switch {
				case err == nil && a.Outcome == idempotency.Started:
					started++
				case errors.Is(err, idempotency.ErrFull):
					full++
				default:
					t.Errorf("Reserve is %v, %v", a.Outcome, err)
				}
				mu.Unlock()
				if n := s.Len(); n > most+callers { // each caller may be counting one that it takes back
					t.Errorf("the store has %d records", n)
				}
			}
		})
	}
	wait.Wait()
	if started != most || full != callers*keys-most || s.Len() != most {
		t.Fatalf("%d started, %d were refused, %d are there: the bound is %d", started, full, s.Len(), most)
	}
}

func TestSettingsAreBounded(t *testing.T) {
	ctx := context.Background()
	s, _ := bounded(t, 0, 4<<10)
	if err := s.PutIf(ctx, "small", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.PutIf(ctx, "large", make([]byte, 8<<10), 0); !errors.Is(err, idempotency.ErrFull) {
		t.Fatalf("PutIf over the bound: %v, want ErrFull", err)
	}
	n := 0
	var err error
	for n < 1000 && err == nil {
		err = s.Append(ctx, idempotency.AuditEntry{Who: "ana", Why: strings.Repeat("y", 100)})
		n++
	}
	if !errors.Is(err, idempotency.ErrFull) {
		t.Fatalf("after %d entries Append returns %v, want ErrFull", n, err)
	}
	if got, err := s.Audit(ctx, 0, 1000); err != nil || len(got) != n-1 {
		t.Fatalf("the audit log has %d entries, want %d, %v", len(got), n-1, err)
	}
}

func TestRecordsCutToMicroseconds(t *testing.T) {
	ctx := context.Background()
	s, _ := bounded(t, 0, 0)
	c := claimOf(1, idempotency.Hold)
	c.Terms.Lease, c.Terms.Retention, c.Terms.Quiet = time.Second+1, time.Hour+999, 1
	r := reserve(t, s, c)
	res := idempotency.Result{Class: idempotency.FailedRetryable, Window: time.Minute + 1}
	for range 2 {
		if err := s.End(ctx, r, idempotency.Done(res)); err != nil {
			t.Fatalf("End: %v", err)
		}
	}
	rec, err := s.Lookup(ctx, c.Key)
	if err != nil || rec.Terms != (idempotency.Terms{Lease: time.Second, Retention: time.Hour}) ||
		rec.WindowEnd.Sub(rec.Updated) != time.Minute || rec.Result.Window != time.Minute {
		t.Fatalf("the record has the terms %+v, a window of %v that ends %v after the end, %v",
			rec.Terms, rec.Result.Window, rec.WindowEnd.Sub(rec.Updated), err)
	}
}

func TestRecordsOptionsNameEveryFault(t *testing.T) {
	_, err := memstore.NewRecords(memstore.RecordsOptions{MaxRecords: -1, MaxBytes: -1})
	if err == nil || !strings.Contains(err.Error(), "MaxRecords") || !strings.Contains(err.Error(), "MaxBytes") {
		t.Fatalf("the error is %v: want it to name both options", err)
	}
}

func TestListRefusesFaultyFilters(t *testing.T) {
	s, _ := bounded(t, 0, 0)
	for _, f := range []idempotency.Filter{{Limit: -1}, {Limit: 1001}, {Cursor: "not ours"}} {
		if _, err := s.List(context.Background(), f); err == nil {
			t.Errorf("List(%+v) returns nil, want an error", f)
		}
	}
}

func TestEveryCallMindsItsContext(t *testing.T) {
	s, _ := bounded(t, 0, 0)
	c := claimOf(1, idempotency.Hold)
	r := reserve(t, s, c)
	before, err := s.Lookup(context.Background(), c.Key)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for name, call := range map[string]func() error{
		"Reserve":  func() error { _, err := s.Reserve(ctx, claimOf(2, idempotency.Hold)); return err },
		"Extend":   func() error { _, err := s.Extend(ctx, r, time.Hour); return err },
		"End":      func() error { return s.End(ctx, r, idempotency.NotRun()) },
		"Void":     func() error { return s.Void(ctx, r.Key, r.Owner) },
		"Lookup":   func() error { _, err := s.Lookup(ctx, r.Key); return err },
		"SaveStep": func() error { return s.SaveStep(ctx, r, idempotency.Step{Name: "pay"}) },
		"Sweep":    func() error { _, err := s.Sweep(ctx, 1); return err },
		"List":     func() error { _, err := s.List(ctx, idempotency.Filter{}); return err },
		"Settle": func() error {
			return s.Settle(ctx, r.Key, before.Revision, idempotency.Result{Class: idempotency.Succeeded})
		},
		"Forget": func() error { return s.Forget(ctx, r.Key, before.Revision) },
		"Get":    func() error { _, _, err := s.Get(ctx, "x"); return err },
		"PutIf":  func() error { return s.PutIf(ctx, "x", nil, 0) },
		"Append": func() error { return s.Append(ctx, idempotency.AuditEntry{}) },
		"Audit":  func() error { _, err := s.Audit(ctx, 0, 0); return err },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with an ended context returns %v", name, err)
		}
	}
	if after, err := s.Lookup(context.Background(), c.Key); err != nil || after.Revision != before.Revision || s.Len() != 1 {
		t.Errorf("calls with an ended context changed the store: revision %d, was %d, %d records, %v", after.Revision, before.Revision, s.Len(), err)
	}
}
