package idempotency

import (
	"net/http"
	"slices"
	"time"
)

// Decide is the rule of Reserve, R1 to R8: what the claim c comes to at the
// time now, which is the store's in whole microseconds, where prev is the
// key's record (the zero Record if there is none).
//
// It returns the record to store; if its Revision is prev's, there is nothing
// to write. prev and c are not changed. c must be valid; its terms count in
// whole microseconds, rounded down.
func Decide(prev Record, c Claim, now time.Time) (Record, Answer) {
	prev.AsOf = now
	c.Terms = c.Terms.whole()
	cur := current(prev, now)
	if cur.marked(c.Owner, now) { // R12
		return prev, Answer{Outcome: Refused, Record: cur}
	}
	if cur.State == Free { // R1
		return start(cur, c, FoundFree, now)
	}
	equal, comparable := compare(cur.Prints, c.Prints)
	say := func(o Outcome) (Record, Answer) {
		return prev, Answer{Outcome: o, Record: cur, NotComparable: !comparable}
	}
	begin := func(f Found) (Record, Answer) {
		r, a := start(cur, c, f, now)
		a.NotComparable = !comparable
		return r, a
	}
	if !equal { // R2
		return say(Mismatched)
	}
	switch cur.State {
	case Held:
		switch {
		case cur.Owner == c.Owner: // R3, whatever the clock says
			r := cur
			if end := now.Add(c.Terms.Lease); end.After(r.LeaseEnd) {
				r.LeaseEnd = end
				r = written(r, now)
			}
			return r, Answer{Outcome: Started, Record: r, Reservation: r.reservation(true), NotComparable: !comparable}
		case now.Before(cur.unknownFrom()): // R4, R5
			return say(InProgress)
		case cur.Terms.OnUnknown == Hold: // R5
			return say(Unknown)
		case cur.Terms.OnUnknown == Fail: // R5
			r := ended(cur, Result{Class: FailedFinal, Status: http.StatusInternalServerError, By: FromPolicy}, now)
			r.Owner, r.Token = Owner{}, r.Token+1
			return r, Answer{Outcome: Replayed, Record: r, NotComparable: !comparable}
		}
		return begin(FoundUnknown) // R5, takeover
	case Ended:
		if cur.Result.Class == FailedRetryable && !now.Before(cur.WindowEnd) { // R6
			return begin(FoundRetryable)
		}
		return say(Replayed) // R7
	}
	return say(Archived) // R8
}

// Finish is the rule of End: F1 to F3, R9, R11, R12. A result's window counts
// in whole microseconds, rounded down. It returns the record to store
// (unchanged if its Revision is prev's), or ErrFenced.
func Finish(prev Record, r Reservation, e Ending, now time.Time) (Record, error) {
	prev.AsOf = now
	e.Result.Window = e.Result.Window.Truncate(time.Microsecond)
	cur := current(prev, now)
	switch {
	case cur.State == Free:
		switch {
		case e.Kind != EndedNotRun:
			return prev, ErrFenced
		case r.Repeated && !r.Owner.IsZero() && !cur.marked(r.Owner, now): // R12
			cur.Key = r.Key
			return cur.withMark(r.Owner, now), nil
		}
		return prev, nil // it owns nothing, which is what it asks for
	case e.Kind == EndedNotRun && cur.releasedBy(r): // F2
		return prev, nil
	case !cur.ownedBy(r): // F1
		return prev, ErrFenced
	case cur.State == Ended && e.Kind == EndedDone && cur.Result.Equal(e.Result): // F2
		return prev, nil
	case cur.State != Held:
		return prev, ErrFenced
	}
	switch e.Kind {
	case EndedDone:
		next := ended(cur, e.Result, now)
		if r.Repeated && e.Result.Class == FailedRetryable { // R12: else a late copy claims by R6
			next = next.withMark(r.Owner, now)
		}
		return next, nil
	case EndedNotRun:
		next := notRun(cur, now)
		if r.Repeated { // R12
			next = next.withMark(r.Owner, now)
		}
		return next, nil
	}
	if !cur.LeaseEnd.After(now) { // R11; also F2: it was said before
		return prev, nil
	}
	cur.LeaseEnd = now
	return written(cur, now), nil
}

// Renew is the rule of Extend: F1, F3. The lease counts in whole microseconds,
// rounded down, and is never shortened. It returns the record to store
// (unchanged if its Revision is prev's), or ErrFenced.
func Renew(prev Record, r Reservation, lease time.Duration, now time.Time) (Record, error) {
	prev.AsOf = now
	cur := current(prev, now)
	if cur.State != Held || !cur.ownedBy(r) {
		return prev, ErrFenced
	}
	end := now.Add(lease.Truncate(time.Microsecond))
	if !end.After(cur.LeaseEnd) {
		return prev, nil
	}
	cur.LeaseEnd = end
	return written(cur, now), nil
}

// Withdraw is the rule of Void: R10, R12. It returns the record to store,
// which has the owner's mark; where nothing else is known of the key it is a
// free record.
func Withdraw(prev Record, k Key, o Owner, now time.Time) Record {
	prev.AsOf = now
	if o.IsZero() {
		return prev
	}
	cur := current(prev, now)
	cur.Key = k
	if cur.State == Held && cur.Owner == o {
		cur = notRun(cur, now)
	}
	return cur.withMark(o, now)
}

// PutStep is the rule of SaveStep. A step is found by its name. A done step
// never changes, nor does a started one's provider key. It returns the record
// to store (unchanged if its Revision is prev's), ErrFenced or ErrStep.
func PutStep(prev Record, r Reservation, s Step, now time.Time) (Record, error) {
	prev.AsOf = now
	cur := current(prev, now)
	if cur.State != Held || !cur.ownedBy(r) {
		return prev, ErrFenced
	}
	at := len(cur.Steps)
	for i, old := range cur.Steps {
		if old.Name != s.Name {
			continue
		}
		at = i
		if s.Done && s.ProviderKey == "" {
			s.ProviderKey = old.ProviderKey
		}
		if old.same(s) {
			return prev, nil
		}
		if old.Done || old.ProviderKey != s.ProviderKey {
			return prev, ErrStep
		}
		s.Started = old.Started
	}
	if at == MaxSteps {
		return prev, ErrStep
	}
	steps := make([]Step, max(len(cur.Steps), at+1))
	copy(steps, cur.Steps)
	if at == len(cur.Steps) {
		s.Started = now
	}
	s.Ended = time.Time{}
	if s.Done {
		s.Ended = now
	}
	steps[at] = s
	cur.Steps = steps
	return written(cur, now), nil
}

// SettleBy is the rule of Settle: F9. It clears the owner and raises the
// token, and marks the result as an operator's. It returns the record to
// store, or ErrNotFound, ErrConflict (also for a record that has a result) or
// ErrLive.
func SettleBy(prev Record, seen Revision, res Result, now time.Time) (Record, error) {
	prev.AsOf = now
	cur := current(prev, now)
	switch {
	case cur.State == Free:
		return prev, ErrNotFound
	case cur.Revision != seen || cur.State != Held:
		return prev, ErrConflict
	case now.Before(cur.settleableFrom()):
		return prev, ErrLive
	}
	res.By, res.Window = FromOperator, res.Window.Truncate(time.Microsecond)
	next := ended(cur, res, now)
	next.Owner, next.Token = Owner{}, cur.Token+1
	return next, nil
}

// ForgetBy is the rule of Forget: F9. It frees the key, and marks its last
// owner, so that nothing of it that arrives late claims the key anew. It
// returns the record to store, or ErrNotFound, ErrConflict or ErrLive.
func ForgetBy(prev Record, seen Revision, now time.Time) (Record, error) {
	prev.AsOf = now
	cur := current(prev, now)
	switch {
	case cur.State == Free:
		return prev, ErrNotFound
	case cur.Revision != seen:
		return prev, ErrConflict
	case cur.State == Held && now.Before(cur.settleableFrom()):
		return prev, ErrLive
	}
	next := freed(cur)
	if cur.Owner.IsZero() {
		return written(next, now), nil
	}
	return next.withMark(cur.Owner, now), nil
}

// Expire is the rule of Sweep: E1. It returns the record to store (unchanged
// if its Revision is prev's), or false if nothing of it needs to be kept.
func Expire(prev Record, now time.Time) (Record, bool) {
	prev.AsOf = now
	if keep, ok := prev.Keep(); !ok || now.Before(keep) {
		return prev, true
	}
	cur := current(prev, now)
	if cur.State == Free {
		return Record{}, false
	}
	return written(cur, now), true
}

// View returns r as it is at the time now (E2), with AsOf set, and false if
// there is nothing to be seen: it is free, or expired.
func View(r Record, now time.Time) (Record, bool) {
	r = current(r, now)
	r.AsOf = now
	return r, r.State != Free
}

// current returns what r means at the time now: an expired record is free, or
// shrunk where its terms say so. It changes neither Revision nor marks (E2).
func current(r Record, now time.Time) Record {
	if r.State == Ended && !now.Before(r.Expires) && r.Terms.Remember > 0 && r.Result.Class != FailedRetryable {
		r.State = Shrunk
		r.Result.Payload = nil
		r.Steps = nil
		r.Expires = r.Expires.Add(r.Terms.Remember)
	}
	if t, ok := r.Expiry(); r.State != Free && ok && !now.Before(t) {
		return freed(r)
	}
	return r
}

// freed is a free record that remembers only the marks, and the revision so
// that the next one is greater.
func freed(r Record) Record {
	return Record{Key: r.Key, Marks: r.Marks, Revision: r.Revision, Created: r.Created, Updated: r.Updated, AsOf: r.AsOf}
}

// start gives the key to the claim.
func start(cur Record, c Claim, found Found, now time.Time) (Record, Answer) {
	r := cur
	r.Key = c.Key
	r.State = Held
	r.Prints = merge(cur.Prints, c.Prints)
	r.Owner = c.Owner
	r.Token++
	r.Terms = c.Terms
	r.Attempt++
	r.Takeover = found == FoundUnknown
	r.LeaseEnd = now.Add(c.Terms.Lease)
	r.Found = found
	r.FoundLease = time.Time{}
	r.FoundSteps = len(cur.Steps)
	r.Released = Owner{}
	r.WindowEnd, r.Expires = time.Time{}, time.Time{}
	switch found {
	case FoundFree:
		r.Origin, r.Created = c.Origin, now
	case FoundUnknown:
		r.FoundLease = cur.LeaseEnd
		r.Result = Result{}
	}
	r = written(r, now)
	return r, Answer{Outcome: Started, Record: r, Reservation: r.reservation(false)}
}

// ended gives the record a result.
func ended(cur Record, res Result, now time.Time) Record {
	cur.State = Ended
	cur.Result = res
	cur.WindowEnd = time.Time{}
	if res.Class == FailedRetryable {
		cur.WindowEnd = now.Add(res.Window)
	}
	cur.Expires = now.Add(max(cur.Terms.Retention, res.Window))
	cur.Found, cur.FoundLease, cur.FoundSteps = FoundFree, time.Time{}, 0
	return written(cur, now)
}

// notRun is R9: the state and the results that the claim found, not owner or
// token. If the attempt saved a step, or a step is only started, an effect may
// have happened: then the key becomes unknown.
func notRun(cur Record, now time.Time) Record {
	open := len(cur.Steps) > cur.FoundSteps
	for _, s := range cur.Steps {
		open = open || !s.Done
	}
	owner := cur.Owner
	switch {
	case open: // and its quiet time runs from here (R11), whatever was found
		if cur.LeaseEnd.After(now) {
			cur.LeaseEnd = now
		}
		cur.Result = Result{}
	case cur.Found == FoundUnknown:
		cur.LeaseEnd = cur.FoundLease
	case cur.Found == FoundRetryable:
		cur = ended(cur, cur.Result, now)
		cur.WindowEnd = now
	default:
		return written(freed(cur), now)
	}
	cur.Owner, cur.Released = Owner{}, owner
	return written(cur, now)
}

// written stamps a changed record. The revision follows the clock so that it
// also grows across the deletion of a record.
func written(r Record, now time.Time) Record {
	r.Revision = max(r.Revision+1, Revision(now.UnixMicro()))
	r.Updated, r.AsOf = now, now
	if r.Created.IsZero() {
		r.Created = now
	}
	var live []Mark
	for _, m := range r.Marks {
		if now.Before(m.Until) {
			live = append(live, m)
		}
	}
	r.Marks = live
	return r
}

// withMark returns r, written, with a mark of o that lasts for MarkTime.
func (r Record) withMark(o Owner, now time.Time) Record {
	marks := make([]Mark, 0, len(r.Marks)+1)
	for _, m := range r.Marks {
		if m.Owner != o {
			marks = append(marks, m)
		}
	}
	r.Marks = append(marks, Mark{Owner: o, Until: now.Add(MarkTime)})
	return written(r, now)
}

func (r Record) marked(o Owner, now time.Time) bool {
	for _, m := range r.Marks {
		if m.Owner == o && now.Before(m.Until) {
			return true
		}
	}
	return false
}

// ownedBy is the fence, F1: owner and token.
func (r Record) ownedBy(v Reservation) bool {
	return !v.Owner.IsZero() && r.Owner == v.Owner && r.Token == v.Token
}

func (r Record) releasedBy(v Reservation) bool {
	return !v.Owner.IsZero() && r.Released == v.Owner && r.Token == v.Token
}

func (r Record) reservation(repeated bool) Reservation {
	return Reservation{
		Key: r.Key, Owner: r.Owner, Token: r.Token, LeaseEnd: r.LeaseEnd,
		Takeover: r.Takeover, Repeated: repeated,
	}
}

// merge returns the fresh fingerprints, and those old ones whose tags are not
// among them: a claim that was not compared by a tag must not make the record
// forget it (R2).
func merge(old, fresh []Fingerprint) []Fingerprint {
	all := append([]Fingerprint(nil), fresh...)
	for _, p := range old {
		if !slices.ContainsFunc(fresh, func(f Fingerprint) bool { return f.Tag == p.Tag }) {
			all = append(all, p)
		}
	}
	return all
}

// compare reports whether no fingerprint of an equal tag differs, and whether
// there was anything to compare where both sides have fingerprints (R2).
func compare(old, fresh []Fingerprint) (equal, comparable bool) {
	comparable = len(old) == 0 || len(fresh) == 0
	for _, a := range old {
		for _, b := range fresh {
			if a.Tag != b.Tag {
				continue
			}
			comparable = true
			if a.Sum != b.Sum {
				return false, true
			}
		}
	}
	return true, comparable
}
