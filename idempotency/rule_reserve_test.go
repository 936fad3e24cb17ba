package idempotency

import (
	"reflect"
	"testing"
	"time"
)

var (
	noon    = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	ruleKey = Key{ID: ID{42}, Tenant: "acme"}
)

const (
	us        = time.Microsecond
	lease     = 10 * time.Second
	quiet     = 30 * time.Second
	retention = 24 * time.Hour
	window    = 5 * time.Second
)

var policies = []OnUnknown{Hold, Retry, Probe, Fail}

func termsOf(p OnUnknown) Terms {
	return Terms{Lease: lease, Retention: retention, Quiet: quiet, OnUnknown: p}
}

func claimOf(who uint8, p OnUnknown) Claim {
	return Claim{Key: ruleKey, Prints: []Fingerprint{{Tag: "v1", Sum: [32]byte{7}}}, Owner: ownerOf(who), Terms: termsOf(p)}
}

// begun is a record that who claimed when it was free.
func begun(t *testing.T, who uint8, p OnUnknown, now time.Time) (Record, Reservation) {
	t.Helper()
	return taken(t, Record{}, claimOf(who, p), now)
}

// taken is the record after a claim that must start.
func taken(t *testing.T, prev Record, c Claim, now time.Time) (Record, Reservation) {
	t.Helper()
	r, a := Decide(prev, c, now)
	if a.Outcome != Started {
		t.Fatalf("the claim of %v: %v, want started", c.Owner, a.Outcome)
	}
	return r, a.Reservation
}

// finished is the record after an ending that must succeed.
func finishedWith(t *testing.T, prev Record, v Reservation, e Ending, now time.Time) Record {
	t.Helper()
	r, err := Finish(prev, v, e, now)
	if err != nil {
		t.Fatalf("the ending %v: %v", e.Kind, err)
	}
	return r
}

func success(payload string) Ending {
	return Done(Result{Class: Succeeded, Status: 201, Payload: []byte(payload)})
}

func tryAgain() Ending {
	return Done(Result{Class: FailedRetryable, Status: 503, Window: window})
}

func wantOutcome(t *testing.T, prev Record, c Claim, now time.Time, want Outcome) Answer {
	t.Helper()
	r, a := Decide(prev, c, now)
	if a.Outcome != want {
		t.Fatalf("at %v: %v, want %v", now.Sub(noon), a.Outcome, want)
	}
	if want != Started && want != Replayed && r.Revision != prev.Revision {
		t.Fatalf("at %v: %v wrote the record", now.Sub(noon), want)
	}
	return a
}

func unchanged(t *testing.T, prev, next Record) {
	t.Helper()
	prev.AsOf = next.AsOf
	if !reflect.DeepEqual(prev, next) {
		t.Fatalf("the record changed:\n%+v\nto\n%+v", prev, next)
	}
}

func TestR1FreeKeyStarts(t *testing.T) {
	c := claimOf(1, Hold)
	c.Origin = Origin{Method: "POST", Route: "/v1/orders", Trace: "t1"}
	r, a := Decide(Record{}, c, noon)
	if a.Outcome != Started || a.NotComparable {
		t.Fatalf("%+v", a)
	}
	if want := (Reservation{Key: ruleKey, Owner: c.Owner, Token: 1, LeaseEnd: noon.Add(lease)}); a.Reservation != want {
		t.Fatalf("reservation %+v, want %+v", a.Reservation, want)
	}
	if r.State != Held || r.Attempt != 1 || !r.Created.Equal(noon) || r.Origin != c.Origin || r.Revision != Revision(noon.UnixMicro()) || !reflect.DeepEqual(r, a.Record) {
		t.Fatalf("record %+v", r)
	}
}

// TestR1Expiry: what expires at its time, what never does.
func TestR1Expiry(t *testing.T) {
	held := func(p OnUnknown) Record { r, _ := begun(t, 1, p, noon); return r }
	end := func(p OnUnknown, e Ending) Record {
		r, v := begun(t, 1, p, noon)
		return finishedWith(t, r, v, e, noon.Add(time.Second))
	}
	for _, c := range []struct {
		name   string
		r      Record
		at     time.Duration // of the expiry; 0: never
		before Outcome
	}{
		{"done", end(Hold, success("x")), time.Second + retention, Replayed},
		{"hold", held(Hold), 0, Unknown},
		{"probe", held(Probe), 0, Started},
		{"fail", held(Fail), 0, Replayed},
		{"retry", held(Retry), lease + retention, Started},
	} {
		t.Run(c.name, func(t *testing.T) {
			at, ok := c.r.Expiry()
			if c.at == 0 {
				if ok {
					t.Fatalf("expires at %v", at)
				}
				a := wantOutcome(t, c.r, claimOf(2, Hold), noon.Add(100*retention), c.before)
				if a.Outcome == Started && !a.Reservation.Takeover {
					t.Fatal("an unknown record expired")
				}
				return
			}
			if !ok || !at.Equal(noon.Add(c.at)) {
				t.Fatalf("expires at %v %v, want %v", at, ok, noon.Add(c.at))
			}
			before := wantOutcome(t, c.r, claimOf(2, Hold), at.Add(-us), c.before)
			if before.Outcome == Started && !before.Reservation.Takeover {
				t.Fatal("expired a microsecond too early")
			}
			after := wantOutcome(t, c.r, claimOf(2, Hold), at, Started)
			if after.Reservation.Takeover || after.Reservation.Token != 1 || after.Record.Attempt != 1 {
				t.Fatalf("not a new life: %+v", after.Reservation)
			}
		})
	}
}

// TestR1RetentionCoversWindow: a temporary answer is kept as long as it counts.
func TestR1RetentionCoversWindow(t *testing.T) {
	r, v := begun(t, 1, Hold, noon)
	r = finishedWith(t, r, v, Done(Result{Class: FailedRetryable, Window: 2 * retention}), noon)
	wantOutcome(t, r, claimOf(2, Hold), noon.Add(2*retention-us), Replayed)
}

func TestR2OtherPrint(t *testing.T) {
	other := claimOf(2, Hold)
	other.Prints = []Fingerprint{{Tag: "v1", Sum: [32]byte{8}}}
	held, v := begun(t, 1, Hold, noon)
	archived := finishedWith(t, held, v, success("x"), noon)
	archived.Terms.Remember = retention
	for _, c := range []struct {
		name string
		r    Record
		at   time.Duration
	}{
		{"held", held, 0},
		{"unknown", held, lease},
		{"done", finishedWith(t, held, v, success("x"), noon), time.Second},
		{"retryable, window over", finishedWith(t, held, v, tryAgain(), noon), window},
		{"archived", archived, retention},
	} {
		t.Run(c.name, func(t *testing.T) {
			if a := wantOutcome(t, c.r, other, noon.Add(c.at), Mismatched); a.NotComparable {
				t.Fatal("not comparable, and different")
			}
		})
	}
	same := other
	same.Owner = ownerOf(1)
	wantOutcome(t, held, same, noon, Mismatched) // the owner itself, too
}

func TestR2Tags(t *testing.T) {
	print := func(tag string, sum byte) Fingerprint { return Fingerprint{Tag: tag, Sum: [32]byte{sum}} }
	for _, c := range []struct {
		name          string
		old, fresh    []Fingerprint
		equal, counts bool // counts: not comparable
	}{
		{"equal", []Fingerprint{print("a", 1)}, []Fingerprint{print("a", 1)}, true, false},
		{"other", []Fingerprint{print("a", 1)}, []Fingerprint{print("a", 2)}, false, false},
		{"no tag in common", []Fingerprint{print("a", 1)}, []Fingerprint{print("b", 2)}, true, true},
		{"one of two equal", []Fingerprint{print("a", 1)}, []Fingerprint{print("b", 2), print("a", 1)}, true, false},
		{"one of two differs", []Fingerprint{print("b", 2), print("a", 1)}, []Fingerprint{print("b", 2), print("a", 3)}, false, false},
		{"record without", nil, []Fingerprint{print("a", 1)}, true, false},
		{"claim without", []Fingerprint{print("a", 1)}, nil, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			first, second := claimOf(1, Hold), claimOf(2, Hold)
			first.Prints, second.Prints = c.old, c.fresh
			r, _ := taken(t, Record{}, first, noon)
			want := InProgress
			if !c.equal {
				want = Mismatched
			}
			if a := wantOutcome(t, r, second, noon, want); a.NotComparable != c.counts {
				t.Fatalf("NotComparable is %v", a.NotComparable)
			}
		})
	}
}

// TestR2PrintsAreKept: a take-over by a node that knows other algorithms does
// not make the record forget what it was compared by.
func TestR2PrintsAreKept(t *testing.T) {
	first, second, third := claimOf(1, Retry), claimOf(2, Retry), claimOf(3, Retry)
	first.Prints = []Fingerprint{{Tag: "new", Sum: [32]byte{1}}, {Tag: "old", Sum: [32]byte{2}}}
	second.Prints = []Fingerprint{{Tag: "old", Sum: [32]byte{2}}}
	third.Prints = []Fingerprint{{Tag: "new", Sum: [32]byte{9}}}
	for _, found := range []string{"unknown", "retryable"} {
		r, v := taken(t, Record{}, first, noon)
		at := noon.Add(lease + quiet)
		if found == "retryable" {
			r = finishedWith(t, r, v, tryAgain(), noon)
		}
		r, v = taken(t, r, second, at)
		wantOutcome(t, r, third, at, Mismatched)
		r = finishedWith(t, r, v, success("x"), at)
		wantOutcome(t, r, third, at, Mismatched)
		if len(r.Prints) != 2 || r.Prints[0].Tag != "old" {
			t.Fatalf("%s: prints %v", found, r.Prints)
		}
	}
}

// TestR3Repeat: the same answer again, whatever the clock says.
func TestR3Repeat(t *testing.T) {
	for _, p := range policies {
		for _, at := range []time.Duration{0, lease - us, lease, lease + quiet, 2 * (lease + quiet)} {
			r, v := begun(t, 1, p, noon)
			a := wantOutcome(t, r, claimOf(1, p), noon.Add(at), Started)
			want := v
			want.Repeated, want.LeaseEnd = true, noon.Add(at+lease)
			if a.Reservation != want || a.Record.Attempt != 1 {
				t.Fatalf("%v at %v: %+v, want %+v", p, at, a.Reservation, want)
			}
		}
	}
}

func TestR3NeverShortens(t *testing.T) {
	r, _ := begun(t, 1, Hold, noon)
	short := claimOf(1, Hold)
	short.Terms.Lease = time.Second
	next, a := Decide(r, short, noon)
	if a.Outcome != Started || !a.Reservation.LeaseEnd.Equal(noon.Add(lease)) {
		t.Fatalf("%+v", a.Reservation)
	}
	unchanged(t, r, next)
}

func TestR3Takeover(t *testing.T) {
	r, v := begun(t, 1, Retry, noon)
	r, err := PutStep(r, v, Step{Name: "s", Done: true}, noon)
	if err != nil {
		t.Fatal(err)
	}
	at := noon.Add(lease + quiet)
	r, v = taken(t, r, claimOf(2, Retry), at)
	a := wantOutcome(t, r, claimOf(2, Retry), at.Add(time.Hour), Started)
	if !a.Reservation.Takeover || a.Reservation.Token != v.Token || len(a.Record.Steps) != 1 {
		t.Fatalf("%+v, record %+v", a.Reservation, a.Record)
	}
}

func TestR4LeaseAlive(t *testing.T) {
	for _, p := range policies {
		r, _ := begun(t, 1, p, noon)
		for _, at := range []time.Duration{0, lease - us} {
			if a := wantOutcome(t, r, claimOf(2, p), noon.Add(at), InProgress); !a.Record.LeaseEnd.Equal(noon.Add(lease)) {
				t.Fatalf("%v: lease end %v", p, a.Record.LeaseEnd)
			}
		}
	}
}

// TestR5 is the policy of the record, not the claim's, at its exact times.
func TestR5LeaseOver(t *testing.T) {
	for _, p := range policies {
		t.Run(p.String(), func(t *testing.T) {
			r, _ := begun(t, 1, p, noon)
			c := claimOf(2, Hold)
			if p == Hold {
				wantOutcome(t, r, claimOf(2, Retry), noon.Add(lease), Unknown)
				return
			}
			wantOutcome(t, r, c, noon.Add(lease), InProgress)
			at := noon.Add(lease + quiet)
			wantOutcome(t, r, c, at.Add(-us), InProgress)
			next, a := Decide(r, c, at)
			if p == Fail {
				want := Result{Class: FailedFinal, Status: 500, By: FromPolicy}
				if a.Outcome != Replayed || !next.Result.Equal(want) || !next.Owner.IsZero() || next.Token != 2 || !next.Expires.Equal(at.Add(retention)) {
					t.Fatalf("%v, record %+v", a.Outcome, next)
				}
				wantOutcome(t, next, claimOf(3, Fail), at, Replayed)
				return
			}
			if a.Outcome != Started || !a.Reservation.Takeover || a.Reservation.Token != 2 || next.Attempt != 2 || next.Terms.OnUnknown != Hold {
				t.Fatalf("%v %+v", a.Outcome, a.Reservation)
			}
			wantOutcome(t, next, claimOf(3, p), at, InProgress) // exactly one
		})
	}
}

func TestR6WindowOver(t *testing.T) {
	r, v := begun(t, 1, Hold, noon)
	r = finishedWith(t, r, v, tryAgain(), noon)
	wantOutcome(t, r, claimOf(2, Hold), noon.Add(window-us), Replayed)
	next, w := taken(t, r, claimOf(2, Hold), noon.Add(window))
	if w.Takeover || w.Token != 2 || next.Attempt != 2 {
		t.Fatalf("%+v", w)
	}
	wantOutcome(t, next, claimOf(3, Hold), noon.Add(window), InProgress) // exactly one
	r.Result.Window, r.WindowEnd = 0, noon
	taken(t, r, claimOf(2, Hold), noon)
}

// TestR6AfterTakeover: a run after a temporary answer is no takeover, though
// the run that gave the answer was one.
func TestR6AfterTakeover(t *testing.T) {
	at := noon.Add(lease + quiet)
	r, v := taken(t, mustUnknown(t, Probe), claimOf(2, Probe), at)
	r = finishedWith(t, r, v, tryAgain(), at)
	if _, v := taken(t, r, claimOf(3, Probe), at.Add(window)); v.Takeover {
		t.Fatalf("%+v", v)
	}
}

func TestR7Replay(t *testing.T) {
	for _, class := range []Class{Succeeded, FailedFinal} {
		r, v := begun(t, 1, Hold, noon)
		res := Result{Class: class, Status: 402, Payload: []byte("stored")}
		r = finishedWith(t, r, v, Done(res), noon)
		for _, who := range []uint8{1, 2} { // its owner's late Reserve as well
			if a := wantOutcome(t, r, claimOf(who, Hold), noon.Add(time.Hour), Replayed); !a.Record.Result.Equal(res) || a.Reservation != (Reservation{}) {
				t.Fatalf("%+v", a)
			}
		}
	}
}

func TestR8Archived(t *testing.T) {
	c := claimOf(1, Hold)
	c.Terms.Remember = time.Hour
	r, v := taken(t, Record{}, c, noon)
	done := finishedWith(t, r, v, success("x"), noon)
	at := noon.Add(retention)
	wantOutcome(t, done, claimOf(2, Hold), at.Add(-us), Replayed)
	if a := wantOutcome(t, done, claimOf(2, Hold), at, Archived); a.Record.State != Shrunk || a.Record.Result.Payload != nil || a.Record.Result.Status != 201 {
		t.Fatalf("%+v", a.Record)
	}
	wantOutcome(t, done, claimOf(2, Hold), at.Add(time.Hour-us), Archived)
	taken(t, done, claimOf(2, Hold), at.Add(time.Hour))

	temporary := finishedWith(t, r, v, tryAgain(), noon) // nothing ran: nothing to remember
	if a := wantOutcome(t, temporary, claimOf(2, Hold), at, Started); a.Reservation.Token != 1 {
		t.Fatalf("%+v", a.Reservation)
	}
}
