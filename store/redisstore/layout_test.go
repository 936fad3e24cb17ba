package redisstore_test

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// TestKeyNames: the names are the documented ones, and no text of a caller can
// reach out of its part.
func TestKeyNames(t *testing.T) {
	shared.Cli(t, "flushall")
	s, err := redisstore.Open("redis://"+shared.Addr, redisstore.Options{Prefix: "app:", TenantOf: tenantOf})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	for i, tenant := range []string{"acme", "a}:idem:{b", strings.Repeat("t", 200), "é*?[x]"} {
		c := newClaim(i)
		c.Key.Tenant = tenant
		if _, err := s.Reserve(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Take(ctx, []ratelimit.Charge{perHour("r", "acme user", 1), perHour("r", "{x}:y", 1), perHour("r", strings.Repeat("s", 255), 1)}); err != nil {
		t.Fatal(err)
	}
	if err := s.PutIf(ctx, "the secret", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(ctx, idempotency.AuditEntry{}); err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(shared.Cli(t, "--raw", "keys", "*"))
	want := []string{
		"app:audit",
		"app:rate:{r:%7Bx%7D%3Ay}",
		"app:rate:{r:~bf9ed46d6a3ac1e3d8cf3a0ae4cd2f2e3a5f0d2b}",
		"app:setting:{the%20secret}",
		"app:tenant:{%C3%A9%2A%3F%5Bx%5D}:idem:0103" + strings.Repeat("0", 60),
		"app:tenant:{acme}:idem:0100" + strings.Repeat("0", 60),
		"app:tenant:{acme}:rate:r:acme%20user",
		"app:tenant:{a%7D%3Aidem%3A%7Bb}:idem:0101" + strings.Repeat("0", 60),
		"app:tenant:{~}:idem:0102" + strings.Repeat("0", 60),
	}
	sort.Strings(got)
	sort.Strings(want)
	hashed := func(s string) string { // a hash stands for itself
		if i := strings.IndexByte(s, '~'); i >= 0 {
			return s[:i+1] + s[strings.IndexByte(s, '}'):]
		}
		return s
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || hashed(got[i]) != hashed(want[i]) {
			t.Fatalf("the keys are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	for _, prefix := range []string{"a{b", "a b", "*", "é"} {
		if _, err := redisstore.Open("redis://"+shared.Addr, redisstore.Options{Prefix: prefix}); err == nil {
			t.Errorf("the prefix %q is accepted", prefix)
		}
	}
}

// E2: a key outlives its record, by not much; a record that may not expire has
// no expiry.
func TestTimesToLiveOnlyCollectRubbish(t *testing.T) {
	shared.Cli(t, "flushall")
	s := open(t, "redis://"+shared.Addr, nil)
	ttl := func() time.Duration {
		t.Helper()
		key := strings.TrimSpace(shared.Cli(t, "--raw", "keys", "*:idem:*"))
		ms, err := strconv.ParseInt(shared.Cli(t, "--raw", "pttl", key), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(ms) * time.Millisecond
	}
	within := func(what string, got, want time.Duration) {
		t.Helper()
		if got < want-time.Second || got > want+2*time.Minute {
			t.Fatalf("%s the key lives for %v, want %v and somewhat more", what, got, want)
		}
	}
	c := newClaim(1)
	c.Terms.Remember = 24 * time.Hour
	start := func() idempotency.Reservation {
		t.Helper()
		a, err := s.Reserve(t.Context(), c)
		if err != nil || a.Outcome != idempotency.Started {
			t.Fatal(a.Outcome, err)
		}
		return a.Reservation
	}
	end := func(r idempotency.Reservation, e idempotency.Ending) {
		t.Helper()
		if err := s.End(t.Context(), r, e); err != nil {
			t.Fatal(err)
		}
	}
	r := start()
	if got := ttl(); got >= 0 {
		t.Fatalf("a held record that is never forgotten has a key that lives for %v", got)
	}
	end(r, idempotency.Done(idempotency.Result{Class: idempotency.FailedRetryable}))
	within("after a retryable result", ttl(), time.Hour)
	c.Owner = idempotency.NewOwner()
	r = start()
	if got := ttl(); got >= 0 {
		t.Fatalf("a held record that is never forgotten has a key that lives for %v", got)
	}
	end(r, idempotency.Done(idempotency.Result{Class: idempotency.Succeeded}))
	within("to be remembered,", ttl(), 25*time.Hour)

	shared.Cli(t, "flushall")
	c.Terms.OnUnknown = idempotency.Retry
	c.Terms.Remember = 0
	end(start(), idempotency.UnknownEnding())
	within("unknown under retry", ttl(), time.Hour)
	shared.Cli(t, "flushall")
	end(start(), idempotency.NotRun())
	if n := shared.Cli(t, "--raw", "dbsize"); n != "0" {
		t.Fatalf("after NotRun of a free key there are %s keys", n)
	}
	if err := s.Void(t.Context(), c.Key, c.Owner); err != nil {
		t.Fatal(err)
	}
	within("of a mark", ttl(), time.Minute)
}

// E1: Sweep takes the payload from what is only to be remembered.
func TestSweepShrinksInRedis(t *testing.T) {
	shared.Cli(t, "flushall")
	clock := fixedClock()
	s := open(t, "redis://"+shared.Addr, clock)
	c := newClaim(1)
	c.Terms.Remember = 24 * time.Hour
	a, err := s.Reserve(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SaveStep(t.Context(), a.Reservation, idempotency.Step{Name: "pay", Done: true, Answer: []byte("private")}); err != nil {
		t.Fatal(err)
	}
	if err := s.End(t.Context(), a.Reservation, idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Payload: []byte("private")})); err != nil {
		t.Fatal(err)
	}
	clock.Advance(time.Hour)
	if n, err := s.Sweep(t.Context(), 10); n != 1 || err != nil {
		t.Fatalf("Sweep is %d, %v", n, err)
	}
	key := strings.TrimSpace(shared.Cli(t, "--raw", "keys", "*:idem:*"))
	fields := strings.Fields(shared.Cli(t, "--raw", "hkeys", key))
	sort.Strings(fields)
	if fmt.Sprint(fields) != "[c h]" {
		t.Fatalf("the shrunk record has the fields %v", fields)
	}
}

// TestListWhileTheTableGrows: while it is listed, Redis's table becomes many
// times larger; every record that was there is listed exactly once.
func TestListWhileTheTableGrows(t *testing.T) {
	for _, limit := range []int{1, 2, 3, 7} {
		t.Run(fmt.Sprint("pages of ", limit), func(t *testing.T) { listWhileTheTableGrows(t, limit) })
	}
}

func listWhileTheTableGrows(t *testing.T, limit int) {
	t.Helper()
	shared.Cli(t, "flushall")
	s := open(t, "redis://"+shared.Addr, nil)
	const n = 200
	fill := 0
	reserve := func(k int) {
		t.Helper()
		fill++
		c := newClaim(fill)
		for range k {
			if _, err := s.Reserve(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			fill++
			c = newClaim(fill)
		}
	}
	reserve(n)
	old := map[idempotency.ID]int{}
	p, err := s.List(t.Context(), idempotency.Filter{Limit: 1000})
	if err != nil || len(p.Records) != n {
		t.Fatalf("%d records, %v", len(p.Records), err)
	}
	for _, r := range p.Records {
		old[r.Key.ID] = 0
	}
	f := idempotency.Filter{Limit: limit}
	for page := 0; ; page++ {
		p, err := s.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range p.Records {
			if _, there := old[r.Key.ID]; there {
				old[r.Key.ID]++
			}
		}
		if p.Next == "" {
			break
		}
		f.Cursor = p.Next
		if page < 60 {
			reserve(50)
		}
	}
	for id, times := range old {
		if times != 1 {
			t.Fatalf("the record %v was listed %d times", id, times)
		}
	}
	for _, bad := range []string{"x", "a|b", "|1|2", "|1|2:zz", strings.Repeat("|", 100)} {
		if _, err := s.List(t.Context(), idempotency.Filter{Cursor: bad}); err == nil {
			t.Errorf("the cursor %q is accepted", bad)
		}
	}
}
