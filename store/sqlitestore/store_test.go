package sqlitestore

import (
	"context"
	"crypto/rand"
	"path/filepath"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

var testTerms = idempotency.Terms{Lease: time.Minute, Retention: time.Hour, Quiet: time.Second}

func newKey() idempotency.Key {
	k := idempotency.Key{Tenant: "acme"}
	rand.Read(k.ID[:])
	return k
}

func newClaim(k idempotency.Key) idempotency.Claim {
	return idempotency.Claim{
		Key: k, Owner: idempotency.NewOwner(), Terms: testTerms,
		Prints: []idempotency.Fingerprint{{Tag: "json-1", Sum: [32]byte{1, 2, 3}}},
		Origin: idempotency.Origin{Method: "POST", Route: "POST /v1/orders", Trace: "4bf92f3577b34da6a3ce929d0e0e4736"},
	}
}

func open(t testing.TB, path string, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), path, o)
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

func newFile(t testing.TB) string { return filepath.Join(t.TempDir(), "keys.db") }

func start(t testing.TB, s idempotency.Store, c idempotency.Claim) idempotency.Reservation {
	t.Helper()
	a, err := s.Reserve(context.Background(), c)
	if err != nil || a.Outcome != idempotency.Started {
		t.Fatalf("Reserve: %v, %v: want started", a.Outcome, err)
	}
	return a.Reservation
}

func done(payload string) idempotency.Ending {
	return idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: []byte(payload)})
}

func TestPairAndReplay(t *testing.T) {
	ctx := context.Background()
	path := newFile(t)
	s := open(t, path, Options{})
	c := newClaim(newKey())
	r := start(t, s, c)
	if err := s.End(ctx, r, done("body")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, Options{})
	c.Owner = idempotency.NewOwner()
	a, err := s.Reserve(ctx, c)
	if err != nil || a.Outcome != idempotency.Replayed || string(a.Record.Result.Payload) != "body" {
		t.Fatalf("%v %v %q", a.Outcome, err, a.Record.Result.Payload)
	}
	if a.Record.Origin != c.Origin || len(a.Record.Prints) != 1 || a.Record.Prints[0] != c.Prints[0] {
		t.Errorf("the record came back as %+v", a.Record)
	}
}
