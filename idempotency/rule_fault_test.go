package idempotency

import (
	"testing"
	"time"
)

// TestFault01: an owner that was replaced and wakes up changes nothing.
func TestFault01(t *testing.T) {
	for _, p := range []OnUnknown{Retry, Probe, Fail} {
		zombie, v := begun(t, 1, p, noon)
		at := noon.Add(lease + quiet)
		owned, a := Decide(zombie, claimOf(2, p), at)
		records := []Record{owned}
		if a.Outcome == Started {
			records = append(records, finishedWith(t, owned, a.Reservation, success("new"), at), finishedWith(t, owned, a.Reservation, NotRun(), at))
		}
		for _, r := range records {
			for _, e := range []Ending{success("old"), success("new"), tryAgain(), NotRun(), UnknownEnding()} {
				next, err := Finish(r, v, e, at)
				wantFenced(t, r, next, err)
			}
			next, err := Renew(r, v, lease, at)
			wantFenced(t, r, next, err)
		}
	}
}

// TestFault03: a zombie's error cannot mark the new owner's record as failed,
// free it, or make it unknown.
func TestFault03(t *testing.T) {
	zombie, v := begun(t, 1, Retry, noon)
	at := noon.Add(lease + quiet)
	r, w := taken(t, zombie, claimOf(2, Retry), at)
	for _, e := range []Ending{Done(Result{Class: FailedFinal, Status: 500}), tryAgain(), NotRun(), UnknownEnding()} {
		next, err := Finish(r, v, e, at)
		wantFenced(t, r, next, err)
	}
	next := Withdraw(r, ruleKey, v.Owner, at) // nor by giving its key back
	if next.Owner != w.Owner || next.Token != w.Token || next.State != Held || !next.LeaseEnd.Equal(r.LeaseEnd) {
		t.Fatalf("%+v", next)
	}
	r = finishedWith(t, next, w, success("new"), at)
	if a := wantOutcome(t, r, claimOf(3, Retry), at, Replayed); string(a.Record.Result.Payload) != "new" {
		t.Fatalf("%+v", a.Record.Result)
	}
}

// TestFault11: no record stays in progress for ever: after lease and quiet
// time a fresh claim is told something else, and under every policy but hold
// it, or the policy, brings the key to an end.
func TestFault11(t *testing.T) {
	want := map[OnUnknown]Outcome{Hold: Unknown, Retry: Started, Probe: Started, Fail: Replayed}
	for _, p := range policies {
		claimed, v := begun(t, 1, p, noon)
		extended, err := Renew(claimed, v, lease, noon.Add(5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		for name, r := range map[string]Record{
			"died": claimed, "died after Extend": extended,
			"unknown": finishedWith(t, claimed, v, UnknownEnding(), noon.Add(time.Second)),
		} {
			at := r.LeaseEnd.Add(quiet)
			if a := wantOutcome(t, r, claimOf(2, p), at, want[p]); a.Record.Status() == StatusInProgress && a.Outcome != Started {
				t.Fatalf("%v, %s: still in progress", p, name)
			}
		}
	}
}
