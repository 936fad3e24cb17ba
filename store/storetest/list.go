package storetest

import (
	"fmt"
	"sort"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// list returns all pages, and checks that no record is there twice.
func (e *env) list(f idempotency.Filter) []idempotency.Record {
	e.Helper()
	var all []idempotency.Record
	seen := map[idempotency.ID]bool{}
	for range 100_000 {
		p, err := e.keeper().List(e.ctx(), f)
		if err != nil {
			e.Fatalf("List(%+v): %v", f, err)
		}
		limit := f.Limit
		if limit == 0 {
			limit = 100
		}
		if len(p.Records) > limit {
			e.Fatalf("a page has %d records, and the limit is %d", len(p.Records), limit)
		}
		for _, r := range p.Records {
			if seen[r.Key.ID] {
				e.Fatalf("the list has the key %v twice", r.Key.ID)
			}
			seen[r.Key.ID] = true
			all = append(all, r)
		}
		if p.Next == "" {
			return all
		}
		f.Cursor = p.Next
	}
	e.Fatal("the list has no last page")
	return nil
}

// listCases test List.
var listCases = []Case{
	recordCase("ListEmpty", needsKeeper, func(e *env) {
		if got := e.list(idempotency.Filter{}); len(got) != 0 {
			e.Fatalf("an empty store lists %d records", len(got))
		}
	}),
	recordCase("ListShowsRecordsWithoutTheirBytes", needsKeeper, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		if e.h.Caps.Steps {
			e.saveStep(r, idempotency.Step{Name: "pay", Done: true, ProviderID: "ch_1", Answer: []byte("private")})
		}
		e.done(r, ok("private"))
		got := e.list(idempotency.Filter{})
		if len(got) != 1 {
			e.Fatalf("the list has %d records, want 1", len(got))
		}
		e.same("in the list", got[0], outline(e.lookup(c.Key)))
		if got[0].Revision != e.lookup(c.Key).Revision {
			e.Fatal("the list and Lookup differ in the revision")
		}
	}),
	recordCase("ListFilters", needsKeeper, func(e *env) {
		start := func(n int, tenant, route string, u idempotency.OnUnknown) (idempotency.Claim, idempotency.Reservation) {
			c := claim(tenantKey(tenant, n), u)
			c.Origin.Route = route
			c.Terms.Retention, c.Terms.Remember = 10*time.Hour, 1000*time.Hour
			return c, e.start(c)
		}
		want := map[string][]string{} // by filter: keys
		add := func(k idempotency.Key, names ...string) {
			for _, n := range append(names, "all") {
				want[n] = append(want[n], k.ID.String())
			}
		}
		c, r := start(1, "acme", "/orders", idempotency.Hold)
		e.done(r, ok("x"))
		add(c.Key, "archived", "acme", "/orders", "old")
		e.clock.Advance(10 * time.Hour)

		c, r = start(2, "acme", "/orders", idempotency.Hold)
		e.done(r, ok("x"))
		add(c.Key, "succeeded", "acme", "/orders", "old", "acme succeeded")
		c, r = start(3, "acme", "/refunds", idempotency.Hold)
		e.done(r, idempotency.Result{Class: idempotency.FailedFinal})
		add(c.Key, "failed_final", "acme", "/refunds", "old")
		c, r = start(4, "umbrella", "/orders", idempotency.Hold)
		e.done(r, later("x", 0))
		add(c.Key, "failed_retryable", "umbrella", "/orders", "old")
		c, r = start(5, "umbrella", "/orders", idempotency.Hold)
		e.end(r, idempotency.UnknownEnding())
		add(c.Key, "unknown", "umbrella", "/orders", "old")
		c, r = start(6, "umbrella", "/orders", idempotency.Probe)
		e.end(r, idempotency.UnknownEnding())
		add(c.Key, "unknown", "umbrella", "/orders", "old")
		e.clock.Advance(quiet)

		c, _ = start(7, "umbrella", "/orders", idempotency.Hold)
		add(c.Key, "in_progress", "umbrella", "/orders")
		c, r = start(8, "umbrella", "/orders", idempotency.Probe) // quiet: still in progress
		e.end(r, idempotency.UnknownEnding())
		add(c.Key, "in_progress", "umbrella", "/orders")
		c, r = start(9, "umbrella", "/orders", idempotency.Hold)
		e.end(r, idempotency.NotRun())
		e.void(tenantKey("umbrella", 10), idempotency.NewOwner())
		_ = c

		for name, f := range map[string]idempotency.Filter{
			"all":              {},
			"in_progress":      {Status: idempotency.StatusInProgress},
			"unknown":          {Status: idempotency.StatusUnknown},
			"succeeded":        {Status: idempotency.StatusSucceeded},
			"failed_final":     {Status: idempotency.StatusFailedFinal},
			"failed_retryable": {Status: idempotency.StatusFailedRetryable},
			"archived":         {Status: idempotency.StatusArchived},
			"acme":             {Tenant: "acme"},
			"umbrella":         {Tenant: "umbrella"},
			"/orders":          {Route: "/orders"},
			"/refunds":         {Route: "/refunds"},
			"old":              {Older: quiet},
			"acme succeeded":   {Tenant: "acme", Status: idempotency.StatusSucceeded, Route: "/orders", Older: time.Second},
			"nobody's":         {Tenant: "nobody"},
			"too old":          {Older: 1000 * time.Hour},
		} {
			for _, limit := range []int{0, 1, 2, 1000} {
				f.Limit = limit
				var got []string
				for _, r := range e.list(f) {
					got = append(got, r.Key.ID.String())
				}
				sort.Strings(got)
				sort.Strings(want[name])
				if fmt.Sprint(got) != fmt.Sprint(want[name]) {
					e.Fatalf("the list %q in pages of %d has %d keys, want %d:\n%v\n%v", name, limit, len(got), len(want[name]), got, want[name])
				}
			}
		}
	}),
	recordCase("ListCursorIsStableUnderChange", needsKeeper, func(e *env) {
		const n = 40
		for i := range n {
			e.done(e.start(claim(testKey(i), idempotency.Hold)), ok("x"))
		}
		// While it is listed, others come, and some of the first are written.
		got := map[idempotency.ID]int{}
		f := idempotency.Filter{Limit: 3}
		for i := 0; ; i++ {
			p, err := e.keeper().List(e.ctx(), f)
			if err != nil {
				e.Fatalf("List: %v", err)
			}
			for _, r := range p.Records {
				got[r.Key.ID]++
			}
			if p.Next == "" {
				break
			}
			if i > 10*n {
				e.Fatal("the list has no last page")
			}
			f.Cursor = p.Next
			if i < n {
				e.clock.Advance(time.Millisecond)
				e.done(e.start(claim(testKey(1000+i), idempotency.Hold)), ok("new"))
				e.void(testKey(i), idempotency.NewOwner()) // writes the record
			}
		}
		for i := range n {
			if got[testKey(i).ID] != 1 {
				e.Fatalf("a record that was there throughout was listed %d times", got[testKey(i).ID])
			}
		}
	}),
	recordCase("ListManyPages", needsKeeper, func(e *env) {
		const n = 250
		for i := range n {
			e.start(claim(testKey(i), idempotency.Hold))
		}
		for _, limit := range []int{0, 1, 7, 100, 250, 1000} {
			if got := len(e.list(idempotency.Filter{Limit: limit})); got != n {
				e.Fatalf("in pages of %d there are %d records, want %d", limit, got, n)
			}
		}
	}),
}

// settleCases test F9: what an operator may do.
var settleCases = []Case{
	recordCase("F9SettleNeedsTheQuietTime", needsKeeper, func(e *env) {
		for i, u := range []idempotency.OnUnknown{idempotency.Hold, idempotency.Retry, idempotency.Probe, idempotency.Fail} {
			c := claim(testKey(i), u)
			r := e.start(c)
			rev := e.lookup(c.Key).Revision
			for _, now := range []time.Time{e.clock.Now(), r.LeaseEnd, r.LeaseEnd.Add(quiet - tick)} {
				e.clock.Set(now)
				before := e.lookup(c.Key)
				e.isErr("Settle", e.keeper().Settle(e.ctx(), c.Key, rev, ok("paid")), idempotency.ErrLive)
				e.isErr("Forget", e.keeper().Forget(e.ctx(), c.Key, rev), idempotency.ErrLive)
				e.same("after ErrLive", e.lookup(c.Key), before)
			}
			e.clock.Advance(tick)
			e.settle(c.Key, rev, ok("paid"))
			rec := e.lookup(c.Key)
			want := ok("paid")
			want.By = idempotency.FromOperator
			if d := sameResult(rec.Result, want); d != "" {
				e.Fatalf("the settled result is %s", d)
			}
			if !rec.Owner.IsZero() || rec.Token <= r.Token || rec.Revision <= rev {
				e.Fatalf("the settled record is %v, revision %d: want no owner, a token above %d, a revision above %d", show(rec), rec.Revision, r.Token, rev)
			}
			e.at("Expires", rec.Expires, e.clock.Now().Add(retention))
			e.reserve(again(c), idempotency.Replayed)
			e.refuses(c.Key, r)
		}
	}),
	recordCase("F9SettleNeedsTheRevisionThatWasSeen", needsKeeper, func(e *env) {
		c := claim(testKey(1), idempotency.Probe)
		first := e.start(c)
		seen := e.lookup(c.Key).Revision
		e.clock.Set(first.LeaseEnd.Add(quiet))
		second := e.start(again(c))
		e.end(second, idempotency.UnknownEnding())
		e.clock.Advance(quiet)
		e.isErr("Settle", e.keeper().Settle(e.ctx(), c.Key, seen, ok("x")), idempotency.ErrConflict)
		e.isErr("Forget", e.keeper().Forget(e.ctx(), c.Key, seen), idempotency.ErrConflict)
		if got := e.lookup(c.Key).Status(); got != idempotency.StatusUnknown {
			e.Fatalf("the status after two conflicts is %q", got)
		}
		e.settle(c.Key, e.lookup(c.Key).Revision, ok("x"))
	}),
	recordCase("F9EveryWriteChangesTheRevision", needsKeeper, func(e *env) {
		c := claim(testKey(1), idempotency.Probe)
		r := e.start(c)
		last := e.lookup(c.Key).Revision
		grew := func(what string) {
			e.Helper()
			rev := e.lookup(c.Key).Revision
			if rev <= last {
				e.Fatalf("after %s the revision is %d, and it was %d", what, rev, last)
			}
			last = rev
		}
		e.extend(r, time.Hour)
		grew("Extend")
		if e.h.Caps.Steps {
			e.saveStep(r, idempotency.Step{Name: "pay"})
			grew("SaveStep")
		}
		e.void(c.Key, idempotency.NewOwner())
		grew("Void")
		e.end(r, idempotency.UnknownEnding())
		grew("Unknown")
		e.done(r, later("busy", 0))
		grew("Done")
		r = e.start(again(c))
		grew("Reserve")
		e.end(r, idempotency.NotRun())
		grew("NotRun")
	}),
	recordCase("F9SettleDoesNotReplaceAResult", needsKeeper, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.done(e.start(c), ok("mine"))
		e.isErr("Settle", e.keeper().Settle(e.ctx(), c.Key, e.lookup(c.Key).Revision, ok("yours")), idempotency.ErrConflict)
		if a := e.reserve(again(c), idempotency.Replayed); string(a.Record.Result.Payload) != "mine" {
			e.Fatalf("the replay is %s", showResult(a.Record.Result))
		}
	}),
	recordCase("F9NothingThereIsNotFound", needsKeeper, func(e *env) {
		e.isErr("Settle", e.keeper().Settle(e.ctx(), testKey(1), 1, ok("x")), idempotency.ErrNotFound)
		e.isErr("Forget", e.keeper().Forget(e.ctx(), testKey(1), 1), idempotency.ErrNotFound)
		e.void(testKey(1), idempotency.NewOwner())
		e.isErr("Forget of a mark", e.keeper().Forget(e.ctx(), testKey(1), 1), idempotency.ErrNotFound)
		c := claim(testKey(2), idempotency.Hold)
		e.done(e.start(c), ok("x"))
		rev := e.lookup(c.Key).Revision
		e.clock.Advance(retention)
		e.isErr("Forget of an expired record", e.keeper().Forget(e.ctx(), c.Key, rev), idempotency.ErrNotFound)
		e.isErr("Settle of an expired record", e.keeper().Settle(e.ctx(), c.Key, rev, ok("x")), idempotency.ErrNotFound)
	}),
	recordCase("F9ForgetReleasesTheKey", needsKeeper, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.end(r, idempotency.UnknownEnding())
		e.clock.Advance(quiet)
		e.forget(c.Key, e.lookup(c.Key).Revision)
		e.free(c.Key)
		e.reserve(c, idempotency.Refused) // what is still travelling does not come back
		next := e.start(again(c))
		e.refuses(c.Key, r)
		if next.Takeover {
			e.Fatal("the claim after Forget is a takeover")
		}
	}),
	recordCase("F9ForgetWorksOnResultsToo", needsKeeper, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		c.Terms.Remember = time.Hour
		for _, age := range []time.Duration{0, retention} {
			c = again(c)
			e.done(e.start(c), ok("x"))
			e.clock.Advance(age)
			e.forget(c.Key, e.lookup(c.Key).Revision)
			e.free(c.Key)
		}
		e.start(again(c))
	}),
	recordCase("F9FirstWriterWins", needsKeeper, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.end(e.start(c), idempotency.UnknownEnding())
		e.clock.Advance(quiet)
		rev := e.lookup(c.Key).Revision
		errs := together(10, func(i int) error {
			if i%2 == 0 {
				return e.keeper().Settle(e.ctx(), c.Key, rev, ok(fmt.Sprint(i)))
			}
			return e.keeper().Forget(e.ctx(), c.Key, rev)
		})
		won := 0
		for i, err := range errs {
			switch {
			case err == nil:
				won++
			default:
				if !isAny(err, idempotency.ErrConflict, idempotency.ErrNotFound) {
					e.Fatalf("operator %d: %v", i, err)
				}
			}
		}
		if won != 1 {
			e.Fatalf("%d of 10 operators who saw the same revision succeeded", won)
		}
	}),
	recordCase("InvalidSettlementIsAnError", needsKeeper, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		e.end(e.start(c), idempotency.UnknownEnding())
		e.clock.Advance(quiet)
		rev := e.lookup(c.Key).Revision
		if err := e.keeper().Settle(e.ctx(), c.Key, rev, idempotency.Result{}); err == nil {
			e.Fatal("Settle with a result without a class returns nil")
		}
		e.reserve(again(c), idempotency.Unknown)
	}),
}

func (e *env) settle(k idempotency.Key, seen idempotency.Revision, r idempotency.Result) {
	e.Helper()
	if err := e.keeper().Settle(e.ctx(), k, seen, r); err != nil {
		e.Fatalf("Settle: %v", err)
	}
}

func (e *env) forget(k idempotency.Key, seen idempotency.Revision) {
	e.Helper()
	if err := e.keeper().Forget(e.ctx(), k, seen); err != nil {
		e.Fatalf("Forget: %v", err)
	}
}
