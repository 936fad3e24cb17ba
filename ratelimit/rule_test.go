package ratelimit_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

func TestRuleValidate(t *testing.T) {
	log := ratelimit.SlidingWindowLog
	good := []ratelimit.Rule{
		{Name: "a", Quota: 1, Window: time.Microsecond},
		{Name: "per-month_1.x", Quota: 1, Window: 30 * 24 * time.Hour},
		{Name: strings.Repeat("Z", 64), Quota: ratelimit.MaxQuota, Window: time.Second, Burst: ratelimit.MaxQuota},
		{Name: "bytes", Quota: 1e9, Window: time.Second, Burst: 1e12},
		{Name: "year", Quota: ratelimit.MaxQuota, Window: ratelimit.MaxWindow, Burst: ratelimit.MaxQuota},
		{Name: "century", Quota: 1, Window: ratelimit.MaxWindow, Burst: 100},
		{Name: "log", Algorithm: log, Quota: ratelimit.MaxLogQuota, Window: ratelimit.MaxWindow},
	}
	for _, r := range good {
		if err := r.Validate(); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	bad := []struct {
		rule ratelimit.Rule
		want []string // one per fault
	}{
		{ratelimit.Rule{}, []string{
			`rule "": name of 0 bytes: want 1 to 64`, `rule "": quota 0: want 1 to 1000000000000`, `rule "": window 0s: want 1µs to 8784h0m0s`,
		}},
		{ratelimit.Rule{Name: "a b", Quota: 1, Window: 1}, []string{`rule "a b": name of 3 bytes`, "window 1ns: want 1µs"}},
		{ratelimit.Rule{Name: strings.Repeat("x", 1000), Quota: 1, Window: time.Second}, []string{"name of 1000 bytes"}},
		{ratelimit.Rule{Name: "é", Quota: 1, Window: time.Second}, []string{"name of 2 bytes"}},
		{ratelimit.Rule{Name: "r", Quota: -1, Window: 1500}, []string{`rule "r": quota -1`, "window 1.5µs: want whole microseconds"}},
		{ratelimit.Rule{Name: "r", Quota: ratelimit.MaxQuota + 1, Window: ratelimit.MaxWindow + 1}, []string{"quota 1000000000001", "window 8784h0m0.000000001s"}},
		{ratelimit.Rule{Name: "r", Algorithm: 7, Quota: 1, Window: time.Second}, []string{"algorithm 7: want token_bucket (0) or sliding_window_log (1)"}},
		{ratelimit.Rule{Name: "r", Algorithm: log, Quota: 10_001, Window: time.Second, Burst: 5}, []string{
			"quota 10001: want at most 10000 for a sliding_window_log", "burst 5: want 0 for a sliding_window_log",
		}},
		{ratelimit.Rule{Name: "r", Quota: 1, Window: time.Second, Burst: -1}, []string{"burst -1: want 0 (the quota) or 1 to 1000000000000"}},
		{ratelimit.Rule{Name: "r", Quota: 1, Window: time.Second, Burst: ratelimit.MaxQuota + 1}, []string{"burst 1000000000001"}},
		{ratelimit.Rule{Name: "r", Quota: 1, Window: ratelimit.MaxWindow, Burst: 101}, []string{"burst 101: want at most 100 at this rate"}},
	}
	for _, c := range bad {
		err := c.rule.Validate()
		if err == nil {
			t.Errorf("%+v passed", c.rule)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(c.want) {
			t.Errorf("%+v: %d faults, want %d:\n%v", c.rule, len(lines), len(c.want), err)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(lines[i], want) {
				t.Errorf("fault %q does not say %q", lines[i], want)
			}
		}
	}
	big := ratelimit.Rule{Name: "r", Algorithm: log, Quota: 10_001, Window: time.Second}
	if msg := big.Validate().Error(); !strings.Contains(msg, "sliding_window_counter of a later version") {
		t.Errorf("%q does not name the alternative", msg)
	}
}

func TestChargeValidate(t *testing.T) {
	rule := ratelimit.Rule{Name: "r", Quota: 1, Window: time.Second}
	for _, c := range []ratelimit.Charge{
		{Rule: rule},
		{Rule: rule, Subject: strings.Repeat("s", 255), Cost: math.MaxInt64, Kind: ratelimit.Executions},
	} {
		if err := c.Validate(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	secret := strings.Repeat("secret", 43)
	err := ratelimit.Charge{Rule: ratelimit.Rule{Name: "r", Window: time.Second}, Subject: secret, Cost: -1, Kind: 2}.Validate()
	if err == nil {
		t.Fatal("passed")
	}
	for _, want := range []string{`rule "r": quota 0`, "subject of 258 bytes: want at most 255", "cost -1: want 0", "kind 2: want requests (0) or executions (1)"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if !errors.Is(err, ratelimit.ErrCharge) {
		t.Errorf("%v is no ErrCharge", err)
	}
	if strings.Contains(err.Error(), "secretsecret") {
		t.Errorf("%q tells the subject", err)
	}
}

// A rule that is not valid refuses for ever; it divides by nothing.
func TestInvalidRuleRefuses(t *testing.T) {
	full, _ := ratelimit.Rule{Quota: 5, Window: time.Second}.Take(ratelimit.State{}, 5, at(epoch))
	for _, r := range []ratelimit.Rule{
		{},
		{Quota: 1},
		{Quota: 1, Window: 999},
		{Window: time.Second},
		{Window: time.Second, Burst: 5},
		{Quota: -1, Window: time.Second, Burst: 5},
		{Quota: 5, Window: time.Second, Burst: -5},
		{Quota: 1, Window: time.Second, Algorithm: 2},
		{Window: time.Second, Algorithm: ratelimit.SlidingWindowLog},
	} {
		for _, s := range []ratelimit.State{{}, full} {
			next, l := r.Take(s, 1, at(epoch))
			if l.Allowed || !l.Never || l.RetryAfter != 0 || next.Arrival != s.Arrival {
				t.Errorf("%+v: %+v", r, l)
			}
			if got := r.Return(s, 1, s.Receipt(epoch), at(epoch)); got.Arrival != s.Arrival {
				t.Errorf("%+v: Return gave %+v", r, got)
			}
		}
	}
	if _, l := (ratelimit.Rule{Quota: 1, Window: time.Second}).Take(ratelimit.State{}, -1, at(epoch)); l.Allowed {
		t.Error("a negative cost passed")
	}
}

// Fault 7: the wait is the time to the next request of this cost, not to a full
// bucket; and a rule without a refill is refused, not divided by.
func TestFault07RetryAfterIsForTheNextRequest(t *testing.T) {
	r := ratelimit.Rule{Name: "f7", Quota: 60, Window: time.Minute, Burst: 600}
	s, l := r.Take(ratelimit.State{}, 600, at(epoch))
	if !l.Allowed {
		t.Fatalf("the burst: %+v", l)
	}
	for cost, want := range map[int64]time.Duration{1: time.Second, 5: 5 * time.Second, 600: 600 * time.Second} {
		_, l := r.Take(s, cost, at(epoch))
		if l.Allowed || l.RetryAfter != want || l.ResetAfter != 600*time.Second {
			t.Errorf("cost %d: %+v, want retry after %v and reset after 10m", cost, l, want)
		}
	}
	d := ratelimit.Decision{Levels: []ratelimit.Level{{RetryAfter: time.Second}, {Allowed: true}, {RetryAfter: 3 * time.Second}}}
	if wait, possible := d.RetryAfter(); wait != 3*time.Second || !possible {
		t.Errorf("several levels: %v, %t", wait, possible)
	}
	d.Levels[2] = ratelimit.Level{Never: true}
	if wait, possible := d.RetryAfter(); wait != 0 || possible {
		t.Errorf("one that can never pass: %v, %t", wait, possible)
	}
	if (ratelimit.Rule{Name: "f7", Quota: 0, Window: time.Minute, Burst: 600}).Validate() == nil {
		t.Error("no refill passed Validate")
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		ratelimit.TokenBucket.String():      "token_bucket",
		ratelimit.SlidingWindowLog.String(): "sliding_window_log",
		ratelimit.Algorithm(9).String():     "invalid",
		ratelimit.Requests.String():         "requests",
		ratelimit.Executions.String():       "executions",
		ratelimit.Kind(9).String():          "invalid",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	far := time.Date(292_000_000_000, 1, 1, 0, 0, 0, 0, time.UTC)
	if ratelimit.Micros(far) != 1<<61 || ratelimit.Micros(time.Unix(-1<<60, 0)) != -1<<61 || ratelimit.Micros(time.Unix(1, 1999)) != 1_000_001 {
		t.Error("Micros")
	}
}
