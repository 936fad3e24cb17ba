package storetest

import (
	"fmt"

	"github.com/escapement-dev/escapement/idempotency"
)

func needsReopen(h Harness) bool { return h.Caps.Reopen != nil }

// reopen lets go of the store as if its process had been killed, and goes on
// with another on the same data.
func (e *env) reopen() {
	e.Helper()
	e.s = e.h.Caps.Reopen(e, e.s, e.clock)
}

// reopenCases test that what was answered survives a kill.
var reopenCases = []Case{
	recordCase("ReopenFindsEveryRecordAsItWas", needsReopen, func(e *env) {
		held := claim(testKey(1), idempotency.Probe)
		r := e.start(held)
		if e.h.Caps.Steps {
			e.saveStep(r, idempotency.Step{Name: "pay", ProviderKey: "pk"})
		}
		r.LeaseEnd = e.extend(r, 2*lease)
		done := claim(testKey(2), idempotency.Hold)
		done.Terms.Remember = retention
		e.done(e.start(done), ok("kept"))
		retry := claim(testKey(3), idempotency.Hold)
		e.done(e.start(retry), later("busy", quiet))
		gone := claim(testKey(4), idempotency.Hold)
		e.void(gone.Key, gone.Owner)
		notRun := claim(testKey(5), idempotency.Hold)
		e.end(e.start(notRun), idempotency.NotRun())
		unknown := claim(testKey(6), idempotency.Hold)
		e.end(e.start(unknown), idempotency.UnknownEnding())
		before := map[idempotency.Key]idempotency.Record{}
		for _, c := range []idempotency.Claim{held, done, retry, unknown} {
			before[c.Key] = e.lookup(c.Key)
		}
		for range 2 {
			e.reopen()
			for k, rec := range before {
				got := e.lookup(k)
				e.same("after a kill", got, rec)
				if got.Revision != rec.Revision {
					e.Fatalf("after a kill the revision is %d, want %d", got.Revision, rec.Revision)
				}
			}
			e.free(notRun.Key)
			e.reserve(gone, idempotency.Refused)
		}
		e.reserve(again(unknown), idempotency.Unknown)
		e.reserve(again(done), idempotency.Replayed)
		e.clock.Set(r.LeaseEnd.Add(quiet))
		second := e.start(again(held))
		if !second.Takeover || second.Token <= r.Token {
			e.Fatalf("the takeover after a kill is %+v: want a token above %d", second, r.Token)
		}
		e.reopen()
		e.refuses(held.Key, r)
		e.done(second, ok("in the end"))
		e.start(again(retry))
	}),
	recordCase("ReopenKeepsWhatManyAtOnceWereAnswered", needsReopen, func(e *env) {
		for round := range e.h.times(3) {
			const n = 16
			claims := make([]idempotency.Claim, n)
			for i := range n {
				claims[i] = claim(testKey(1000*round+i), idempotency.Hold)
			}
			ctx := e.ctx()
			errs := together(n, func(i int) error {
				a, err := e.s.Reserve(ctx, claims[i])
				if err := outcome(a, err)(idempotency.Started); err != nil {
					return err
				}
				return e.s.End(ctx, a.Reservation, idempotency.Done(ok(fmt.Sprint(i))))
			})
			for _, err := range errs {
				if err != nil {
					e.Fatalf("before the kill: %v", err)
				}
			}
			e.reopen()
			for i := range n {
				if a := e.reserve(again(claims[i]), idempotency.Replayed); string(a.Record.Result.Payload) != fmt.Sprint(i) {
					e.Fatalf("after a kill the replay is %s", showResult(a.Record.Result))
				}
			}
		}
	}),
	recordCase("ReopenKeepsSettings", func(h Harness) bool { return needsReopen(h) && needsSettings(h) }, func(e *env) {
		e.put("secret", []byte("a"), 0)
		_, version := e.get("secret")
		if err := e.settings().Append(e.ctx(), idempotency.AuditEntry{Who: "ana"}); err != nil {
			e.Fatalf("Append: %v", err)
		}
		e.reopen()
		if got, v := e.get("secret"); string(got) != "a" || v != version {
			e.Fatalf("after a kill the setting is %q, version %d, want version %d", got, v, version)
		}
		if got, err := e.settings().Audit(e.ctx(), 0, 0); err != nil || len(got) != 1 || got[0].Who != "ana" {
			e.Fatalf("after a kill the audit log is %v, %v", got, err)
		}
	}),
}
