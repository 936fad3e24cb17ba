package ratelimit_test

import (
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// Two requests fit, the third is told how long to wait, and that is enough.
func ExampleRule_Take() {
	rule := ratelimit.Rule{Name: "client", Quota: 10, Window: time.Second, Burst: 2}
	var state ratelimit.State
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for range 4 {
		var level ratelimit.Level
		state, level = rule.Take(state, 1, now)
		fmt.Println(level.Allowed, level.Remaining, level.RetryAfter, level.ResetAfter)
		now = now.Add(level.RetryAfter)
	}
	// Output:
	// true 1 0s 100ms
	// true 0 0s 200ms
	// false 0 100ms 200ms
	// true 0 0s 200ms
}

func ExampleRule_Validate() {
	rule := ratelimit.Rule{Name: "export", Algorithm: ratelimit.SlidingWindowLog, Quota: 100, Window: 1500 * time.Nanosecond, Burst: 5}
	fmt.Println(rule.Validate())
	// Output:
	// rule "export": window 1.5µs: want whole microseconds
	// rule "export": burst 5: want 0 for a sliding_window_log, whose capacity is its quota
}
