package idempotency

import (
	"testing"
	"time"
)

// What the rule writes is what any store can keep and find again: whole
// microseconds, whatever the durations it was given.
func TestRuleCountsWholeMicroseconds(t *testing.T) {
	const odd = 999 * time.Nanosecond
	c := claimOf(1, Retry)
	want := c.Terms
	c.Terms.Lease += odd
	c.Terms.Retention += odd
	c.Terms.Remember += odd
	c.Terms.Quiet += odd
	r, v := taken(t, Record{}, c, noon)
	if r.Terms != want || !r.LeaseEnd.Equal(noon.Add(lease)) {
		t.Fatalf("Decide: %+v until %v, want %+v until %v", r.Terms, r.LeaseEnd, want, noon.Add(lease))
	}

	again, a := Decide(r, c, noon.Add(us))
	if a.Outcome != Started || !again.LeaseEnd.Equal(noon.Add(us+lease)) {
		t.Fatalf("Decide again: %v until %v, want %v", a.Outcome, again.LeaseEnd, noon.Add(us+lease))
	}

	renewed, err := Renew(r, v, 2*lease+odd, noon)
	if err != nil || !renewed.LeaseEnd.Equal(noon.Add(2*lease)) {
		t.Fatalf("Renew: until %v, %v; want %v", renewed.LeaseEnd, err, noon.Add(2*lease))
	}

	late := tryAgain()
	late.Result.Window += odd
	ended := finishedWith(t, r, v, late, noon)
	if ended.Result.Window != window || !ended.WindowEnd.Equal(noon.Add(window)) {
		t.Fatalf("Finish: a window of %v until %v, want %v until %v", ended.Result.Window, ended.WindowEnd, window, noon.Add(window))
	}
	unchanged(t, ended, finishedWith(t, ended, v, late, noon.Add(us))) // F2

	lost := finishedWith(t, r, v, UnknownEnding(), noon)
	settled, err := SettleBy(lost, lost.Revision, late.Result, noon.Add(quiet))
	if err != nil || settled.Result.Window != window {
		t.Fatalf("SettleBy: a window of %v, %v; want %v", settled.Result.Window, err, window)
	}
}
