package storetest

import (
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// reserveCases test what Reserve says: R1 to R4, and R6 to R8.
var reserveCases = []Case{
	recordCase("R1FreeKeyStarts", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Probe)
		c.Prints = append(c.Prints, printOf("v0", "older"))
		c.Terms.Remember = time.Hour
		e.free(c.Key)
		r := e.start(c)
		e.at("the lease's end", r.LeaseEnd, e.clock.Now().Add(lease))
		if r.Takeover || r.Repeated {
			e.Fatalf("the reservation of a free key is %+v: want no takeover, not repeated", r)
		}
		rec := e.lookup(c.Key)
		now := e.clock.Now()
		e.same("after the first Reserve", rec, idempotency.Record{
			Key: c.Key, State: idempotency.Held, Prints: c.Prints, Owner: c.Owner, Token: r.Token, Terms: c.Terms,
			Origin: c.Origin, Attempt: 1, LeaseEnd: r.LeaseEnd, Created: now, Updated: now, AsOf: now,
		})
		if rec.Revision == 0 {
			e.Fatal("the revision of a record that was written is 0")
		}
	}),
	recordCase("R1KeysAreSeparate", nil, func(e *env) {
		a, b := claim(testKey(1), idempotency.Hold), claim(testKey(2), idempotency.Hold)
		e.done(e.start(a), ok("a"))
		e.start(b)
		e.reserve(again(a), idempotency.Replayed)
		e.reserve(again(b), idempotency.InProgress)
	}),
	recordCase("R1ExpiredKeyStartsAnew", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.done(e.start(c), ok("first"))
		end := e.clock.Now()
		e.clock.Set(end.Add(retention - tick))
		e.reserve(again(c), idempotency.Replayed)
		e.clock.Set(end.Add(retention))
		e.free(c.Key)
		other := again(c)
		other.Prints = []idempotency.Fingerprint{printOf("v1", "another request")}
		other.Origin.Route = "/other"
		a := e.reserve(other, idempotency.Started)
		if a.Reservation.Takeover || a.Record.Attempt != 1 || len(a.Record.Steps) != 0 || a.NotComparable {
			e.Fatalf("an expired key was claimed with takeover %v, attempt %d, %d steps, not comparable %v: want it as if it had never been",
				a.Reservation.Takeover, a.Record.Attempt, len(a.Record.Steps), a.NotComparable)
		}
		e.at("Created", a.Record.Created, e.clock.Now())
		if got := e.lookup(c.Key); got.Origin != other.Origin || len(got.Prints) != 1 || got.Prints[0] != other.Prints[0] {
			e.Fatalf("the record keeps the expired one's origin or fingerprints: %v", show(got))
		}
	}),
	recordCase("R1RetentionRunsFromTheEnd", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.clock.Advance(lease / 2)
		r.LeaseEnd = e.extend(r, 2*retention)
		e.clock.Advance(retention)
		e.done(r, ok("late"))
		e.clock.Advance(retention - tick)
		e.reserve(again(c), idempotency.Replayed)
		e.clock.Advance(tick)
		e.reserve(again(c), idempotency.Started)
	}),
	recordCase("R1RetentionCoversTheWindow", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.done(e.start(c), later("busy", 3*retention))
		e.clock.Advance(3*retention - tick)
		e.reserve(again(c), idempotency.Replayed)
	}),
	recordCase("R1LiveLeaseNeverExpires", nil, func(e *env) {
		for i, u := range []idempotency.OnUnknown{idempotency.Hold, idempotency.Retry, idempotency.Probe, idempotency.Fail} {
			c := claim(testKey(i), u)
			c.Terms.Retention, c.Terms.Quiet = time.Second, 0
			c.Terms.Lease = time.Hour
			e.start(c)
			e.clock.Advance(time.Hour - tick)
			if a := e.reserve(again(c), idempotency.InProgress); a.Record.Owner != c.Owner {
				e.Fatalf("the owner is %v, want %v", a.Record.Owner, c.Owner)
			}
		}
	}),
	recordCase("R1UnknownExpiresOnlyUnderRetry", nil, func(e *env) {
		const age = 20 * 365 * 24 * time.Hour
		want := map[idempotency.OnUnknown]idempotency.Outcome{
			idempotency.Hold: idempotency.Unknown, idempotency.Probe: idempotency.Started, idempotency.Fail: idempotency.Replayed,
		}
		claims := map[idempotency.OnUnknown]idempotency.Claim{}
		for u := range want {
			claims[u] = claim(testKey(int(u)), u)
			e.start(claims[u])
		}
		e.clock.Advance(age)
		for u, o := range want {
			a := e.reserve(again(claims[u]), o)
			if u == idempotency.Probe && !a.Reservation.Takeover {
				e.Fatal("an unknown record under probe expired: the claim is no takeover")
			}
		}
		c := claim(testKey(100), idempotency.Retry)
		r := e.start(c)
		e.clock.Set(r.LeaseEnd.Add(retention - tick))
		if got := e.lookup(c.Key).Status(); got != idempotency.StatusUnknown {
			e.Fatalf("the status before the retention is over is %q", got)
		}
		e.clock.Advance(tick)
		e.free(c.Key)
		if e.start(again(c)).Takeover {
			e.Fatal("the claim of an expired record under retry is a takeover")
		}
	}),
	recordCase("R2OtherRequestMismatchesInEveryState", nil, func(e *env) {
		inState := map[string]func(c idempotency.Claim){
			"held":         func(c idempotency.Claim) { e.start(c) },
			"quiet":        func(c idempotency.Claim) { e.end(e.start(c), idempotency.UnknownEnding()) },
			"unknown":      func(c idempotency.Claim) { e.end(e.start(c), idempotency.UnknownEnding()); e.clock.Advance(quiet) },
			"done":         func(c idempotency.Claim) { e.done(e.start(c), ok("x")) },
			"failed final": func(c idempotency.Claim) { e.done(e.start(c), idempotency.Result{Class: idempotency.FailedFinal}) },
			"in a window":  func(c idempotency.Claim) { e.done(e.start(c), later("x", time.Minute)) },
			"retryable":    func(c idempotency.Claim) { e.done(e.start(c), later("x", 0)) },
			"archived":     func(c idempotency.Claim) { e.done(e.start(c), ok("x")); e.clock.Advance(retention) },
		}
		n := 0
		for name, put := range inState {
			for _, u := range []idempotency.OnUnknown{idempotency.Hold, idempotency.Retry, idempotency.Probe, idempotency.Fail} {
				n++
				c := claim(testKey(n), u)
				c.Terms.Remember = 1000 * time.Hour
				c.Terms.Retention = retention
				put(c)
				before := e.lookup(c.Key)
				other := again(c)
				other.Prints = []idempotency.Fingerprint{printOf("v1", "another request")}
				a, err := e.s.Reserve(e.ctx(), other)
				if err != nil || a.Outcome != idempotency.Mismatched {
					e.Fatalf("another request for a key that is %s under %v is %v (%v), want mismatched", name, u, a.Outcome, err)
				}
				e.same("after a mismatch ("+name+")", e.lookup(c.Key), before)
			}
		}
	}),
	recordCase("R2ComesBeforeTheOwner", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.start(c)
		c.Prints = []idempotency.Fingerprint{printOf("v1", "another request")}
		e.reserve(c, idempotency.Mismatched)
	}),
	recordCase("R2OnlyEqualTagsAreCompared", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		c.Prints = []idempotency.Fingerprint{printOf("v2", "same"), printOf("v1", "same")}
		e.start(c)
		for _, x := range []struct {
			prints        []idempotency.Fingerprint
			want          idempotency.Outcome
			notComparable bool
		}{
			{[]idempotency.Fingerprint{printOf("v1", "same")}, idempotency.InProgress, false},
			{[]idempotency.Fingerprint{printOf("v2", "same")}, idempotency.InProgress, false},
			{[]idempotency.Fingerprint{printOf("v3", "new"), printOf("v2", "same")}, idempotency.InProgress, false},
			{[]idempotency.Fingerprint{printOf("v3", "new"), printOf("v1", "other")}, idempotency.Mismatched, false},
			{[]idempotency.Fingerprint{printOf("v2", "same"), printOf("v1", "other")}, idempotency.Mismatched, false},
			{[]idempotency.Fingerprint{printOf("v3", "new")}, idempotency.InProgress, true},
			{nil, idempotency.InProgress, false},
		} {
			d := again(c)
			d.Prints = x.prints
			a := e.reserve(d, x.want)
			if a.NotComparable != x.notComparable {
				e.Fatalf("NotComparable is %v with the fingerprints %v, want %v", a.NotComparable, x.prints, x.notComparable)
			}
		}
	}),
	recordCase("R2TheNextAttemptForgetsNoFingerprint", nil, func(e *env) {
		for i, retry := range []bool{true, false} {
			c := claim(testKey(i), idempotency.Probe)
			c.Terms.Quiet = 0
			r := e.start(c)
			if retry {
				e.done(r, later("busy", 0))
			} else {
				e.end(r, idempotency.UnknownEnding())
			}
			next := again(c)
			next.Prints = []idempotency.Fingerprint{printOf("v2", "the request")}
			if a := e.reserve(next, idempotency.Started); !a.NotComparable {
				e.Fatal("NotComparable is false for a claim with a new tag only")
			}
			for _, p := range []idempotency.Fingerprint{printOf("v1", "another request"), printOf("v2", "another request")} {
				d := again(c)
				d.Prints = []idempotency.Fingerprint{p}
				e.reserve(d, idempotency.Mismatched)
			}
			e.reserve(again(c), idempotency.InProgress)
			e.reserve(again(next), idempotency.InProgress)
		}
	}),
	recordCase("R2WithoutPrintsNothingIsCompared", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		c.Prints = nil
		e.start(c)
		d := again(c)
		d.Prints = []idempotency.Fingerprint{printOf("v1", "anything")}
		if a := e.reserve(d, idempotency.InProgress); a.NotComparable {
			e.Fatal("NotComparable is true for a record without fingerprints")
		}
	}),
	recordCase("R3SameOwnerGetsTheSameAnswer", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Retry)
		e.end(e.start(c), idempotency.UnknownEnding())
		e.clock.Advance(quiet)
		c = again(c)
		first := e.start(c)
		e.clock.Advance(3 * time.Second)
		a := e.reserve(c, idempotency.Started)
		second := a.Reservation
		if second.Token != first.Token || !second.Takeover || !second.Repeated {
			e.Fatalf("the repeated reservation is %+v: want token %d, a takeover, repeated", second, first.Token)
		}
		e.at("the renewed lease's end", second.LeaseEnd, e.clock.Now().Add(lease))
		e.at("the record's lease end", e.lookup(c.Key).LeaseEnd, e.clock.Now().Add(lease))
		if a.Record.Attempt != 2 {
			e.Fatalf("the attempt is %d after a repeat, want 2", a.Record.Attempt)
		}
	}),
	recordCase("R3HoldsWhateverTheClockSays", nil, func(e *env) {
		for i, u := range []idempotency.OnUnknown{idempotency.Hold, idempotency.Retry, idempotency.Probe, idempotency.Fail} {
			c := claim(testKey(i), u)
			first := e.start(c)
			e.clock.Set(first.LeaseEnd.Add(quiet + time.Minute))
			second := e.start(c)
			if second.Token != first.Token || second.Takeover {
				e.Fatalf("under %v the repeat after the lease is %+v, want token %d and no takeover", u, second, first.Token)
			}
			e.at("the lease's end", second.LeaseEnd, e.clock.Now().Add(lease))
		}
	}),
	recordCase("R3NeverShortensTheLease", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		first := e.start(c)
		long := e.extend(first, time.Hour)
		e.at("the lease after a repeat", e.start(c).LeaseEnd, long)
		e.clock.Advance(-time.Minute)
		e.at("the lease after a repeat on an earlier clock", e.start(c).LeaseEnd, long)
	}),
	recordCase("R3RepeatSeesTheSteps", needsSteps, func(e *env) {
		c := claim(testKey(1), idempotency.Probe)
		r := e.start(c)
		e.saveStep(r, idempotency.Step{Name: "pay", ProviderKey: "pk"})
		a := e.reserve(c, idempotency.Started)
		if len(a.Record.Steps) != 1 || a.Record.Steps[0].Name != "pay" {
			e.Fatalf("the repeat has the steps %v, want the one that was saved", a.Record.Steps)
		}
	}),
	recordCase("R4HeldKeyIsInProgress", nil, func(e *env) {
		for i, u := range []idempotency.OnUnknown{idempotency.Hold, idempotency.Retry, idempotency.Probe, idempotency.Fail} {
			c := claim(testKey(i), u)
			r := e.start(c)
			before := e.lookup(c.Key)
			e.clock.Set(r.LeaseEnd.Add(-tick))
			a := e.reserve(again(c), idempotency.InProgress)
			e.at("the lease's end", a.Record.LeaseEnd, r.LeaseEnd)
			if got := a.Record.Status(); got != idempotency.StatusInProgress {
				e.Fatalf("the status is %q", got)
			}
			before.AsOf = e.clock.Now()
			e.same("after InProgress", e.lookup(c.Key), before)
		}
	}),
	recordCase("R6RetryableRunsAgainAfterItsWindow", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		first := e.start(c)
		e.done(first, later("busy", time.Minute))
		end := e.clock.Now()
		e.clock.Set(end.Add(time.Minute - tick))
		a := e.reserve(again(c), idempotency.Replayed)
		if d := sameResult(a.Record.Result, later("busy", time.Minute)); d != "" {
			e.Fatalf("the result within the window is %s", d)
		}
		e.at("the window's end", a.Record.WindowEnd, end.Add(time.Minute))
		e.clock.Set(end.Add(time.Minute))
		next := again(c)
		second := e.start(next)
		if second.Takeover || second.Token <= first.Token {
			e.Fatalf("the next attempt is %+v: want no takeover and a token above %d", second, first.Token)
		}
		if got := e.lookup(c.Key).Attempt; got != 2 {
			e.Fatalf("the attempt is %d, want 2", got)
		}
		e.reserve(again(c), idempotency.InProgress)
		e.done(second, ok("fine"))
		e.reserve(again(c), idempotency.Replayed)
	}),
	recordCase("R6NoWindowRunsAtOnce", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.done(e.start(c), later("busy", 0))
		e.start(again(c))
	}),
	recordCase("R7DoneKeyReplaysItsBytes", nil, func(e *env) {
		for i, res := range []idempotency.Result{
			ok("the answer\x00\xff\r\n"),
			ok(""),
			{Class: idempotency.FailedFinal, Status: 422, Payload: []byte("no")},
			{Class: idempotency.Succeeded, Status: 200, NotKept: true},
			{Class: idempotency.Succeeded, Status: 200, By: idempotency.FromProbe, Payload: []byte("probed")},
		} {
			c := claim(testKey(i), idempotency.Hold)
			r := e.start(c)
			e.clock.Advance(time.Second)
			e.done(r, res)
			want := e.lookup(c.Key)
			for range 3 {
				a := e.reserve(again(c), idempotency.Replayed)
				if d := sameResult(a.Record.Result, res); d != "" {
					e.Fatalf("the replayed result is %s", d)
				}
				e.same("of a replay", a.Record, want)
				if a.Record.Status() != idempotency.Status(res.Class.String()) {
					e.Fatalf("the status is %q", a.Record.Status())
				}
			}
			e.at("Expires", want.Expires, e.clock.Now().Add(retention))
			if want.State != idempotency.Ended || want.Owner != c.Owner || want.Token != r.Token {
				e.Fatalf("the done record is %v: want it done, with the owner and token that ended it", show(want))
			}
		}
	}),
	recordCase("R8ShrunkKeyIsArchived", nil, func(e *env) {
		for i, res := range []idempotency.Result{ok("big answer"), {Class: idempotency.FailedFinal, Status: 402, Payload: []byte("no")}} {
			c := claim(testKey(i), idempotency.Hold)
			c.Terms.Remember = 24 * time.Hour
			e.done(e.start(c), res)
			end := e.clock.Now()
			e.clock.Set(end.Add(retention - tick))
			e.reserve(again(c), idempotency.Replayed)
			e.clock.Set(end.Add(retention))
			a := e.reserve(again(c), idempotency.Archived)
			if len(a.Record.Result.Payload) != 0 || a.Record.Result.Class != res.Class || a.Record.Result.Status != res.Status {
				e.Fatalf("the archived result is %s: want class and status, and no payload", showResult(a.Record.Result))
			}
			rec := e.lookup(c.Key)
			if rec.Status() != idempotency.StatusArchived || len(rec.Result.Payload) != 0 {
				e.Fatalf("the archived record is %v", show(rec))
			}
			e.clock.Set(end.Add(retention + 24*time.Hour - tick))
			e.reserve(again(c), idempotency.Archived)
			e.clock.Advance(tick)
			e.free(c.Key)
			e.start(again(c))
		}
	}),
	recordCase("R8RetryableIsNotRemembered", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		c.Terms.Remember = 24 * time.Hour
		e.done(e.start(c), later("busy", 0))
		e.clock.Advance(retention)
		e.free(c.Key)
		e.start(again(c))
	}),
	recordCase("InvalidClaimIsAnError", nil, func(e *env) {
		good := claim(testKey(1), idempotency.Hold)
		for name, spoil := range map[string]func(c *idempotency.Claim){
			"no owner":  func(c *idempotency.Claim) { c.Owner = idempotency.Owner{} },
			"no tenant": func(c *idempotency.Claim) { c.Key.Tenant = "" },
			"no lease":  func(c *idempotency.Claim) { c.Terms.Lease = 0 },
			"two fingerprints of one tag": func(c *idempotency.Claim) {
				c.Prints = []idempotency.Fingerprint{printOf("v1", "a"), printOf("v1", "b")}
			},
		} {
			c := good
			spoil(&c)
			if a, err := e.s.Reserve(e.ctx(), c); err == nil {
				e.Fatalf("a claim with %s is %v, want an error", name, a.Outcome)
			}
		}
		e.free(good.Key)
		e.start(good)
	}),
}
