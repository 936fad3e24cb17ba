package idempotency

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

// walk is a long random life of one key, at random times.
type walk struct {
	rng   *rand.Rand
	now   time.Time
	r     Record
	known []Reservation // all that were ever given
	ended map[Reservation]Ending
	did   []string // the last calls, for a failure's report
	count map[string]int
	err   error // the first broken invariant
}

func newWalk(seed uint64) *walk {
	return &walk{
		rng: rand.New(rand.NewPCG(seed, 1)), now: noon,
		ended: map[Reservation]Ending{}, count: map[string]int{},
	}
}

func (w *walk) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// note remembers the last calls.
func (w *walk) note(format string, args ...any) {
	if len(w.did) == 12 {
		w.did = w.did[1:]
	}
	w.did = append(w.did, fmt.Sprintf(format, args...))
}

// pass lets time go by: often nothing, or to the very edge of what the record
// waits for, or a microsecond before it.
func (w *walk) pass() {
	edges := []time.Time{
		w.r.LeaseEnd, w.r.unknownFrom(), w.r.settleableFrom(), w.r.WindowEnd, w.r.Expires,
	}
	if t, ok := w.r.Keep(); ok {
		edges = append(edges, t)
	}
	for _, m := range w.r.Marks {
		edges = append(edges, m.Until)
	}
	switch w.rng.IntN(6) {
	case 0:
		w.now = w.now.Add(time.Duration(w.rng.Int64N(int64(2 * time.Minute)))).Truncate(us)
	case 1, 2:
		t := edges[w.rng.IntN(len(edges))].Add(-time.Duration(w.rng.IntN(2)) * us)
		if t.After(w.now) {
			w.now = t
		}
	case 3:
		w.now = w.now.Add(time.Duration(w.rng.IntN(3)) * us)
	}
}

func (w *walk) terms() Terms {
	return Terms{
		Lease:     us * time.Duration(1+w.rng.IntN(20_000_000)),
		Retention: us * time.Duration(1+w.rng.IntN(90_000_000)),
		Remember:  us * time.Duration(w.rng.IntN(2)*w.rng.IntN(90_000_000)),
		Quiet:     us * time.Duration(w.rng.IntN(30_000_000)),
		OnUnknown: policies[w.rng.IntN(len(policies))],
	}
}

func (w *walk) claim() Claim {
	c := Claim{Key: ruleKey, Owner: ownerOf(uint8(1 + w.rng.IntN(6))), Terms: w.terms()}
	for _, tag := range []string{"v3", "v2", "v1"} {
		if w.rng.IntN(2) == 0 {
			c.Prints = append(c.Prints, Fingerprint{Tag: tag, Sum: [32]byte{byte(w.rng.IntN(12) / 11)}})
		}
	}
	return c
}

func (w *walk) ending() Ending {
	switch w.rng.IntN(6) {
	case 0:
		return NotRun()
	case 1:
		return UnknownEnding()
	case 2, 3:
		return Done(Result{Class: FailedRetryable, Status: 503, Window: us * time.Duration(w.rng.IntN(5_000_000))})
	}
	return Done(Result{Class: Succeeded, Status: 200, Payload: []byte{byte(w.rng.IntN(3))}})
}

func (w *walk) reservation() Reservation {
	if len(w.known) == 0 {
		return Reservation{Key: ruleKey, Owner: ownerOf(1), Token: 1}
	}
	v := w.known[max(0, len(w.known)-1-w.rng.IntN(4))]
	v.Repeated = w.rng.IntN(2) == 0
	return v
}

// step makes one random call.
func (w *walk) step() {
	w.pass()
	prev, before := w.r, cloned(w.r)
	switch n := w.rng.IntN(20); {
	case n < 7:
		w.reserve(prev)
	case n < 12:
		w.finish(prev)
	case n < 14:
		v, d := w.reservation(), us*time.Duration(1+w.rng.IntN(20_000_000))
		next, err := Renew(prev, v, d, w.now)
		w.wrote("Renew", prev, next, err)
		if err == nil && (next.LeaseEnd.Before(prev.LeaseEnd) || next.LeaseEnd.Before(w.now.Add(d))) {
			w.fail("Renew: lease end %v, was %v", next.LeaseEnd, prev.LeaseEnd)
		}
	case n < 15:
		o := ownerOf(uint8(1 + w.rng.IntN(6)))
		next := Withdraw(prev, ruleKey, o, w.now)
		w.wrote("Withdraw", prev, next, nil)
		if !next.marked(o, w.now) || next.State == Held && next.Owner == o {
			w.fail("Withdraw: %v is not marked, or still holds the key", o)
		}
	case n < 17:
		s := Step{Name: fmt.Sprint(w.rng.IntN(3)), Done: w.rng.IntN(2) == 0, ProviderKey: "k"}
		next, err := PutStep(prev, w.reservation(), s, w.now)
		w.wrote("PutStep", prev, next, err)
	case n < 18:
		w.operate(prev)
	default:
		w.expire(prev)
	}
	if got := cloned(prev); !reflect.DeepEqual(got, before) {
		w.fail("the record that was given changed: %+v, was %+v", got, before)
	}
}

// wrote takes the new record over and checks what every call must keep.
func (w *walk) wrote(name string, prev, next Record, err error) {
	written := next.Revision != prev.Revision
	w.note("%v %s: written %v, error %v: %v", w.now.Sub(noon), name, written, err, next.State)
	if err == nil && written {
		w.count[name]++
	}
	was := current(prev, w.now)
	switch {
	case err != nil && written:
		w.fail("%s: %v, and the record changed", name, err)
	case next.Revision < prev.Revision:
		w.fail("%s: revision %d after %d", name, next.Revision, prev.Revision)
	case !written && !reflect.DeepEqual(stamped(next), stamped(prev)):
		w.fail("%s: a change without a revision: %+v, was %+v", name, next, prev)
	case was.State != Free && next.State != Free && next.Token < was.Token:
		w.fail("%s: token %d after %d", name, next.Token, was.Token)
	case next.State == Held && next.LeaseEnd.IsZero(), next.State == Ended && next.Expires.Before(prev.Expires) && !written:
		w.fail("%s: times: %+v", name, next)
	}
	if written && was.State != Free && next.State != Free {
		for _, p := range was.Prints {
			if !hasTag(next.Prints, p.Tag) {
				w.fail("%s: the fingerprint %q is lost", name, p.Tag)
			}
		}
	}
	for _, m := range prev.Marks {
		if w.now.Before(m.Until) && !next.marked(m.Owner, w.now) {
			w.fail("%s: the mark of %v is lost", name, m.Owner)
		}
	}
	w.r = next
	w.r.AsOf = time.Time{}
}

func stamped(r Record) Record {
	r.AsOf = time.Time{}
	return r
}

func hasTag(prints []Fingerprint, tag string) bool {
	for _, p := range prints {
		if p.Tag == tag {
			return true
		}
	}
	return false
}

func (w *walk) reserve(prev Record) {
	c := w.claim()
	next, a := Decide(prev, c, w.now)
	was := current(prev, w.now)
	w.wrote("Decide", prev, next, nil)
	w.count["outcome "+a.Outcome.String()]++
	live := was.State == Held && w.now.Before(was.LeaseEnd)
	switch {
	case was.marked(c.Owner, w.now) != (a.Outcome == Refused):
		w.fail("Decide: %v for a marked owner", a.Outcome)
	case a.Outcome != Started && a.Reservation != (Reservation{}):
		w.fail("Decide: %v with a reservation", a.Outcome)
	case a.Outcome != Started:
	case next.State != Held || next.Owner != c.Owner || a.Reservation.Owner != c.Owner || a.Reservation.Token != next.Token || next.LeaseEnd.Before(w.now.Add(c.Terms.Lease)):
		w.fail("Decide: started, with %+v for %+v", a.Reservation, next)
	case live && was.Owner != c.Owner:
		w.fail("Decide: started while %v has a lease", was.Owner)
	case was.State == Ended && was.Result.Class != FailedRetryable, was.State == Shrunk:
		w.fail("Decide: started after %v", was.Result.Class)
	case was.State == Held && was.Owner != c.Owner && (was.Terms.OnUnknown == Hold || was.Terms.OnUnknown == Fail):
		w.fail("Decide: took over under %v", was.Terms.OnUnknown)
	case was.State != Free && !a.Reservation.Repeated && next.Token <= was.Token:
		w.fail("Decide: started with the token %d after %d", next.Token, was.Token)
	case was.State == Free && (next.Token != 1 || len(next.Steps) > 0 || next.Takeover):
		w.fail("Decide: a new life with the old one's: %+v", next)
	}
	if a.Outcome == Started {
		w.known = append(w.known, a.Reservation)
	}
	if wait := was.unknownFrom(); was.State == Held && !w.now.Before(wait) && a.Outcome == InProgress {
		w.fail("Decide: in progress after lease and quiet time")
	}
}

func (w *walk) finish(prev Record) {
	v, e := w.reservation(), w.ending()
	next, err := Finish(prev, v, e, w.now)
	was := current(prev, w.now)
	w.wrote("Finish "+e.Kind.String(), prev, next, err)
	if next.Revision != prev.Revision && was.State == Held && !was.ownedBy(v) {
		w.fail("Finish: %v with the token %d changed the record of %v with the token %d", v.Owner, v.Token, was.Owner, was.Token)
	}
	if err != nil {
		if !errors.Is(err, ErrFenced) {
			w.fail("Finish: %v", err)
		}
		return
	}
	again, err := Finish(next, v, e, w.now)
	if err != nil || again.Revision != next.Revision {
		w.fail("the same ending (%v) again: error %v, revision %d after %d", e.Kind, err, again.Revision, next.Revision)
	}
	if was.State == Held && e.Kind == EndedNotRun && was.Found == FoundUnknown && next.State != Held {
		w.fail("NotRun of a takeover: %+v", next)
	}
}

func (w *walk) operate(prev Record) {
	seen := prev.Revision - Revision(w.rng.IntN(2))
	was := current(prev, w.now)
	var (
		next Record
		err  error
		name = "SettleBy"
	)
	if w.rng.IntN(2) == 0 {
		next, err = SettleBy(prev, seen, Result{Class: Succeeded, Status: 200}, w.now)
	} else {
		name = "ForgetBy"
		next, err = ForgetBy(prev, seen, w.now)
	}
	w.wrote(name, prev, next, err)
	switch {
	case err != nil:
	case seen != prev.Revision:
		w.fail("%s: it had changed since", name)
	case was.State == Held && w.now.Before(was.settleableFrom()):
		w.fail("%s: an attempt may still be under way", name)
	case !next.Owner.IsZero():
		w.fail("%s: still owned by %v", name, next.Owner)
	case name == "SettleBy" && next.Token <= was.Token:
		w.fail("%s: token %d after %d", name, next.Token, was.Token)
	}
}

func (w *walk) expire(prev Record) {
	next, kept := Expire(prev, w.now)
	was := current(prev, w.now)
	if kept {
		w.wrote("Expire", prev, next, nil)
		return
	}
	w.count["removed"]++
	if was.State != Free {
		w.fail("Expire dropped a record that counts: %+v", was)
	}
	for _, m := range prev.Marks {
		if w.now.Before(m.Until) {
			w.fail("Expire dropped the mark of %v", m.Owner)
		}
	}
	w.note("%v Expire: removed", w.now.Sub(noon))
	w.r = Record{}
}

func (w *walk) report() string {
	return strings.Join(w.did, "\n  ")
}

// TestWalk is many random lives. Every kind of call must have written, and
// every outcome have come, or the walk proves little. ESCAPEMENT_SEED=n repeats
// a failure.
func TestWalk(t *testing.T) {
	lives, seed := 100, rand.Uint64()
	if s := os.Getenv("ESCAPEMENT_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("ESCAPEMENT_SEED=%q: %v", s, err)
		}
	}
	if os.Getenv("ESCAPEMENT_SOAK") == "1" {
		lives *= 100
	}
	count := map[string]int{}
	for i := range lives {
		w := newWalk(seed + uint64(i))
		for range 400 {
			if w.step(); w.err != nil {
				t.Fatalf("seed %d: %v\n  %s", seed+uint64(i), w.err, w.report())
			}
		}
		for k, n := range w.count {
			count[k] += n
		}
	}
	for _, k := range []string{
		"Decide", "Renew", "Withdraw", "PutStep", "SettleBy", "ForgetBy", "Expire", "removed",
		"Finish done", "Finish not_run", "Finish unknown",
		"outcome refused", "outcome started", "outcome replayed", "outcome in_progress", "outcome mismatched", "outcome unknown", "outcome archived",
	} {
		if count[k] == 0 {
			t.Errorf("seed %d: %s never happened", seed, k)
		}
	}
	t.Logf("seed %d: %v", seed, count)
}

// FuzzWalk is the same from seeds that the fuzzer chooses.
func FuzzWalk(f *testing.F) {
	f.Add(uint64(1))
	f.Add(uint64(1 << 40))
	f.Fuzz(func(t *testing.T, seed uint64) {
		w := newWalk(seed)
		for range 200 {
			if w.step(); w.err != nil {
				t.Fatalf("seed %d: %v\n  %s", seed, w.err, w.report())
			}
		}
	})
}
