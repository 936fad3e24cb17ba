package idempotency

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// The exploration keeps records as shapes: everything of a record that can
// still matter, with times as whole ticks from now. There are few of them, so
// that each call of the real rule on a shape is made once and remembered.

const (
	tick    = time.Second
	maxWho  = 7 // owners are 1 to maxWho; 0 is nobody
	fresher = 6 // the owner of the claim that P6 and P9 try in the end
)

// Results that no attempt wrote. An attempt's own is its number, from 1.
const (
	byPolicy   = 7
	byProbe    = 8
	byOperator = 9
)

var (
	exploreKey   = Key{ID: ID{1}, Tenant: "t"}
	exploreEpoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	// exploreLater is where every call is made a second time: the rule must
	// not depend on which day it is.
	exploreLater = exploreEpoch.Add(777*24*time.Hour + 123457*time.Microsecond)
)

// shape is a normalised record. It is comparable. Created, Updated, Origin,
// Attempt and Revision decide nothing and are not in it; marks are permanent.
type shape struct {
	state    State
	print    uint8 // 0: none; else the fingerprint's number + 1
	owner    uint8
	token    uint8
	found    Found
	takeover bool
	released uint8
	class    Class
	result   uint8
	marks    uint8 // a bit for each owner
	step     uint8 // 0: none, 1: started, 2: done
	steps    uint8 // how many of them the claim found

	lease, foundLease, window, expires int8
}

func (v shape) String() string {
	var b strings.Builder
	switch v.state {
	case Held:
		fmt.Fprintf(&b, "held by %s, token %d, lease %+d", whoName(v.owner), v.token, v.lease)
		if v.takeover {
			b.WriteString(", takeover")
		}
		if v.step > 0 {
			fmt.Fprintf(&b, ", step %s", [...]string{"", "started", "done"}[v.step])
		}
	case Ended, Shrunk:
		fmt.Fprintf(&b, "%v %v (%s), owner %s, token %d, expires %+d", v.state, v.class, whoName(v.result), whoName(v.owner), v.token, v.expires)
		if v.class == FailedRetryable {
			fmt.Fprintf(&b, ", window %+d", v.window)
		}
	default:
		b.WriteString("free")
	}
	for who := range maxWho + 1 {
		if v.marks>>who&1 == 1 {
			fmt.Fprintf(&b, ", mark of %s", whoName(uint8(who)))
		}
	}
	return b.String()
}

func whoName(who uint8) string {
	switch {
	case who == 0:
		return "nobody"
	case who == byPolicy:
		return "policy"
	case who == byProbe:
		return "probe"
	case who == byOperator:
		return "operator"
	}
	return string('A' + rune(who-1))
}

func ownerOf(who uint8) (o Owner) {
	o[len(o)-1] = who
	return o
}

func printsOf(n uint8) []Fingerprint {
	if n == 0 {
		return nil
	}
	return []Fingerprint{{Tag: "v1", Sum: [32]byte{n}}}
}

// op is a call of the rule.
type op uint8

const (
	opReserve op = iota
	opRenew
	opDone
	opRetryable
	opUnknown
	opNotRun
	opVoid
	opStepStarted
	opStepDone
	opSettle
	opForget
	opExpire
	opForward // one tick passes for the record
	opBack    // the store's clock steps back one tick
	opLong    // time enough for every lease, quiet time and window
)

// call is a call of the rule on a record. It is comparable.
type call struct {
	rec    uint16
	op     op
	who    uint8
	token  uint8
	result uint8 // opReserve: the fingerprint
	flag   bool  // opNotRun: Reserve was repeated; opSettle, opForget: nobody wrote since it was seen
}

// reply is what the rule said.
type reply struct {
	rec      uint16
	outcome  Outcome
	token    uint8
	ok       bool // no error
	changed  bool // it was written
	begun    bool // Started, and not R3's repetition
	takeover bool
	repeated bool
}

// book holds the shapes met so far and what the rule said of them.
type book struct {
	rule   rules
	honest bool // the rule is the real one: it must also keep its own promises
	terms  Terms
	window time.Duration
	floor  int8 // a lease that is over by more than this is over for good
	ids    map[shape]uint16
	shapes []shape
	said   map[call]reply
}

func newBook(rule rules, honest bool, terms Terms, window time.Duration) *book {
	floor := terms.Quiet
	if terms.OnUnknown == Retry {
		floor = max(terms.Retention, terms.Quiet)
	}
	b := &book{
		rule: rule, honest: honest, terms: terms, window: window,
		floor: -int8(floor/tick) - 1,
		ids:   map[shape]uint16{}, said: map[call]reply{},
	}
	b.id(shape{})
	return b
}

func (b *book) id(v shape) uint16 {
	id, ok := b.ids[v]
	if !ok {
		if len(b.shapes) == 1<<16 {
			panic("more shapes of records than the exploration has numbers for")
		}
		id = uint16(len(b.shapes))
		b.ids[v] = id
		b.shapes = append(b.shapes, v)
	}
	return id
}

// over reports whether nothing of the record counts any more. It is said here
// a second time, from the clauses, so that the rule cannot excuse itself.
func (b *book) over(id uint16) bool {
	switch v := b.shapes[id]; v.state {
	case Held:
		return b.terms.OnUnknown == Retry && v.lease <= -int8(max(b.terms.Retention, b.terms.Quiet)/tick)
	case Ended:
		if v.class == FailedRetryable {
			return v.expires <= 0
		}
		return v.expires <= -int8(b.terms.Remember/tick)
	case Shrunk:
		return v.expires <= 0
	}
	return false
}

// do asks the rule, or remembers.
func (b *book) do(c call) reply {
	if r, ok := b.said[c]; ok {
		return r
	}
	v, r := b.ask(c, exploreEpoch)
	if v2, r2 := b.ask(c, exploreLater); v2 != v || r2 != r {
		panic(fmt.Sprintf("the rule depends on the day: %+v of %v: %v %+v, later %v %+v", c, b.shapes[c.rec], v, r, v2, r2))
	}
	r.rec = b.id(v)
	b.said[c] = r
	return r
}

func (b *book) ask(c call, now time.Time) (shape, reply) {
	prev := b.record(b.shapes[c.rec], now)
	if shift := map[op]int8{opForward: -1, opBack: 1, opLong: -100}[c.op]; shift != 0 {
		v := b.shapes[c.rec]
		if c.op == opLong && v.state == Ended && v.class != FailedRetryable {
			return v, reply{}
		}
		if c.op == opLong && v.state == Held && b.terms.OnUnknown == Retry {
			shift = min(0, -v.lease-int8(b.terms.Quiet/tick)) // not so long that it expires
		}
		for _, t := range []*time.Time{&prev.LeaseEnd, &prev.FoundLease, &prev.WindowEnd, &prev.Expires} {
			if !t.IsZero() {
				*t = t.Add(time.Duration(shift) * tick)
			}
		}
		return b.shape(prev, now), reply{}
	}
	before := cloned(prev)
	var (
		next Record
		r    reply
		err  error
		res  = Reservation{Key: exploreKey, Owner: ownerOf(c.who), Token: Token(c.token), Repeated: c.flag}
		seen = prev.Revision
	)
	if !c.flag {
		seen--
	}
	switch c.op {
	case opReserve:
		var a Answer
		next, a = b.rule.decide(prev, Claim{Key: exploreKey, Prints: printsOf(c.result + 1), Owner: ownerOf(c.who), Terms: b.terms}, now)
		r.outcome = a.Outcome
		if a.Outcome == Started {
			r.token, r.takeover, r.repeated = uint8(a.Reservation.Token), a.Reservation.Takeover, a.Reservation.Repeated
			r.begun = !a.Reservation.Repeated
		}
		if b.honest && (a.Outcome == Started) != (a.Reservation != Reservation{}) {
			panic(fmt.Sprintf("%v with the reservation %+v", a.Outcome, a.Reservation))
		}
	case opRenew:
		next, err = b.rule.renew(prev, res, b.terms.Lease, now)
	case opDone, opRetryable, opUnknown, opNotRun:
		next, err = b.rule.finish(prev, res, b.ending(c), now)
	case opVoid:
		next = b.rule.withdraw(prev, exploreKey, ownerOf(c.who), now)
	case opStepStarted, opStepDone:
		next, err = b.rule.putStep(prev, res, Step{Name: "s", Done: c.op == opStepDone}, now)
	case opSettle:
		next, err = b.rule.settle(prev, seen, b.result(Succeeded, byOperator), now)
	case opForget:
		next, err = b.rule.forget(prev, seen, now)
	case opExpire:
		var keep bool
		next, keep = b.rule.expire(prev, now)
		if !keep {
			next = Record{}
		}
	}
	r.ok = err == nil
	v := b.shape(next, now)
	if !reflect.DeepEqual(prev, before) {
		panic(fmt.Sprintf("%+v changed the record that it was given: %+v, was %+v", c, prev, before))
	}
	r.changed = next.Revision != prev.Revision || v != b.shapes[c.rec]
	if b.honest && !(c.op == opExpire && v == shape{}) {
		switch {
		case next.Revision < prev.Revision, v != b.shapes[c.rec] && next.Revision == prev.Revision:
			panic(fmt.Sprintf("%+v of %v to %v: revision %d after %d", c, b.shapes[c.rec], v, next.Revision, prev.Revision))
		case err != nil && r.changed:
			panic(fmt.Sprintf("%+v of %v: error %v, and a change to %v", c, b.shapes[c.rec], err, v))
		}
	}
	return v, r
}

func (b *book) ending(c call) Ending {
	switch c.op {
	case opDone:
		return Done(b.result(Succeeded, c.result))
	case opRetryable:
		return Done(b.result(FailedRetryable, 0))
	case opNotRun:
		return NotRun()
	}
	return UnknownEnding()
}

func (b *book) result(class Class, who uint8) Result {
	r := Result{Class: class, Status: 201}
	if who > 0 {
		r.Payload = []byte{who}
	}
	switch {
	case who == byProbe:
		r.By = FromProbe
	case who == byOperator:
		r.By = FromOperator
	case who == byPolicy:
		r = Result{Class: FailedFinal, Status: 500, By: FromPolicy}
	}
	if class == FailedRetryable {
		r.Window = b.window
	}
	return r
}

// record builds the real record of a shape.
func (b *book) record(v shape, now time.Time) Record {
	if v == (shape{}) {
		return Record{}
	}
	at := func(n int8) time.Time { return now.Add(time.Duration(n) * tick) }
	r := Record{
		Key: exploreKey, State: v.state, Prints: printsOf(v.print), Owner: ownerOf(v.owner), Token: Token(v.token),
		Found: v.found, Takeover: v.takeover, Released: ownerOf(v.released), FoundSteps: int(v.steps),
		Created: exploreEpoch, Updated: exploreEpoch, Revision: 1000,
	}
	for who := range maxWho + 1 {
		if v.marks>>who&1 == 1 {
			r.Marks = append(r.Marks, Mark{Owner: ownerOf(uint8(who)), Until: now.Add(MarkTime)})
		}
	}
	if v.state == Free {
		return r
	}
	r.Terms, r.Attempt = b.terms, 1
	if v.class != 0 {
		r.Result = b.result(v.class, v.result)
	}
	switch v.state {
	case Held:
		r.LeaseEnd = at(v.lease)
		if v.found == FoundUnknown {
			r.FoundLease = at(v.foundLease)
		}
	case Ended, Shrunk:
		r.Expires = at(v.expires)
		if v.class == FailedRetryable {
			r.WindowEnd = at(v.window)
		}
	}
	if v.step > 0 {
		r.Steps = []Step{{Name: "s", Done: v.step == 2, Started: exploreEpoch}}
	}
	return r
}

// shape is record's inverse: it forgets what cannot matter.
func (b *book) shape(r Record, now time.Time) shape {
	var v shape
	ticks := func(t time.Time, floor int8) int8 {
		d := t.Sub(now)
		if d%tick != 0 {
			panic(fmt.Sprintf("a time that is no whole tick: %v from now", d))
		}
		return int8(max(d/tick, time.Duration(floor)))
	}
	for _, m := range r.Marks {
		if now.Before(m.Until) {
			v.marks |= 1 << m.Owner[len(m.Owner)-1]
		}
	}
	v.state = r.State
	if r.State == Free {
		return v
	}
	if len(r.Prints) > 0 {
		v.print = r.Prints[0].Sum[0]
	}
	v.owner, v.token, v.released = r.Owner[len(r.Owner)-1], uint8(r.Token), r.Released[len(r.Released)-1]
	switch r.State {
	case Held:
		v.lease = ticks(r.LeaseEnd, b.floor)
		if v.owner != 0 {
			v.found, v.takeover, v.steps = r.Found, r.Takeover, uint8(r.FoundSteps)
			if r.Found == FoundUnknown {
				v.foundLease = ticks(r.FoundLease, b.floor)
			}
			if r.Found == FoundRetryable {
				v.class, v.result = r.Result.Class, resultOf(r.Result)
			}
		}
	case Ended, Shrunk:
		v.class, v.result = r.Result.Class, resultOf(r.Result)
		v.expires = ticks(r.Expires, -int8(b.terms.Remember/tick)-1)
		if v.class == FailedRetryable {
			v.window = ticks(r.WindowEnd, -1)
		}
	}
	if len(r.Steps) > 0 {
		v.step = 1
		if r.Steps[0].Done {
			v.step = 2
		}
	}
	return v
}

func resultOf(r Result) uint8 {
	switch {
	case r.By == FromPolicy:
		return byPolicy
	case len(r.Payload) > 0:
		return r.Payload[0]
	}
	return 0
}

// cloned is a deep copy of r.
func cloned(r Record) Record {
	r.Prints = append([]Fingerprint(nil), r.Prints...)
	r.Marks = append([]Mark(nil), r.Marks...)
	r.Steps = append([]Step(nil), r.Steps...)
	for i := range r.Steps {
		r.Steps[i].Answer = append([]byte(nil), r.Steps[i].Answer...)
	}
	r.Result.Payload = append([]byte(nil), r.Result.Payload...)
	return r
}
