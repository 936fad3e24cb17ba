package escapement_test

import (
	"context"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
)

func benchGate(b *testing.B) *escapement.Gate {
	b.Helper()
	records, err := memstore.NewRecords(memstore.RecordsOptions{MaxRecords: 1 << 30, MaxBytes: 1 << 50})
	if err != nil {
		b.Fatal(err)
	}
	limits, err := memstore.NewLimits(memstore.LimitsOptions{})
	if err != nil {
		b.Fatal(err)
	}
	g, err := escapement.New(escapement.Options{Records: records, Limits: limits})
	if err != nil {
		b.Fatal(err)
	}
	return g
}

func nothing(context.Context, *escapement.Run) idempotency.Ending {
	return idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 201})
}

func benchDo(b *testing.B, g *escapement.Gate, next func(i uint64) escapement.Request, want escapement.Outcome) {
	b.Helper()
	b.ReportAllocs()
	var i uint64
	for b.Loop() {
		i++
		if v, err := g.Do(b.Context(), next(i), nothing); err != nil || v.Outcome != want {
			b.Fatal(v.Outcome, err)
		}
	}
}

// A request without a key and one limit.
func BenchmarkDoUnkeyedLimited(b *testing.B) {
	r := escapement.Request{Charges: []ratelimit.Charge{{
		Rule:    ratelimit.Rule{Name: "client", Quota: 1_000_000_000, Window: time.Second},
		Subject: "client", Cost: 1,
	}}}
	benchDo(b, benchGate(b), func(uint64) escapement.Request { return r }, escapement.Admitted)
}

// A request with neither.
func BenchmarkDoUnkeyed(b *testing.B) {
	benchDo(b, benchGate(b), func(uint64) escapement.Request { return escapement.Request{} }, escapement.Admitted)
}

// A new key each time: claim, run, record.
func BenchmarkDoKeyedFirst(b *testing.B) {
	benchDo(b, benchGate(b), request, escapement.Admitted)
}

// One key that is done: a replay.
func BenchmarkDoKeyedReplay(b *testing.B) {
	g := benchGate(b)
	if _, err := g.Do(b.Context(), request(0), nothing); err != nil {
		b.Fatal(err)
	}
	benchDo(b, g, func(uint64) escapement.Request { return request(0) }, escapement.Replayed)
}
