package pgstore

import (
	"context"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/pgserver"
	"github.com/escapement-dev/escapement/ratelimit"
)

// A program stands still in the middle of a transaction of the store's, with
// its connection open. The server ends that transaction, and others can write
// the record.
func TestFrozenProgramLetsGoOfItsRecords(t *testing.T) {
	ctx := context.Background()
	server := pgserver.Shared(t)
	frozen := openStore(t, server.URL(), Options{Schema: migrated(t, server), Timeout: time.Second})
	other := openStore(t, server.URL(), Options{Schema: frozen.o.Schema, LockWait: 20 * time.Second})
	r := start(t, other, newClaim(newKey()))
	w, err := frozen.wire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer w.release()
	u := &unit{s: frozen, conn: w.conn, entries: map[idempotency.ID]*entry{}}
	if err := u.lock([]*change{{id: r.Key.ID, rank: rankOwner}}); err != nil {
		t.Fatal(err)
	}
	if !u.entries[r.Key.ID].found {
		t.Fatal("the record is not locked")
	}
	if err := other.End(ctx, r, idempotency.NotRun()); err != nil {
		t.Fatalf("while a frozen program holds the record: %v", err)
	}
	if err := u.write(nil); err == nil {
		t.Error("the frozen program has committed")
	}
	start(t, other, newClaim(r.Key))
}

// The same with buckets: another program's requests are decided again.
func TestFrozenProgramLetsGoOfItsBuckets(t *testing.T) {
	ctx := context.Background()
	server := pgserver.Shared(t)
	frozen := openStore(t, server.URL(), Options{Schema: migrated(t, server), Timeout: time.Second})
	l := frozen.Limits(LimitsOptions{})
	other := openStore(t, server.URL(), Options{Schema: frozen.o.Schema}).Limits(LimitsOptions{})
	charge := []ratelimit.Charge{{Rule: ratelimit.Rule{Name: "tenant", Quota: 10, Window: time.Minute}, Subject: "acme", Cost: 1}}
	if d, err := other.Take(ctx, charge); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	w, err := frozen.wire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer w.release()
	u := l.unit(w, []*limitOp{{ids: []string{limitID("tenant", "acme")}}})
	if err := u.lock(); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(20 * time.Second); ; {
		d, err := other.Take(ctx, charge)
		if err == nil && d.Allowed {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("while a frozen program holds the bucket: %+v, %v", d, err)
		}
	}
	if _, err := u.end(); err == nil {
		t.Error("the frozen program has committed")
	}
}
