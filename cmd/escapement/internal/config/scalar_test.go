package config

import (
	"testing"
	"testing/quick"
	"time"
)

func TestDurationsAreReadBack(t *testing.T) {
	f := func(ms int64) bool {
		d := time.Duration(uint64(ms)%uint64(maxDuration/time.Millisecond)) * time.Millisecond
		got, err := ParseDuration(FormatDuration(d))
		return err == nil && got == d
	}
	if err := quick.Check(f, nil); err != nil {
		t.Error(err)
	}
	for s, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "1h30m": 90 * time.Minute, "7d": 168 * time.Hour, "20ms": 20 * time.Millisecond, "1d1ms": 24*time.Hour + time.Millisecond,
	} {
		if got, err := ParseDuration(s); err != nil || got != want {
			t.Errorf("%s: got %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "1", "s", "1 s", "1us", "1w", "1S", "1d ", "99999999999999999999s", "36600d1ms", "1s1"} {
		if got, err := ParseDuration(s); err == nil {
			t.Errorf("%q: got %v", s, got)
		}
	}
}

func TestSizesAreReadBack(t *testing.T) {
	f := func(n int64) bool {
		n = max(n, -(n + 1))
		got, err := ParseSize(FormatSize(n))
		return err == nil && got == n
	}
	if err := quick.Check(f, nil); err != nil {
		t.Error(err)
	}
	for _, s := range []string{"", "1", "KiB", "-1B", "1 B", "1kb", "9223372036854775807KiB"} {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("%q: got %v", s, got)
		}
	}
}

func TestRatesAreReadBack(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"1/s": time.Second, "2/m": time.Minute, "3/h": time.Hour, "4/d": 24 * time.Hour, "5/30s": 30 * time.Second, "6/30d": 30 * 24 * time.Hour,
	} {
		n, w, err := ParseRate(s)
		if err != nil || w != want || FormatRate(n, w) != s {
			t.Errorf("%s: got %d, %v, %v", s, n, w, err)
		}
	}
}
