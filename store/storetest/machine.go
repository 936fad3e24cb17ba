package storetest

import (
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/escapement-dev/escapement/idempotency"
)

// machineCases compare a store with the rule, step by step.
var machineCases = []Case{
	{Name: "MachineFollowsTheRule", Run: func(t testing.TB, h Harness) {
		t.Helper()
		explore(t, h, machineKinds(h), func(s *scope, rt *rapid.T, count func(string)) {
			m := &machine{
				env: newEnv(s, h), rt: rt, count: count,
				oracle: map[idempotency.ID]idempotency.Record{},
				claims: map[idempotency.ID][]idempotency.Claim{},
				given:  map[idempotency.ID][]idempotency.Reservation{},
			}
			m.floor = m.clock.Now().Add(-time.Minute)
			rt.Repeat(m.actions())
		})
	}},
}

// machine is a store beside the rule's pure functions over a map. Tokens and
// revisions are the store's own: the oracle takes them over after checking
// that they grow where they must.
type machine struct {
	*env
	rt     *rapid.T
	count  func(kind string)
	oracle map[idempotency.ID]idempotency.Record
	claims map[idempotency.ID][]idempotency.Claim
	given  map[idempotency.ID][]idempotency.Reservation
	// floor is the earliest time to which the clock may step back: what a
	// store has removed by then stays removed.
	floor time.Time
}

// machineKeys are few, so that attempts meet.
var machineKeys = []idempotency.Key{tenantKey("acme", 1), tenantKey("acme", 2), tenantKey("umbrella", 3)}

// machineKinds are the kinds of steps that must have succeeded.
func machineKinds(h Harness) []string {
	kinds := []string{
		"reserve started", "reserve started, takeover", "reserve started, repeated", "reserve started, after retryable",
		"reserve replayed", "reserve in_progress", "reserve mismatched", "reserve unknown", "reserve archived",
		"reserve refused", "reserve settled by policy", "reserve not comparable",
		"extend", "extend fenced", "end done", "end not_run", "end unknown", "end fenced", "end repeated",
		"void of the owner", "void of another", "clock forward", "clock back",
	}
	if h.Caps.Steps {
		kinds = append(kinds, "step started", "step done", "step fenced", "step refused")
	}
	if h.Caps.Keeper {
		kinds = append(kinds, "sweep", "list", "settle", "settle conflict", "settle live", "settle not found",
			"forget", "forget conflict", "forget live", "forget not found")
	}
	return kinds
}

func (m *machine) actions() map[string]func(*rapid.T) {
	a := map[string]func(*rapid.T){
		"": func(*rapid.T) {},
		// Reserve stands thrice, so that it is drawn more often.
		"Reserve": m.reserveStep, "ReserveAgain": m.reserveStep, "ReserveMore": m.reserveStep,
		"Extend": m.extendStep, "End": m.endStep, "EndMore": m.endStep, "Void": m.voidStep,
		"Forward": m.forward, "ForwardMore": m.forward, "Back": m.back,
	}
	if m.h.Caps.Steps {
		a["SaveStep"] = m.saveStepStep
	}
	if m.h.Caps.Keeper {
		a["Sweep"], a["List"], a["Settle"], a["Forget"] = m.sweepStep, m.listStep, m.settleStep, m.forgetStep
	}
	return a
}

func (m *machine) key() idempotency.Key { return rapid.SampledFrom(machineKeys).Draw(m.rt, "key") }

func draw[T any](m *machine, name string, from ...T) T {
	return rapid.SampledFrom(from).Draw(m.rt, name)
}

func (m *machine) drawClaim(k idempotency.Key) idempotency.Claim {
	if known := m.claims[k.ID]; len(known) > 0 && draw(m, "repeat", true, false, false) {
		return rapid.SampledFrom(known).Draw(m.rt, "claim")
	}
	var o idempotency.Owner
	copy(o[:], fmt.Sprintf("owner %d", len(m.claims[k.ID])+1))
	c := idempotency.Claim{
		Key: k, Owner: o,
		Terms: idempotency.Terms{
			Lease:     draw(m, "lease", time.Second, 10*time.Second, 90*time.Second),
			Retention: draw(m, "retention", time.Second, 30*time.Second, 100*time.Second),
			Remember:  draw(m, "remember", 0, time.Minute),
			Quiet:     draw(m, "quiet", 0, 5*time.Second),
			OnUnknown: draw(m, "on unknown", idempotency.Hold, idempotency.Retry, idempotency.Probe, idempotency.Fail),
		},
		Origin: idempotency.Origin{Method: "POST", Route: draw(m, "route", "/a", "/b"), Trace: o.String()},
	}
	switch draw(m, "prints", "usual", "usual", "usual", "usual", "usual", "other", "new tag", "two", "none") {
	case "usual":
		c.Prints = []idempotency.Fingerprint{printOf("v1", "usual")}
	case "other":
		c.Prints = []idempotency.Fingerprint{printOf("v1", "other")}
	case "new tag":
		c.Prints = []idempotency.Fingerprint{printOf("v2", "usual")}
	case "two":
		c.Prints = []idempotency.Fingerprint{printOf("v2", "usual"), printOf("v1", "usual")}
	}
	m.claims[k.ID] = append(m.claims[k.ID], c)
	return c
}

// drawReservation is one that the store gave, mostly the newest, or one that
// nobody gave.
func (m *machine) drawReservation(k idempotency.Key) idempotency.Reservation {
	known := m.given[k.ID]
	if len(known) == 0 {
		return idempotency.Reservation{Key: k, Owner: idempotency.Owner{1}, Token: 1}
	}
	r := known[len(known)-1]
	switch draw(m, "reservation", "newest", "newest", "newest", "newest", "any", "wrong token") {
	case "any":
		r = rapid.SampledFrom(known).Draw(m.rt, "given")
	case "wrong token":
		r.Token++
	}
	return r
}

func (m *machine) reserveStep(*rapid.T) {
	k := m.key()
	c := m.drawClaim(k)
	now := m.clock.Now()
	prev := m.oracle[k.ID]
	next, want := idempotency.Decide(prev, c, now)
	got, err := m.s.Reserve(m.ctx(), c)
	if err != nil {
		m.Fatalf("Reserve: %v", err)
	}
	if got.Outcome != want.Outcome || got.NotComparable != want.NotComparable {
		m.Fatalf("Reserve is %v (not comparable: %v), the rule says %v (%v)\nbefore: %s\nclaim: %+v",
			got.Outcome, got.NotComparable, want.Outcome, want.NotComparable, show(prev), c)
	}
	before, _ := idempotency.View(prev, now)
	if want.Outcome != idempotency.Refused {
		m.compareTokens("Reserve", &next, got.Record.Token, before)
		want.Record.Token = next.Token
		if want.Outcome == idempotency.Mismatched { // whose payload nobody needs
			got.Record.Result.Payload, want.Record.Result.Payload = nil, nil
		}
		m.same("of the answer "+want.Outcome.String(), got.Record, want.Record)
	}
	if want.Outcome == idempotency.Started {
		want.Reservation.Token = next.Token
		g, w := got.Reservation, want.Reservation
		m.at("the reservation's lease end", g.LeaseEnd, w.LeaseEnd)
		g.LeaseEnd, w.LeaseEnd = time.Time{}, time.Time{}
		if g != w {
			m.Fatalf("the reservation is %+v, the rule says %+v", g, w)
		}
		m.given[k.ID] = append(m.given[k.ID], got.Reservation)
	}
	kind := "reserve " + want.Outcome.String()
	switch {
	case want.Reservation.Repeated:
		kind += ", repeated"
	case want.Reservation.Takeover:
		kind += ", takeover"
	case next.Found == idempotency.FoundRetryable && want.Outcome == idempotency.Started:
		kind += ", after retryable"
	case want.Outcome == idempotency.Replayed && next.Revision != prev.Revision:
		kind = "reserve settled by policy"
	}
	m.count(kind)
	if want.NotComparable {
		m.count("reserve not comparable")
	}
	m.settled("Reserve", k, prev, next)
}

func (m *machine) extendStep(*rapid.T) {
	k := m.key()
	r := m.drawReservation(k)
	d := draw(m, "lease", 0, time.Second, 10*time.Second, time.Minute)
	prev := m.oracle[k.ID]
	next, want := idempotency.Renew(prev, r, d, m.clock.Now())
	end, err := m.s.Extend(m.ctx(), r, d)
	m.agree("Extend", err, want, prev)
	if want == nil {
		m.at("the end that Extend returns", end, next.LeaseEnd)
		m.count("extend")
	} else {
		m.count("extend fenced")
	}
	m.settled("Extend", k, prev, next)
}

func (m *machine) endStep(*rapid.T) {
	k := m.key()
	r := m.drawReservation(k)
	r.Repeated = draw(m, "repeated", r.Repeated, true)
	g := draw(m, "ending",
		idempotency.NotRun(), idempotency.UnknownEnding(),
		idempotency.Done(ok("one")), idempotency.Done(ok("two")),
		idempotency.Done(idempotency.Result{Class: idempotency.FailedFinal, Status: 422}),
		idempotency.Done(later("busy", 0)), idempotency.Done(later("busy", 20*time.Second)),
		idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, NotKept: true, By: idempotency.FromProbe}))
	for i := range draw(m, "times", 1, 1, 2) {
		prev := m.oracle[k.ID]
		next, want := idempotency.Finish(prev, r, g, m.clock.Now())
		m.agree("End("+g.Kind.String()+")", m.s.End(m.ctx(), r, g), want, prev)
		switch {
		case want != nil:
			m.count("end fenced")
		case i > 0:
			m.count("end repeated")
		default:
			m.count("end " + g.Kind.String())
		}
		m.settled("End", k, prev, next)
	}
}

func (m *machine) voidStep(*rapid.T) {
	k := m.key()
	o := idempotency.Owner{0xff}
	if known := m.claims[k.ID]; len(known) > 0 && draw(m, "known", true, true, false) {
		o = rapid.SampledFrom(known).Draw(m.rt, "claim").Owner
	}
	prev := m.oracle[k.ID]
	next := idempotency.Withdraw(prev, k, o, m.clock.Now())
	if err := m.s.Void(m.ctx(), k, o); err != nil {
		m.Fatalf("Void: %v", err)
	}
	if prev.State == idempotency.Held && prev.Owner == o {
		m.count("void of the owner")
	} else {
		m.count("void of another")
	}
	m.settled("Void", k, prev, next)
}

func (m *machine) saveStepStep(*rapid.T) {
	k := m.key()
	r := m.drawReservation(k)
	s := idempotency.Step{Name: draw(m, "step", "pay", "mail"), ProviderKey: draw(m, "provider key", "", "pk", "pk", "other")}
	if draw(m, "done", true, false) {
		s.Done, s.ProviderID, s.Answer = true, "id", []byte(draw(m, "answer", "", "yes"))
	}
	prev := m.oracle[k.ID]
	next, want := idempotency.PutStep(prev, r, s, m.clock.Now())
	m.agree("SaveStep", m.steps().SaveStep(m.ctx(), r, s), want, prev)
	switch {
	case want == nil && s.Done:
		m.count("step done")
	case want == nil:
		m.count("step started")
	case isAny(want, idempotency.ErrFenced):
		m.count("step fenced")
	default:
		m.count("step refused")
	}
	m.settled("SaveStep", k, prev, next)
}

func (m *machine) sweepStep(*rapid.T) {
	limit := draw(m, "limit", 1, 2, 100)
	m.sweep(limit)
	now := m.clock.Now()
	for _, k := range machineKeys {
		prev, there := m.oracle[k.ID]
		if !there {
			continue
		}
		next, kept := idempotency.Expire(prev, now)
		switch {
		case !kept:
			delete(m.oracle, k.ID)
			m.count("sweep")
		case next.Revision != prev.Revision:
			m.count("sweep")
		}
	}
	m.floor = latest(m.floor, now)
	m.compareAll("Sweep")
}

func (m *machine) listStep(*rapid.T) {
	f := idempotency.Filter{
		Tenant: draw(m, "tenant", "", "", "acme", "umbrella"),
		Route:  draw(m, "route", "", "", "/a"),
		Status: draw(m, "status", "", "", idempotency.StatusInProgress, idempotency.StatusUnknown, idempotency.StatusSucceeded,
			idempotency.StatusFailedRetryable, idempotency.StatusArchived),
		Limit: draw(m, "limit", 0, 1, 2),
	}
	var got, want []string
	for _, r := range m.list(f) {
		got = append(got, show(r))
	}
	for _, k := range machineKeys {
		r, ok := idempotency.View(m.oracle[k.ID], m.clock.Now())
		if ok && (f.Tenant == "" || f.Tenant == k.Tenant) && (f.Route == "" || f.Route == r.Origin.Route) && (f.Status == "" || f.Status == r.Status()) {
			want = append(want, show(outline(r)))
		}
	}
	sort.Strings(got)
	sort.Strings(want)
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		m.Fatalf("List(%+v) is\n%s\nthe rule says\n%s", f, g, w)
	}
	if len(want) > 0 {
		m.count("list")
	}
}

// drawSeen is the revision that an operator saw: the record's, or another.
func (m *machine) drawSeen(k idempotency.Key) idempotency.Revision {
	rev := m.oracle[k.ID].Revision
	if !draw(m, "seen", true, true, true, false) {
		rev--
	}
	return rev
}

func (m *machine) settleStep(*rapid.T) {
	k := m.key()
	seen := m.drawSeen(k)
	res := draw(m, "result", ok("settled"), later("settled", 0), idempotency.Result{Class: idempotency.FailedFinal})
	prev := m.oracle[k.ID]
	next, want := idempotency.SettleBy(prev, seen, res, m.clock.Now())
	m.agree("Settle", m.keeper().Settle(m.ctx(), k, seen, res), want, prev)
	m.countOperator("settle", want)
	m.settled("Settle", k, prev, next)
}

func (m *machine) forgetStep(*rapid.T) {
	k := m.key()
	seen := m.drawSeen(k)
	prev := m.oracle[k.ID]
	next, want := idempotency.ForgetBy(prev, seen, m.clock.Now())
	m.agree("Forget", m.keeper().Forget(m.ctx(), k, seen), want, prev)
	m.countOperator("forget", want)
	m.settled("Forget", k, prev, next)
}

func (m *machine) countOperator(what string, err error) {
	switch {
	case err == nil:
		m.count(what)
	case isAny(err, idempotency.ErrConflict):
		m.count(what + " conflict")
	case isAny(err, idempotency.ErrLive):
		m.count(what + " live")
	default:
		m.count(what + " not found")
	}
}

// forward moves the clock to a time at which something changes, or 1 µs to
// either side of it, or just on.
func (m *machine) forward(*rapid.T) {
	now := m.clock.Now()
	times := []time.Time{now.Add(time.Second), now.Add(30 * time.Second)}
	for _, k := range machineKeys {
		r := m.oracle[k.ID]
		list := []time.Time{r.LeaseEnd, r.LeaseEnd.Add(r.Terms.Quiet), r.WindowEnd, r.Expires, r.Expires.Add(r.Terms.Remember)}
		if t, ok := r.Expiry(); ok {
			list = append(list, t)
		}
		for _, mark := range r.Marks {
			list = append(list, mark.Until)
		}
		for _, t := range list {
			if t.After(now.Add(tick)) {
				times = append(times, t)
			}
		}
	}
	to := rapid.SampledFrom(times).Draw(m.rt, "time").Add(draw(m, "beside", 0, 0, -tick, tick))
	m.clock.Set(to)
	m.count("clock forward")
	m.compareAll("the clock went on")
}

func (m *machine) back(*rapid.T) {
	now := m.clock.Now()
	to := now.Add(-draw(m, "back", tick, time.Second, 10*time.Second, time.Minute))
	if to.Before(m.floor) {
		to = m.floor
	}
	if !to.Before(now) {
		return
	}
	m.clock.Set(to)
	m.count("clock back")
	m.compareAll("the clock stepped back")
}

// agree demands that the store decided as the rule did.
func (m *machine) agree(what string, got, want error, prev idempotency.Record) {
	m.Helper()
	if want == nil && got != nil || want != nil && !isAny(got, want) {
		m.Fatalf("%s returns %v, the rule says %v\nbefore: %s", what, got, want, show(prev))
	}
}

// compareTokens demands that the store's token is the one before, or a greater
// one where the rule raised it, and gives it to the oracle's next record.
func (m *machine) compareTokens(what string, next *idempotency.Record, got idempotency.Token, before idempotency.Record) {
	m.Helper()
	switch {
	case next.Token == before.Token && got != before.Token:
		m.Fatalf("after %s the token is %d, and it was %d", what, got, before.Token)
	case next.Token > before.Token && got <= before.Token:
		m.Fatalf("after %s the token is %d, want more than %d", what, got, before.Token)
	}
	next.Token = got
}

// settled compares the key's record after a step, and makes it the oracle's.
func (m *machine) settled(what string, k idempotency.Key, prev, next idempotency.Record) {
	m.Helper()
	now := m.clock.Now()
	before, had := idempotency.View(prev, now)
	for _, mark := range prev.Marks {
		if !now.Before(mark.Until) { // the store may have dropped it
			m.floor = latest(m.floor, now)
		}
	}
	if _, kept := idempotency.Expire(next, now); !kept { // nor need it keep this
		m.floor = latest(m.floor, now)
	}
	if _, visible := idempotency.View(next, now); visible {
		got := m.lookup(k)
		if next.Token != got.Token {
			m.compareTokens(what, &next, got.Token, before)
		}
		wrote := next.Revision != prev.Revision
		if had && (wrote && got.Revision <= before.Revision || !wrote && got.Revision != before.Revision) {
			m.Fatalf("after %s the revision is %d, and it was %d; written: %v", what, got.Revision, before.Revision, wrote)
		}
		next.Revision = got.Revision
	}
	m.oracle[k.ID] = next
	m.compareKey(what, k)
}

func (m *machine) compareKey(what string, k idempotency.Key) {
	m.Helper()
	want, visible := idempotency.View(m.oracle[k.ID], m.clock.Now())
	if !visible {
		m.free(k)
		return
	}
	m.same("after "+what, m.lookup(k), want)
}

// compareAll compares every key: after a step that is about no single one.
func (m *machine) compareAll(what string) {
	m.Helper()
	for _, k := range machineKeys {
		m.compareKey(what, k)
		if rec, ok := idempotency.View(m.oracle[k.ID], m.clock.Now()); ok && rec.State == idempotency.Shrunk {
			// A store that shrinks physically has written it.
			r := m.oracle[k.ID]
			r.Revision = m.lookup(k).Revision
			m.oracle[k.ID] = r
		}
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
