package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// TestUsualCasesAreTheRule: what the scripts decide in straight lines is what
// the whole rule decides, and what they write is the same to the byte. A charge
// of 0 beside the others makes a call one that is not usual.
func TestUsualCasesAreTheRule(t *testing.T) {
	clock := fixedClock()
	url := "redis://" + shared.Addr
	usual, whole := open(t, url, clock), open(t, url, clock)
	look := []ratelimit.Charge{perHour("look", "s", 0)}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 7))
	fail := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("seed %d: "+format, append([]any{seed}, args...)...)
	}
	charges := func(names ...string) (list []ratelimit.Charge) {
		for _, name := range names[:r.IntN(len(names)+1)] {
			rule := ratelimit.Rule{Name: name, Quota: 7, Window: 3 * time.Second, Burst: 5}
			if r.IntN(30) == 0 {
				rule.Burst = 2 // the rule changes
			}
			list = append(list, ratelimit.Charge{Rule: rule, Subject: strconv.Itoa(r.IntN(2)), Cost: int64(1 + r.IntN(6))})
		}
		return list
	}
	prints := [][]idempotency.Fingerprint{nil, {{Tag: "a"}}, {{Tag: "a", Sum: [32]byte{1}}}, {{Tag: "b"}}}
	owners := []idempotency.Owner{idempotency.NewOwner(), idempotency.NewOwner(), idempotency.NewOwner()}
	seen := map[idempotency.Outcome]int{}
	for i := range 1500 {
		step := time.Duration(r.IntN(400_000)) * time.Microsecond
		if r.IntN(100) == 0 {
			step = -step // and sometimes back
		}
		clock.Advance(step)
		c := newClaim(r.IntN(30))
		c.Prints, c.Owner = prints[r.IntN(len(prints))], owners[r.IntN(len(owners))]
		c.Terms = idempotency.Terms{
			Lease: time.Duration(1+r.IntN(3)) * time.Second, Retention: 20 * time.Second, Remember: time.Duration(r.IntN(2)) * 20 * time.Second,
			OnUnknown: []idempotency.OnUnknown{idempotency.Hold, idempotency.Retry}[r.IntN(2)],
		}
		requests, executions := charges("r1", "r2"), charges("e1", "e2")
		d, a, err := usual.Admit(t.Context(), requests, executions, c)
		if err != nil {
			fail("call %d: %v", i, err)
		}
		want, answer, err := whole.Admit(t.Context(), append(look, requests...), executions, c)
		if err != nil {
			fail("call %d: %v", i, err)
		}
		want.Levels = want.Levels[1:]
		if d.Allowed != want.Allowed || fmt.Sprintf("%+v", d.Levels) != fmt.Sprintf("%+v", want.Levels) {
			fail("call %d: the decision is\n%v %+v, of the whole rule\n%v %+v", i, d.Allowed, d.Levels, want.Allowed, want.Levels)
		}
		if !reflect.DeepEqual(a, answer) {
			fail("call %d: the answer is\n%+v, of the whole rule\n%+v", i, a, answer)
		}
		if seen[a.Outcome]++; a.Outcome == idempotency.Started && r.IntN(4) > 0 {
			end := []idempotency.Ending{
				idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: []byte(strings.Repeat("x", r.IntN(3)))}),
				idempotency.Done(idempotency.Result{Class: idempotency.FailedRetryable, Window: time.Second}),
				idempotency.NotRun(), idempotency.UnknownEnding(),
			}[r.IntN(4)]
			for _, x := range []struct {
				s *redisstore.Store
				r idempotency.Reservation
			}{{usual, a.Reservation}, {whole, answer.Reservation}} {
				if err := x.s.End(t.Context(), x.r, end); err != nil {
					fail("call %d: %v", i, err)
				}
			}
		}
		if i%100 == 0 {
			a, b := strings.Split(state(t, usual), "\n"), strings.Split(state(t, whole), "\n")
			for j := range max(len(a), len(b)) {
				if j >= len(a) || j >= len(b) || a[j] != b[j] {
					fail("after call %d Redis has %d lines, by the whole rule %d; the first that differ are\n%q\n%q", i, len(a), len(b), a[j:min(j+1, len(a))], b[j:min(j+1, len(b))])
				}
			}
		}
	}
	for _, o := range []idempotency.Outcome{idempotency.Refused, idempotency.Started, idempotency.Replayed, idempotency.InProgress, idempotency.Mismatched} {
		if seen[o] == 0 {
			fail("it never came to %v: %v", o, seen)
		}
	}
}

// state is all that a store's keys hold, in an order of its own.
func state(t *testing.T, s *redisstore.Store) string {
	t.Helper()
	return shared.Cli(t, "eval", `
		local all, p = {}, ARGV[1]
		local keys = redis.call('KEYS', p .. '*')
		table.sort(keys)
		for _, k in ipairs(keys) do
			local lives = redis.call('PEXPIRETIME', k) > 0 and 'passing' or 'lasting'
			if redis.call('TYPE', k).ok == 'string' then
				all[#all + 1] = string.sub(k, #p + 1) .. ' ' .. lives .. ' ' .. redis.call('GET', k)
			else
				for _, f in ipairs({ 'h', 'c', 'f', 'm', 'p' }) do
					all[#all + 1] = string.sub(k, #p + 1) .. ' ' .. lives .. ' ' .. f .. ' ' .. (redis.call('HGET', k, f) or '-')
				end
			end
		end
		return all`, "0", redisstore.PrefixOf(s))
}

// E2: a bucket's key outlives its use by one to two minutes, though its
// lifetime is not written by every charge; and a return does not shorten that.
func TestABucketsKeyOutlivesIt(t *testing.T) {
	for _, step := range []time.Duration{7 * time.Second, 3 * time.Minute} {
		s := open(t, "redis://"+shared.Addr, nil)
		rule := ratelimit.Rule{Name: "r", Quota: 1, Window: step, Burst: 100}
		for i := range 30 {
			d, err := s.Take(t.Context(), []ratelimit.Charge{{Rule: rule, Subject: "s", Cost: 1}})
			if err != nil || !d.Allowed {
				t.Fatal(d.Allowed, err)
			}
			if i%7 == 6 {
				if err := s.Return(t.Context(), d.Taken); err != nil {
					t.Fatal(err)
				}
			}
			if d, err = s.Take(t.Context(), []ratelimit.Charge{{Rule: rule, Subject: "s"}}); err != nil {
				t.Fatal(err)
			}
			ms, err := strconv.ParseInt(shared.Cli(t, "--raw", "pttl", redisstore.PrefixOf(s)+"rate:{r:s}"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			over := time.Duration(ms)*time.Millisecond - d.Levels[0].ResetAfter
			if over < 50*time.Second || over > 121*time.Second+step {
				t.Fatalf("step %v, charge %d: the key outlives the bucket by %v", step, i, over)
			}
		}
	}
}
