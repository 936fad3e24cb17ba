package idempotency

import (
	"errors"
	"testing"
	"time"
)

// TestF9: only at its time, only what was seen.
func TestF9SettleAndForget(t *testing.T) {
	res := Result{Class: Succeeded, Status: 200, Payload: []byte("by hand")}
	calls := map[string]func(Record, Revision, time.Time) (Record, error){
		"settle": func(r Record, seen Revision, now time.Time) (Record, error) { return SettleBy(r, seen, res, now) },
		"forget": ForgetBy,
	}
	for _, p := range policies {
		r, v := begun(t, 1, p, noon)
		at := noon.Add(lease + quiet)
		for name, call := range calls {
			for _, c := range []struct {
				what string
				r    Record
				seen Revision
				at   time.Time
				want error
			}{
				{"free", Record{}, 0, at, ErrNotFound},
				{"a lease alive", r, r.Revision, noon.Add(lease - us), ErrLive},
				{"quiet not over", r, r.Revision, at.Add(-us), ErrLive},
				{"written since", r, r.Revision - 1, at, ErrConflict},
				{"expired", finishedWith(t, r, v, success("x"), noon), r.Revision + 1, noon.Add(retention), ErrNotFound},
			} {
				next, err := call(c.r, c.seen, c.at)
				if !errors.Is(err, c.want) {
					t.Fatalf("%s, %v, %s: %v, want %v", name, p, c.what, err, c.want)
				}
				unchanged(t, c.r, next)
			}
		}

		settled, err := SettleBy(r, r.Revision, res, at)
		if err != nil || !settled.Owner.IsZero() || settled.Token != 2 || settled.Result.By != FromOperator || string(settled.Result.Payload) != "by hand" || !settled.Expires.Equal(at.Add(retention)) {
			t.Fatalf("%v: %v, %+v", p, err, settled)
		}
		wantOutcome(t, settled, claimOf(2, p), at, Replayed)
		for _, e := range []Ending{success("x"), Done(settled.Result), NotRun(), UnknownEnding()} { // the former owner
			next, err := Finish(settled, v, e, at)
			wantFenced(t, settled, next, err)
		}
		if next, err := SettleBy(settled, settled.Revision, res, at); !errors.Is(err, ErrConflict) {
			t.Fatalf("settled twice: %v, %+v", err, next)
		}

		forgotten, err := ForgetBy(r, r.Revision, at)
		if err != nil || forgotten.State != Free || forgotten.Prints != nil || forgotten.Revision <= r.Revision {
			t.Fatalf("%v: %v, %+v", p, err, forgotten)
		}
		wantOutcome(t, forgotten, claimOf(1, p), at, Refused) // its own Reserve that arrives late
		next, _ := taken(t, forgotten, claimOf(2, p), at)
		late, err := Finish(next, v, success("x"), at)
		wantFenced(t, next, late, err)
	}
}

// TestF9EveryWriteCounts: whatever changes a record makes what was seen old.
func TestF9EveryWriteCounts(t *testing.T) {
	r, v := begun(t, 1, Hold, noon)
	at := noon.Add(lease + quiet)
	for name, write := range map[string]func() Record{
		"Extend": func() Record { n, _ := Renew(r, v, us, noon.Add(lease)); return n },
		"R3":     func() Record { n, _ := Decide(r, claimOf(1, Hold), noon.Add(us)); return n },
		"a step": func() Record { n, _ := PutStep(r, v, Step{Name: "s"}, noon); return n },
		"Void":   func() Record { return Withdraw(r, ruleKey, ownerOf(7), noon) },
		"End":    func() Record { return finishedWith(t, r, v, UnknownEnding(), noon) },
	} {
		next := write()
		if _, err := SettleBy(next, r.Revision, Result{Class: Succeeded}, at.Add(time.Hour)); !errors.Is(err, ErrConflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestForgetDone: a result may be forgotten at once.
func TestForgetDone(t *testing.T) {
	r, v := begun(t, 1, Hold, noon)
	r = finishedWith(t, r, v, success("x"), noon)
	next, err := ForgetBy(r, r.Revision, noon)
	if err != nil || next.State != Free {
		t.Fatalf("%v, %+v", err, next)
	}
	taken(t, next, claimOf(2, Hold), noon)
}

// TestE1: what Sweep takes, at the exact time.
func TestE1Expire(t *testing.T) {
	r, v := begun(t, 1, Hold, noon)
	done := finishedWith(t, r, v, success("x"), noon)
	marked := Withdraw(done, ruleKey, ownerOf(5), noon.Add(retention-time.Second))
	held := func(p OnUnknown) Record { r, _ := begun(t, 1, p, noon); return r }
	for _, c := range []struct {
		name string
		r    Record
		at   time.Duration // from noon; 0: never
	}{
		{"done", done, retention},
		{"done, with a mark", marked, retention - time.Second + MarkTime},
		{"free, with a mark", Withdraw(Record{}, ruleKey, ownerOf(5), noon), MarkTime},
		{"hold", held(Hold), 0},
		{"probe", held(Probe), 0},
		{"fail", held(Fail), 0},
		{"retry", held(Retry), lease + retention},
	} {
		t.Run(c.name, func(t *testing.T) {
			keep, ok := c.r.Keep()
			if c.at == 0 {
				next, kept := Expire(c.r, noon.Add(1000*retention))
				if ok || !kept {
					t.Fatalf("kept %v until %v %v", kept, keep, ok)
				}
				unchanged(t, c.r, next)
				return
			}
			if !ok || !keep.Equal(noon.Add(c.at)) {
				t.Fatalf("kept until %v after noon, want %v", keep.Sub(noon), c.at)
			}
			next, kept := Expire(c.r, keep.Add(-us))
			if !kept {
				t.Fatal("gone a microsecond too early")
			}
			unchanged(t, c.r, next)
			if next, kept := Expire(c.r, keep); kept {
				t.Fatalf("still there: %+v", next)
			}
		})
	}
	if _, kept := Expire(Record{}, noon); kept {
		t.Fatal("the zero record is kept")
	}
}

func TestE1Shrink(t *testing.T) {
	c := claimOf(1, Hold)
	c.Terms.Remember = time.Hour
	r, v := taken(t, Record{}, c, noon)
	r, err := PutStep(r, v, Step{Name: "s", Done: true}, noon)
	if err != nil {
		t.Fatal(err)
	}
	r = finishedWith(t, r, v, success("x"), noon)
	at := noon.Add(retention)
	small, kept := Expire(r, at)
	if !kept || small.State != Shrunk || small.Result.Payload != nil || small.Steps != nil || small.Result.Status != 201 || len(small.Prints) != 1 || small.Revision <= r.Revision {
		t.Fatalf("%v, %+v", kept, small)
	}
	if keep, ok := small.Keep(); !ok || !keep.Equal(at.Add(time.Hour)) {
		t.Fatalf("kept until %v", keep)
	}
	wantOutcome(t, small, claimOf(2, Hold), at.Add(time.Hour-us), Archived)
	if _, kept := Expire(r, at.Add(time.Hour)); kept { // never swept until then
		t.Fatal("still there")
	}
	if _, kept := Expire(small, at.Add(time.Hour)); kept {
		t.Fatal("still there after it was shrunk")
	}
}

// TestE2: logic decides at read time, whether Sweep has come or not.
func TestE2StatusAndView(t *testing.T) {
	r, v := begun(t, 1, Hold, noon)
	probe, _ := begun(t, 1, Probe, noon)
	retry, _ := begun(t, 1, Retry, noon)
	remembered := finishedWith(t, r, v, success("x"), noon)
	remembered.Terms.Remember = time.Hour
	for _, c := range []struct {
		name string
		r    Record
		at   time.Duration
		want Status
	}{
		{"zero", Record{}, 0, StatusFree},
		{"hold", r, lease - us, StatusInProgress},
		{"hold", r, lease, StatusUnknown},
		{"hold", r, 100 * retention, StatusUnknown},
		{"probe", probe, lease, StatusInProgress},
		{"probe", probe, lease + quiet - us, StatusInProgress},
		{"probe", probe, lease + quiet, StatusUnknown},
		{"retry", retry, lease + retention - us, StatusUnknown},
		{"retry", retry, lease + retention, StatusFree},
		{"succeeded", finishedWith(t, r, v, success("x"), noon), retention - us, StatusSucceeded},
		{"succeeded", finishedWith(t, r, v, success("x"), noon), retention, StatusFree},
		{"final", finishedWith(t, r, v, Done(Result{Class: FailedFinal}), noon), 0, StatusFailedFinal},
		{"retryable", finishedWith(t, r, v, tryAgain(), noon), window, StatusFailedRetryable},
		{"remembered", remembered, retention - us, StatusSucceeded},
		{"remembered", remembered, retention, StatusArchived},
		{"remembered", remembered, retention + time.Hour - us, StatusArchived},
		{"remembered", remembered, retention + time.Hour, StatusFree},
		{"marked", Withdraw(Record{}, ruleKey, ownerOf(1), noon), 0, StatusFree},
	} {
		at := noon.Add(c.at)
		if got := c.r.statusAt(at); got != c.want {
			t.Errorf("%s at %v: %v, want %v", c.name, c.at, got, c.want)
		}
		seen, ok := View(c.r, at)
		if ok != (c.want != StatusFree) || !seen.AsOf.Equal(at) || seen.Status() != c.want || seen.Revision != c.r.Revision {
			t.Errorf("%s at %v: seen %v as %v", c.name, c.at, ok, seen.Status())
		}
	}
}

// TestKeepCoversMarks: the later of both.
func TestKeepCoversMarks(t *testing.T) {
	r, v := begun(t, 1, Hold, noon)
	r = finishedWith(t, r, v, success("x"), noon)
	r = Withdraw(r, ruleKey, ownerOf(2), noon)
	if keep, ok := r.Keep(); !ok || !keep.Equal(noon.Add(retention)) {
		t.Fatalf("%v %v", keep, ok)
	}
	if keep, ok := (Record{}).Keep(); !ok || !keep.IsZero() {
		t.Fatalf("nothing is kept until %v %v", keep, ok)
	}
	r, _ = begun(t, 1, Hold, noon)
	if keep, ok := Withdraw(r, ruleKey, ownerOf(2), noon).Keep(); ok {
		t.Fatalf("an unknown record is kept until %v", keep)
	}
}
