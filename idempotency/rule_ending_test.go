package idempotency

import (
	"errors"
	"reflect"
	"testing"
	"time"
)

func wantFenced(t *testing.T, prev, next Record, err error) {
	t.Helper()
	if !errors.Is(err, ErrFenced) {
		t.Fatalf("error %v, want ErrFenced", err)
	}
	unchanged(t, prev, next)
}

func TestR9NotRunOfFree(t *testing.T) {
	for _, p := range policies {
		r, v := begun(t, 1, p, noon)
		next := finishedWith(t, r, v, NotRun(), noon)
		if next.State != Free || next.Prints != nil || next.Marks != nil || next.Token != 0 || next.Revision <= r.Revision {
			t.Fatalf("%+v", next)
		}
		other := claimOf(2, p)
		other.Prints = []Fingerprint{{Tag: "v1", Sum: [32]byte{99}}}
		taken(t, next, other, noon)
	}
}

// TestR9NotRunOfTakeover: unknown as it was found, and nobody's; also two
// levels deep.
func TestR9NotRunOfTakeover(t *testing.T) {
	for _, p := range []OnUnknown{Retry, Probe} {
		r, v := begun(t, 1, p, noon)
		r, err := PutStep(r, v, Step{Name: "s", Done: true, ProviderID: "ch_1"}, noon)
		if err != nil {
			t.Fatal(err)
		}
		at := noon.Add(lease + quiet)
		for who := uint8(2); who < 5; who++ {
			token := Token(who)
			r, v = taken(t, r, claimOf(who, p), at)
			r = finishedWith(t, r, v, NotRun(), at)
			if r.State != Held || !r.Owner.IsZero() || r.Token != token || !r.LeaseEnd.Equal(noon.Add(lease)) || len(r.Steps) != 1 {
				t.Fatalf("%v, owner %d: %+v", p, who, r)
			}
			if s := r.statusAt(at); s != StatusUnknown {
				t.Fatalf("status %v", s)
			}
		}
	}
}

func TestR9NotRunOfRetryable(t *testing.T) {
	r, v := begun(t, 1, Hold, noon)
	r = finishedWith(t, r, v, tryAgain(), noon)
	at := noon.Add(time.Hour)
	r, v = taken(t, r, claimOf(2, Hold), at)
	r = finishedWith(t, r, v, NotRun(), at)
	if r.State != Ended || !r.Result.Equal(tryAgain().Result) || !r.Owner.IsZero() || r.Token != 2 || !r.Expires.Equal(at.Add(retention)) {
		t.Fatalf("%+v", r)
	}
	taken(t, r, claimOf(3, Hold), at) // its window is over, as it was found
}

// TestR9StepSaved: an attempt that saved a step may have had an effect,
// whatever it says.
func TestR9StepSaved(t *testing.T) {
	at := noon.Add(time.Second)
	for _, done := range []bool{false, true} {
		for _, p := range policies {
			r, v := begun(t, 1, p, noon)
			r, err := PutStep(r, v, Step{Name: "s", Done: done}, noon)
			if err != nil {
				t.Fatal(err)
			}
			r = finishedWith(t, r, v, NotRun(), at)
			if r.State != Held || !r.Owner.IsZero() || !r.LeaseEnd.Equal(at) || len(r.Steps) != 1 {
				t.Fatalf("%v: %+v", p, r)
			}
			if p != Hold {
				wantOutcome(t, r, claimOf(2, p), at.Add(quiet-us), InProgress)
			} else {
				wantOutcome(t, r, claimOf(2, p), at, Unknown)
			}
		}
	}
}

// TestR9StepSavedLate: an attempt that says NotRun after its lease starts no
// new quiet time; its lease ended when it ended.
func TestR9StepSavedLate(t *testing.T) {
	r, v := begun(t, 1, Probe, noon)
	r, err := PutStep(r, v, Step{Name: "s"}, noon)
	if err != nil {
		t.Fatal(err)
	}
	if r = finishedWith(t, r, v, NotRun(), noon.Add(lease+time.Second)); !r.LeaseEnd.Equal(noon.Add(lease)) {
		t.Fatalf("lease end %v", r.LeaseEnd)
	}
}

// TestR9StepOfTakeover: the quiet time runs from the end of the attempt that
// may be travelling, not from the one before it. The step is the takeover's
// own, or one that it found started and goes on with.
func TestR9StepOfTakeover(t *testing.T) {
	for _, found := range []bool{false, true} {
		r, v := begun(t, 1, Probe, noon)
		var err error
		if found {
			if r, err = PutStep(r, v, Step{Name: "s"}, noon); err != nil {
				t.Fatal(err)
			}
		}
		at := noon.Add(time.Hour)
		r, v = taken(t, r, claimOf(2, Probe), at)
		if r, err = PutStep(r, v, Step{Name: "s"}, at); err != nil {
			t.Fatal(err)
		}
		r = finishedWith(t, r, v, NotRun(), at.Add(time.Second))
		if !r.LeaseEnd.Equal(at.Add(time.Second)) {
			t.Fatalf("found %v: the lease ended at %v after the attempt's end", found, r.LeaseEnd.Sub(at))
		}
		wantOutcome(t, r, claimOf(3, Probe), at.Add(time.Second+quiet-us), InProgress)
		if a := wantOutcome(t, r, claimOf(3, Probe), at.Add(time.Second+quiet), Started); !a.Reservation.Takeover {
			t.Fatal("not a takeover")
		}
	}
}

// TestR10Void: whatever the owner holds ends as NotRun; other owners' do not.
func TestR10Void(t *testing.T) {
	r, _ := begun(t, 1, Hold, noon)
	next := Withdraw(r, ruleKey, ownerOf(2), noon)
	if next.State != Held || next.Owner != ownerOf(1) || next.Token != 1 || !next.marked(ownerOf(2), noon) {
		t.Fatalf("%+v", next)
	}
	next = Withdraw(next, ruleKey, ownerOf(1), noon)
	if next.State != Free || len(next.Marks) != 2 {
		t.Fatalf("%+v", next)
	}
	taken(t, next, claimOf(3, Hold), noon)

	if next := Withdraw(Record{}, ruleKey, ownerOf(1), noon); next.Key != ruleKey || next.State != Free || !next.marked(ownerOf(1), noon) {
		t.Fatalf("nothing known of the key: %+v", next)
	}
	unchanged(t, r, Withdraw(r, ruleKey, Owner{}, noon))

	taken2, _ := taken(t, mustUnknown(t, Retry), claimOf(2, Retry), noon.Add(time.Hour))
	next = Withdraw(taken2, ruleKey, ownerOf(2), noon.Add(time.Hour))
	if next.State != Held || !next.Owner.IsZero() || next.statusAt(noon.Add(time.Hour)) != StatusUnknown {
		t.Fatalf("a takeover withdrawn: %+v", next)
	}
}

// mustUnknown is a record whose attempt died at noon.
func mustUnknown(t *testing.T, p OnUnknown) Record {
	t.Helper()
	r, _ := begun(t, 1, p, noon)
	return r
}

func TestR11Unknown(t *testing.T) {
	for _, p := range policies {
		r, v := begun(t, 1, p, noon)
		at := noon.Add(time.Second)
		r = finishedWith(t, r, v, UnknownEnding(), at)
		if !r.LeaseEnd.Equal(at) || r.Owner != v.Owner || r.State != Held {
			t.Fatalf("%v: %+v", p, r)
		}
		// Said after the lease was over, it starts no new quiet time.
		dead := mustUnknown(t, p)
		late, err := Finish(dead, v, UnknownEnding(), noon.Add(lease+time.Second))
		if err != nil {
			t.Fatal(err)
		}
		unchanged(t, dead, late)
	}
}

func TestR12Mark(t *testing.T) {
	free := func(v Reservation, r Record) Record { return finishedWith(t, r, v, NotRun(), noon) }
	r, v := begun(t, 1, Hold, noon)
	v.Repeated = true
	for name, r := range map[string]Record{
		"Void":                           Withdraw(r, ruleKey, v.Owner, noon),
		"Void of nothing":                Withdraw(Record{}, ruleKey, v.Owner, noon),
		"NotRun":                         free(v, r),
		"NotRun where there was nothing": free(v, Record{}),
	} {
		t.Run(name, func(t *testing.T) {
			a := wantOutcome(t, r, claimOf(1, Hold), noon.Add(MarkTime-us), Refused)
			if a.Reservation != (Reservation{}) {
				t.Fatalf("%+v", a)
			}
			taken(t, r, claimOf(2, Hold), noon)
			taken(t, r, claimOf(1, Hold), noon.Add(MarkTime))
			if r.Key != ruleKey {
				t.Fatalf("the mark is on the key %v", r.Key)
			}
			if keep, ok := r.Keep(); !ok || !keep.Equal(noon.Add(MarkTime)) {
				t.Fatalf("kept until %v %v", keep, ok)
			}
		})
	}
	if v.Repeated = false; len(free(v, r).Marks) != 0 {
		t.Fatal("NotRun of a Reserve that was sent once left a mark")
	}
}

func TestR12MarksStayThroughClaims(t *testing.T) {
	r := Withdraw(Record{}, ruleKey, ownerOf(1), noon)
	r, v := taken(t, r, claimOf(2, Hold), noon.Add(time.Second))
	wantOutcome(t, r, claimOf(1, Hold), noon.Add(time.Second), Refused)
	r = finishedWith(t, r, v, tryAgain(), noon.Add(2*time.Second))
	a := wantOutcome(t, r, claimOf(1, Hold), noon.Add(10*time.Second), Refused)
	if a.Record.State != Ended {
		t.Fatalf("%+v", a.Record)
	}
	r, _ = taken(t, r, claimOf(3, Hold), noon.Add(MarkTime))
	if r.Marks != nil {
		t.Fatalf("marks that are over are still there: %v", r.Marks)
	}
}

// TestR12RefusedRecord: what is shown with Refused has expired if it has.
func TestR12RefusedRecord(t *testing.T) {
	r, v := begun(t, 2, Hold, noon)
	r = finishedWith(t, r, v, success("secret"), noon)
	r = Withdraw(r, ruleKey, ownerOf(1), noon.Add(retention-time.Second))
	if a := wantOutcome(t, r, claimOf(1, Hold), noon.Add(retention), Refused); a.Record.State != Free || a.Record.Result.Payload != nil {
		t.Fatalf("an expired record is shown: %+v", a.Record)
	}
}

func TestF1OwnerAndToken(t *testing.T) {
	r, v := begun(t, 1, Retry, noon)
	at := noon.Add(lease + quiet)
	r, w := taken(t, r, claimOf(2, Retry), at)
	wrong := map[string]Reservation{
		"the old one":          v,
		"its token":            {Key: ruleKey, Owner: w.Owner, Token: v.Token},
		"its owner":            {Key: ruleKey, Owner: v.Owner, Token: w.Token},
		"a token yet to come":  {Key: ruleKey, Owner: w.Owner, Token: w.Token + 1},
		"the zero reservation": {},
	}
	for name, v := range wrong {
		t.Run(name, func(t *testing.T) {
			for _, r := range []Record{r, finishedWith(t, r, w, success("x"), at), finishedWith(t, r, w, tryAgain(), at)} {
				for _, e := range []Ending{success("x"), tryAgain(), NotRun(), UnknownEnding()} {
					next, err := Finish(r, v, e, at)
					wantFenced(t, r, next, err)
				}
				next, err := Renew(r, v, lease, at.Add(time.Second))
				wantFenced(t, r, next, err)
				next, err = PutStep(r, v, Step{Name: "s"}, at)
				wantFenced(t, r, next, err)
			}
		})
	}
}

// TestF1Nobody: a record that nobody owns is nobody's, also for the zero
// reservation with the right token.
func TestF1Nobody(t *testing.T) {
	r, v := taken(t, mustUnknown(t, Retry), claimOf(2, Retry), noon.Add(time.Hour))
	r = finishedWith(t, r, v, NotRun(), noon.Add(time.Hour))
	zero := Reservation{Key: ruleKey, Token: r.Token}
	for _, e := range []Ending{success("x"), NotRun(), UnknownEnding()} {
		next, err := Finish(r, zero, e, noon.Add(time.Hour))
		wantFenced(t, r, next, err)
	}
}

func TestF2SameEndingTwice(t *testing.T) {
	r, v := begun(t, 1, Hold, noon)
	over, w := taken(t, mustUnknown(t, Retry), claimOf(2, Retry), noon.Add(time.Hour))
	later := noon.Add(2 * time.Hour)
	for name, c := range map[string]struct {
		r Record
		v Reservation
		e Ending
	}{
		"done":                {r, v, success("x")},
		"retryable":           {r, v, tryAgain()},
		"unknown":             {r, v, UnknownEnding()},
		"not run":             {r, v, NotRun()},
		"not run, a takeover": {over, w, NotRun()},
	} {
		t.Run(name, func(t *testing.T) {
			first := finishedWith(t, c.r, c.v, c.e, noon.Add(time.Hour))
			second, err := Finish(first, c.v, c.e, later)
			if err != nil {
				t.Fatal(err)
			}
			unchanged(t, first, second)
		})
	}
	done := finishedWith(t, r, v, success("x"), noon)
	for name, e := range map[string]Ending{
		"other bytes": success("y"), "other class": tryAgain(), "unknown": UnknownEnding(), "not run": NotRun(),
		"other source": Done(Result{Class: Succeeded, Status: 201, Payload: []byte("x"), By: FromProbe}),
	} {
		t.Run("done, then "+name, func(t *testing.T) {
			next, err := Finish(done, v, e, noon)
			wantFenced(t, done, next, err)
		})
	}
}

// TestF3LeaseOver: the token judges, the clock only permits takeover.
func TestF3LeaseOver(t *testing.T) {
	for _, p := range policies {
		at := noon.Add(lease + quiet + time.Hour)
		r, v := begun(t, 1, p, noon)
		renewed, err := Renew(r, v, lease, at)
		if err != nil || !renewed.LeaseEnd.Equal(at.Add(lease)) {
			t.Fatalf("%v: %v, lease end %v", p, err, renewed.LeaseEnd)
		}
		for _, e := range []Ending{success("x"), tryAgain(), NotRun(), UnknownEnding()} {
			finishedWith(t, r, v, e, at)
		}
	}
}

func TestF3RenewNeverShortens(t *testing.T) {
	r, v := begun(t, 1, Hold, noon)
	for _, d := range []time.Duration{us, lease} {
		next, err := Renew(r, v, d, noon)
		if err != nil {
			t.Fatal(err)
		}
		unchanged(t, r, next)
	}
	next, err := Renew(r, v, lease, noon.Add(us))
	if err != nil || !next.LeaseEnd.Equal(noon.Add(lease+us)) || next.Revision <= r.Revision {
		t.Fatalf("%v, %+v", err, next)
	}
}

// TestF4TokensGrow through every way in which a record goes on.
func TestF4TokensGrow(t *testing.T) {
	r, v := begun(t, 1, Retry, noon)
	at := noon
	last := v.Token
	for who := uint8(2); who < 40; who++ {
		at = at.Add(lease + quiet)
		r, v = taken(t, r, claimOf(who, Retry), at)
		if v.Token <= last {
			t.Fatalf("claim %d: token %d after %d", who, v.Token, last)
		}
		last = v.Token
		switch who % 4 {
		case 0:
			r = finishedWith(t, r, v, tryAgain(), at)
		case 1:
			r = finishedWith(t, r, v, NotRun(), at)
		case 2:
			r = finishedWith(t, r, v, UnknownEnding(), at)
		}
	}
}

// TestPure: no function changes its arguments, nor what they point to, nor the
// room behind their slices.
func TestPure(t *testing.T) {
	prev, v := begun(t, 1, Probe, noon)
	prev = Withdraw(prev, ruleKey, ownerOf(8), noon)
	prev, err := PutStep(prev, v, Step{Name: "s", ProviderKey: "k"}, noon)
	if err != nil {
		t.Fatal(err)
	}
	ended := finishedWith(t, prev, v, success("x"), noon)
	c := claimOf(2, Probe)
	late := noon.Add(lease + quiet)
	for name, call := range map[string]func(Record) Record{
		"Decide, takeover": func(r Record) Record { n, _ := Decide(r, c, late); return n },
		"Decide, replay":   func(r Record) Record { n, _ := Decide(r, c, noon); return n },
		"Finish":           func(r Record) Record { n, _ := Finish(r, v, success("x"), noon.Add(time.Second)); return n },
		"Finish, NotRun":   func(r Record) Record { w := v; w.Repeated = true; n, _ := Finish(r, w, NotRun(), noon); return n },
		"Renew":            func(r Record) Record { n, _ := Renew(r, v, time.Hour, noon); return n },
		"Withdraw":         func(r Record) Record { return Withdraw(r, ruleKey, v.Owner, noon.Add(time.Second)) },
		"PutStep":          func(r Record) Record { n, _ := PutStep(r, v, Step{Name: "s", Done: true}, noon); return n },
		"PutStep, another": func(r Record) Record { n, _ := PutStep(r, v, Step{Name: "s2"}, noon); return n },
		"SettleBy":         func(r Record) Record { n, _ := SettleBy(r, r.Revision, success("y").Result, late); return n },
		"ForgetBy":         func(r Record) Record { n, _ := ForgetBy(r, r.Revision, late); return n },
		"Expire":           func(r Record) Record { n, _ := Expire(r, noon.Add(2*retention)); return n },
		"View":             func(r Record) Record { n, _ := View(r, noon.Add(2*retention)); return n },
	} {
		t.Run(name, func(t *testing.T) {
			for _, prev := range []Record{prev, ended} {
				prev := roomy(prev)
				before := cloned(prev)
				call(prev)
				if !reflect.DeepEqual(cloned(prev), before) {
					t.Fatalf("it changed the record that it was given:\n%+v\nwas\n%+v", prev, before)
				}
				for _, s := range prev.Steps[len(prev.Steps):cap(prev.Steps)] {
					if s.Name != "" {
						t.Fatalf("the step %q lies behind the old record's", s.Name)
					}
				}
				for _, m := range prev.Marks[len(prev.Marks):cap(prev.Marks)] {
					if !m.Owner.IsZero() {
						t.Fatal("a mark lies behind the old record's")
					}
				}
			}
		})
	}
	r, _ := taken(t, Record{}, c, noon)
	c.Prints[0].Sum[0]++
	if r.Prints[0] == c.Prints[0] {
		t.Fatal("the record shares the claim's fingerprints")
	}
}

// roomy is r with room behind its slices, where a careless append would write.
func roomy(r Record) Record {
	r = cloned(r)
	r.Marks = append(make([]Mark, 0, len(r.Marks)+4), r.Marks...)
	r.Steps = append(make([]Step, 0, len(r.Steps)+4), r.Steps...)
	return r
}

// TestR12RetryableMark: a copy of a Reserve that was sent twice does not claim
// the key again when the window of its own temporary result is over.
func TestR12RetryableMark(t *testing.T) {
	r, v := begun(t, 1, Hold, noon)
	if once := finishedWith(t, r, v, tryAgain(), noon); len(once.Marks) != 0 {
		t.Fatal("a temporary result of a Reserve that was sent once left a mark")
	}
	v.Repeated = true
	r = finishedWith(t, r, v, tryAgain(), noon)
	after := r.WindowEnd
	if !after.Before(noon.Add(MarkTime)) {
		t.Fatalf("the window ends at %v, when the mark is gone", after)
	}
	wantOutcome(t, r, claimOf(1, Hold), after, Refused)
	taken(t, r, claimOf(2, Hold), after)
}
