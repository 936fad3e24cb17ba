package redisstore_test

import (
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// dump is all keys with their values and expiry, as text.
func dump(t testing.TB, pattern string) string {
	t.Helper()
	keys := strings.Fields(shared.Cli(t, "--raw", "keys", pattern))
	sort.Strings(keys)
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(k + " " + shared.Cli(t, "dump", k) + " " + shared.Cli(t, "pexpiretime", k) + "\n")
	}
	return b.String()
}

// Q2, to the byte: a refusal changes neither values nor times to live.
func TestQ2RefusalLeavesNoTrace(t *testing.T) {
	shared.Cli(t, "flushall")
	s := open(t, "redis://"+shared.Addr, nil)
	log := ratelimit.Rule{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: 3, Window: time.Hour}
	all := []ratelimit.Charge{perHour("wide", "s", 0), perHour("bucket", "s", 5), {Rule: log, Subject: "s", Cost: 3}}
	if d, err := s.Take(t.Context(), all); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	before := dump(t, "*")
	if n := shared.Cli(t, "--raw", "dbsize"); n != "2" {
		t.Fatalf("Redis has %s keys, want two: a look makes none", n)
	}
	for i := range 100 {
		all[0].Cost = int64(i % 2)
		if d, err := s.Take(t.Context(), []ratelimit.Charge{all[0], {Rule: all[1+i%2].Rule, Subject: "s", Cost: 1}}); err != nil || d.Allowed {
			t.Fatal(d, err)
		}
	}
	if after := dump(t, "*"); after != before {
		t.Fatalf("100 refusals changed Redis from\n%s\nto\n%s", before, after)
	}
}

// A slow limit cannot be reset by waiting: its key outlives the time to full.
func TestFault08SlowLimitOutlivesItsDebt(t *testing.T) {
	shared.Cli(t, "flushall")
	s := open(t, "redis://"+shared.Addr, nil)
	log := ratelimit.Rule{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: 5, Window: time.Hour}
	for i, c := range []ratelimit.Charge{
		perHour("slow", "s", 1), perHour("slow", "s", 4), perHour("slow2", "s", 5),
		{Rule: log, Subject: "s", Cost: 1},
		{Rule: ratelimit.Rule{Name: "year", Quota: 1, Window: 365 * 24 * time.Hour, Burst: 10}, Subject: "s", Cost: 10},
		{Rule: ratelimit.Rule{Name: "fast", Quota: 1_000_000_000, Window: time.Second}, Subject: "s", Cost: 1},
	} {
		d, err := s.Take(t.Context(), []ratelimit.Charge{c})
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		for _, key := range strings.Fields(shared.Cli(t, "--raw", "keys", "*:"+c.Rule.Name+":*")) {
			t.Fatalf("unexpected key %q", key)
		}
		key := strings.Fields(shared.Cli(t, "--raw", "keys", "*rate:{"+c.Rule.Name+":s}"))
		if len(key) != 1 {
			t.Fatalf("charge %d has the keys %q", i, key)
		}
		ms, err := strconv.ParseInt(shared.Cli(t, "--raw", "pttl", key[0]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if ttl := time.Duration(ms) * time.Millisecond; ttl < d.Levels[0].ResetAfter || ttl > d.Levels[0].ResetAfter+2*time.Minute {
			t.Fatalf("charge %d, of %q, is full again after %v, and its key lives for %v", i, c.Rule.Name, d.Levels[0].ResetAfter, ttl)
		}
	}
}

// Two admissions in one microsecond are two entries of a log.
func TestEqualTimesAreSeparateEntries(t *testing.T) {
	shared.Cli(t, "flushall")
	s := open(t, "redis://"+shared.Addr, fixedClock())
	log := ratelimit.Rule{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: 7, Window: time.Hour}
	passed := 0
	for range 20 {
		d, err := s.Take(t.Context(), []ratelimit.Charge{{Rule: log, Subject: "s", Cost: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			passed++
		}
	}
	if passed != 7 {
		t.Fatalf("at one microsecond %d of a quota of 7 passed", passed)
	}
}

// A log of the greatest quota stays within its bytes, and is trimmed.
func TestLogIsTrimmed(t *testing.T) {
	shared.Cli(t, "flushall")
	clock := fixedClock()
	s := open(t, "redis://"+shared.Addr, clock)
	log := ratelimit.Rule{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: 1000, Window: time.Second}
	for range 100 {
		clock.Advance(time.Second)
		d, err := s.Take(t.Context(), []ratelimit.Charge{{Rule: log, Subject: "s", Cost: 600}})
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	n, err := strconv.Atoi(shared.Cli(t, "--raw", "strlen", strings.TrimSpace(shared.Cli(t, "--raw", "keys", "*log*"))))
	if err != nil || n > 49+8*2*1000 {
		t.Fatalf("after 60,000 entries, of a quota of 1000, the log has %d bytes, %v", n, err)
	}
}

// What is given back may leave entries that are over for longer than a key
// lives: the log is still written, and the charge given back.
func TestReturnLeavesWhatIsLongOver(t *testing.T) {
	clock := fixedClock()
	s := open(t, "redis://"+shared.Addr, clock)
	log := ratelimit.Rule{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Quota: 2, Window: time.Minute}
	charge := []ratelimit.Charge{{Rule: log, Subject: "s", Cost: 1}}
	if d, err := s.Take(t.Context(), charge); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	clock.Advance(3 * time.Hour)
	d, err := s.Take(t.Context(), charge)
	if err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	if err := s.Return(t.Context(), d.Taken); err != nil {
		t.Fatal(err)
	}
	charge[0].Cost = 0
	if d, err := s.Take(t.Context(), charge); err != nil || d.Levels[0].Remaining != 2 {
		t.Fatalf("after the charge was given back the level is %+v, %v", d.Levels, err)
	}
}
