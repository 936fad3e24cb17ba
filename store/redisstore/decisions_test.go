package redisstore_test

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
	"github.com/escapement-dev/escapement/store/storetest"
)

// soak reports whether random campaigns run at full length.
func soak() bool { return os.Getenv("ESCAPEMENT_SOAK") == "1" }

// seedOf is the campaign's seed: ESCAPEMENT_SEED, else a fresh one.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	var seed uint64
	if s := os.Getenv("ESCAPEMENT_SEED"); s != "" {
		if _, err := fmt.Sscan(s, &seed); err != nil {
			t.Fatalf("ESCAPEMENT_SEED: %v", err)
		}
	} else {
		seed = rand.Uint64()
	}
	t.Logf("ESCAPEMENT_SEED=%d repeats the choices", seed)
	return seed
}

// bucketOf is a rule and a subject.
type bucketOf struct {
	rule    ratelimit.Rule
	subject string
}

// ledger is what was admitted from each bucket.
type ledger struct {
	mu    sync.Mutex
	spent map[bucketOf]int64
	seen  map[string]int // kinds of decisions
}

func (l *ledger) add(kind string, charges []ratelimit.Charge, sign int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[kind]++
	for _, c := range charges {
		l.spent[bucketOf{c.Rule, c.Subject}] += sign * c.Cost
	}
}

// owed is what each token bucket owes from the beginning. A Return gives back
// no more than what is surely still owed: where others' returns cross it, on a
// bucket that owes next to nothing, it gives less.
const owed = 1000

// levels are the rules of a campaign: those whose subject is a tenant, or has
// one, lie with the tenant in a Cluster.
type levels struct {
	requests, executions []ratelimit.Rule
}

// How many there are of each kind of subject.
const ips, keys, tenants, ipsOfTenant = 60, 300, 40, 5

// fill charges every token bucket with what it owes.
func fill(t *testing.T, s *redisstore.Store, l *ledger, rules levels) {
	t.Helper()
	var all []ratelimit.Charge
	add := func(rule ratelimit.Rule, subject string) {
		all = append(all, ratelimit.Charge{Rule: rule, Subject: subject, Cost: owed})
	}
	for _, rule := range slices.Concat(rules.requests, rules.executions) {
		if rule.Algorithm != ratelimit.TokenBucket {
			continue
		}
		switch kind, _, _ := strings.Cut(rule.Name, "-"); kind {
		case "all":
			add(rule, "")
		case "ip":
			for i := range ips {
				add(rule, fmt.Sprintf("203.0.113.%d", i))
			}
		case "key":
			for i := range keys {
				add(rule, fmt.Sprintf("k%d", i))
			}
		case "tenant", "both":
			for i := range tenants {
				if tenant := fmt.Sprintf("t%d", i); kind == "tenant" {
					add(rule, tenant)
				} else {
					for j := range ipsOfTenant {
						add(rule, fmt.Sprintf("%s 203.0.113.%d", tenant, j))
					}
				}
			}
		}
	}
	together(slices.Values(all), func(c ratelimit.Charge) {
		if d, err := s.Take(t.Context(), []ratelimit.Charge{c}); err != nil || !d.Allowed {
			t.Errorf("the first charge of %q to %q: %v, %v", c.Rule.Name, c.Subject, d.Allowed, err)
		}
	})
	l.add("filled", all, 1)
}

// together calls f for each, many at once.
func together[T any](all iter.Seq[T], f func(T)) {
	var wait sync.WaitGroup
	slots := make(chan struct{}, 64)
	for x := range all {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			f(x)
		})
	}
	wait.Wait()
}

// draw draws up to four levels of one request: of any kind of subject, in
// any order.
func draw(r *rand.Rand, rules []ratelimit.Rule, tenant string) []ratelimit.Charge {
	var list []ratelimit.Charge
	for _, rule := range rules {
		if r.IntN(2) == 0 {
			continue
		}
		c := ratelimit.Charge{Rule: rule, Cost: int64(r.IntN(3))}
		switch kind, _, _ := strings.Cut(rule.Name, "-"); kind {
		case "ip":
			c.Subject = fmt.Sprintf("203.0.113.%d", r.IntN(ips))
		case "key":
			c.Subject = fmt.Sprintf("k%d", r.IntN(keys))
		case "tenant":
			c.Subject = tenant
		case "both":
			c.Subject = fmt.Sprintf("%s 203.0.113.%d", tenant, r.IntN(ipsOfTenant))
		}
		list = append(list, c)
	}
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// TestDecisionsInACluster makes random decisions of several levels, many at
// once, by Take and by Admit, with records placed by tenant and by hash. No
// call fails, and what each bucket lacks in the end is what was admitted from
// it, to the unit: whatever a later level refused has been given back.
func TestDecisionsInACluster(t *testing.T) {
	rounds, each := 4, 3000
	if soak() {
		rounds = 36
	}
	seed := seedOf(t)
	c := redistest.StartCluster(t, 3, 0)
	url := "redis+cluster://" + strings.Join(c.Addrs(), ",")
	// The clock stands still within a round: nothing comes back but refunds.
	clock := storetest.NewClock()
	byTenant := func(_, subject string) string {
		if strings.HasPrefix(subject, "t") {
			tenant, _, _ := strings.Cut(subject, " ")
			return tenant
		}
		return ""
	}
	hour := func(name string, quota int64) ratelimit.Rule {
		return ratelimit.Rule{Name: name, Quota: owed + quota, Window: time.Hour}
	}
	log := func(name string, quota int64) ratelimit.Rule {
		return ratelimit.Rule{Name: name, Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: time.Hour}
	}
	rules := levels{
		requests:   []ratelimit.Rule{hour("all", 1_000_000), hour("ip", 15), hour("tenant", 35), hour("both", 12), log("key-log", 3)},
		executions: []ratelimit.Rule{hour("all-run", 1_000_000), hour("key-run", 4), hour("tenant-run", 15), log("both-run", 8)},
	}
	for _, spread := range []bool{false, true} {
		t.Run(map[bool]string{false: "by tenant", true: "spread"}[spread], func(t *testing.T) {
			s, err := redisstore.Open(url, redisstore.Options{
				Prefix: fmt.Sprintf("test%d:", prefixes.Add(1)), TenantOf: byTenant, Spread: spread, Now: clock.Now,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			total := map[string]int{}
			for round := range rounds / 2 {
				l := &ledger{spent: map[bucketOf]int64{}, seen: map[string]int{}}
				fill(t, s, l, rules)
				var wait sync.WaitGroup
				const workers = 32
				for w := range workers {
					r := rand.New(rand.NewPCG(seed, uint64(round*workers+w)))
					wait.Go(func() {
						for range each / workers {
							decide(t, s, l, r, rules)
						}
					})
				}
				wait.Wait()
				if t.Failed() {
					return
				}
				compare(t, s, l)
				for kind, n := range l.seen {
					total[kind] += n
				}
				clock.Advance(2 * time.Hour) // all buckets are full again, all leases over
			}
			t.Log(total)
			for _, kind := range []string{
				"take true", "take false", "admit true started", "admit true replayed", "admit false of requests", "admit false of executions", "given back",
			} {
				if total[kind] == 0 {
					t.Errorf("it never came to %q: %v", kind, total)
				}
			}
		})
	}
}

// decide makes one decision, and notes in the ledger what it admitted.
func decide(t *testing.T, s *redisstore.Store, l *ledger, r *rand.Rand, rules levels) {
	ctx := t.Context()
	tenant := fmt.Sprintf("t%d", r.IntN(tenants))
	requests := draw(r, rules.requests, tenant)
	if r.IntN(3) == 0 {
		d, err := s.Take(ctx, requests)
		if err != nil {
			t.Errorf("Take: %v", err)
			return
		}
		kind := fmt.Sprintf("take %v", d.Allowed)
		if !d.Allowed {
			l.add(kind, nil, 1)
			return
		}
		l.add(kind, requests, 1)
		if r.IntN(5) == 0 {
			if err := s.Return(ctx, d.Taken); err != nil {
				t.Errorf("Return: %v", err)
			}
			l.add("given back", requests, -1)
		}
		return
	}
	executions := draw(r, rules.executions, tenant)
	claim := newClaim(r.IntN(20))
	claim.Key.Tenant = tenant
	d, a, err := s.Admit(ctx, requests, executions, claim)
	if err != nil {
		t.Errorf("Admit: %v", err)
		return
	}
	requestsPassed := !slices.ContainsFunc(d.Levels[:len(requests)], func(l ratelimit.Level) bool { return !l.Allowed })
	switch {
	case !d.Allowed && !requestsPassed:
		l.add("admit false of requests", nil, 1)
	case !d.Allowed: // the requests stay charged
		l.add("admit false of executions", requests, 1)
	case a.Outcome == idempotency.Started:
		l.add("admit true started", slices.Concat(requests, executions), 1)
		e := idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Payload: []byte("x")})
		if r.IntN(4) == 0 {
			e = idempotency.NotRun()
		}
		if err := s.End(ctx, a.Reservation, e); err != nil {
			t.Errorf("End: %v", err)
		}
	default:
		l.add(fmt.Sprintf("admit true %v", a.Outcome), requests, 1)
	}
	if !d.Allowed && a.Outcome != idempotency.Refused {
		t.Errorf("a refusal comes with the outcome %v", a.Outcome)
	}
}

// compare looks at every bucket that was charged.
func compare(t *testing.T, s *redisstore.Store, l *ledger) {
	t.Helper()
	together(maps.Keys(l.spent), func(b bucketOf) {
		d, err := s.Take(t.Context(), []ratelimit.Charge{{Rule: b.rule, Subject: b.subject}})
		if err != nil {
			t.Error(err)
			return
		}
		if got := b.rule.Capacity() - d.Levels[0].Remaining; got != l.spent[b] {
			t.Errorf("of %q %d were admitted to %q, and its bucket lacks %d", b.rule.Name, l.spent[b], b.subject, got)
		}
	})
}
