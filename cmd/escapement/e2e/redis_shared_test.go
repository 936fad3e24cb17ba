package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// two starts two programs on one Redis.
func two(t *testing.T, s *redisServer, upstream string, o options) [2]*program {
	t.Helper()
	return [2]*program{startOn(t, s, upstream, o), startOn(t, s, upstream, o)}
}

// Ten requests at once with one key, over two programs: one order, and ten
// equal answers.
func TestT1TwoProgramsOneRedis(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	ps := two(t, s, up, options{settings: patient("10s"), more: generous})
	once(t, up, ps[0].url, ps[1].url)
}

// Two first requests never both run, whichever program gets them: 100 keys,
// each sent to both at once.
func TestFault10TwoProgramsOneRedis(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	ps := two(t, s, up, options{settings: patient("10s"), more: generous})
	racing(t, up, ps)
}

// Rate 10/s, burst 20, over two programs: at once 20 pass, then 10 per second in
// total. What a noisy machine does to the clock is measured, not assumed.
func TestT5TwoProgramsOneRedis(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	ps := two(t, s, up, options{more: generous + "limits: [{name: client, routes: [GET /v1/orders], rate: 10/s, burst: 20}]\n"})
	burstThenRate(t, ps)
}

// kill -9 of one program while its operation runs: of ten repeats at once at the
// other, exactly one takes over.
func TestT3KilledProgramOnRedis(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	ps := two(t, s, up, options{settings: patient("700ms"), more: generous})
	takenOver(t, up, ps)
}

// No decision depends on a program's clock: none is ever sent to Redis.
func TestFault09NoTimeIsSentToRedis(t *testing.T) {
	t.Parallel()
	s, up := startRedis(t), startUpstream(t)
	p := startOn(t, s, up, options{more: generous + `
limits:
  - {name: bucket, by: [tenant], rate: 2/h}
  - {name: log, by: [ip], algorithm: sliding_window_log, rate: 5/h, charge: executions}
`})
	watch, _, err := launch("redis-cli", []string{"-u", s.url, "monitor"}, nil, "OK")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watch.kill)
	q := request{key: "k", body: `{"item":"tea"}`}
	q.send(p.url).want(t, http.StatusCreated, "")
	q.send(p.url).want(t, http.StatusCreated, "")
	q.send(p.url).want(t, http.StatusTooManyRequests, "quota-exceeded")
	request{method: http.MethodGet, path: "/v1/notes", tenant: "b"}.send(p.url).want(t, http.StatusOK, "")
	// A command is 1.2 [0 ADDRESS] "EVALSHA" "HASH" "KEYS" "KEY"… "CLOCK"…
	command := regexp.MustCompile(`(?i)^[0-9.]+ \[\d+ [^l]\S*\] "evalsha(?:_ro)?" "[0-9a-f]+" "(\d+)" (.*)$`)
	word := regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	seen := 0
	if !soon(func() bool {
		seen = 0
		for line := range strings.Lines(watch.stdout.String()) {
			if command.MatchString(strings.TrimSpace(line)) {
				seen++
			}
		}
		return seen >= 4
	}) {
		t.Fatalf("the monitor saw %d scripts, want 4:\n%s", seen, watch.stdout)
	}
	for line := range strings.Lines(watch.stdout.String()) {
		m := command.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		var n int
		if _, err := fmt.Sscan(m[1], &n); err != nil {
			t.Fatal(err)
		}
		if words := word.FindAllString(m[2], -1); len(words) <= n || words[n] != `""` {
			t.Errorf("a script was sent a time: %s", line)
		}
	}
}
