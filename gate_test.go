package escapement_test

import (
	"context"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/memstore"
)

func TestDoOnceThenReplay(t *testing.T) {
	s, err := memstore.NewRecords(memstore.RecordsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g, err := escapement.New(escapement.Options{Records: s})
	if err != nil {
		t.Fatal(err)
	}
	r := escapement.Request{Key: idempotency.Key{ID: idempotency.ID{1}, Tenant: "t"}, Policy: escapement.DefaultPolicy()}
	ran := 0
	fn := func(context.Context, *escapement.Run) idempotency.Ending {
		ran++
		return idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: []byte("one")})
	}
	v, err := g.Do(t.Context(), r, fn)
	if err != nil || v.Outcome != escapement.Admitted || !v.Ran || !v.Recorded {
		t.Fatalf("first: %+v, %v", v, err)
	}
	v, err = g.Do(t.Context(), r, fn)
	if err != nil || v.Outcome != escapement.Replayed || string(v.Record.Result.Payload) != "one" || ran != 1 {
		t.Fatalf("second: %+v, %v, ran %d times", v, err, ran)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := g.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
}
