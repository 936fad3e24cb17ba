package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/escapement-dev/escapement/internal/pgserver"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/storetest"
)

// newLimits returns limits in a fresh schema. Its clock is the server's, if
// clock is nil.
func newLimits(t testing.TB, clock *storetest.Clock, o LimitsOptions) *Limits {
	t.Helper()
	server := pgserver.Shared(t)
	so := Options{Schema: migrated(t, server)}
	if clock != nil {
		so.Now = clock.Now
	}
	return openStore(t, server.URL(), so).Limits(o)
}

// beside returns the limits of another store on the same tables.
func beside(t testing.TB, l *Limits, more string) *Limits {
	t.Helper()
	return openStore(t, pgserver.Shared(t).URL()+more, l.s.o).Limits(l.o)
}

func perHour(rule string, quota int64, subject string, cost int64) ratelimit.Charge {
	return ratelimit.Charge{Rule: ratelimit.Rule{Name: rule, Quota: quota, Window: time.Hour}, Subject: subject, Cost: cost}
}

// perYear is of a bucket that regains next to nothing during a test.
func perYear(rule string, quota int64, subject string, cost int64) ratelimit.Charge {
	c := perHour(rule, quota, subject, cost)
	c.Rule.Window = ratelimit.MaxWindow
	return c
}

func takes(t testing.TB, l *Limits, charges ...ratelimit.Charge) ratelimit.Decision {
	t.Helper()
	d, err := l.Take(context.Background(), charges)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// remaining is what is left of the charge's bucket.
func remaining(t testing.TB, l *Limits, c ratelimit.Charge) int64 {
	t.Helper()
	c.Cost = 0
	return takes(t, l, c).Levels[0].Remaining
}

// value reads one value from the tables of l, of which the text says {s}.
func value[T any](t testing.TB, l *Limits, text string, args ...any) (v T) {
	t.Helper()
	c := connect(t)
	if err := c.QueryRow(context.Background(), strings.ReplaceAll(text, "{s}", l.s.o.Schema+"."), args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// T5 over two stores on one database: the bound is judged by the times of
// admission, in every interval.
func TestTwoStoresShareALimit(t *testing.T) {
	a := newLimits(t, nil, LimitsOptions{})
	nodes := []*Limits{a, beside(t, a, "")}
	rule := ratelimit.Rule{Name: "r", Quota: 10, Window: time.Second, Burst: 20}
	var mu sync.Mutex
	var times []int64
	var wait sync.WaitGroup
	begin := time.Now()
	for i := range 16 {
		wait.Go(func() {
			for time.Since(begin) < 1500*time.Millisecond {
				d, err := nodes[i%2].Take(t.Context(), []ratelimit.Charge{{Rule: rule, Subject: "s", Cost: 1}})
				if err != nil {
					t.Error(err)
					return
				}
				if d.Allowed {
					mu.Lock()
					times = append(times, d.Taken.Receipts[0].At)
					mu.Unlock()
				}
			}
		})
	}
	wait.Wait()
	slices.Sort(times)
	if len(times) < 30 {
		t.Fatalf("in 1.5 s only %d passed, want 20 at once and 10 per second", len(times))
	}
	for i := range times {
		for j := i; j < len(times); j++ {
			if n, span := int64(j-i+1), times[j]-times[i]; (n-20)*100_000 > span {
				t.Fatalf("%d passed within %d µs", n, span)
			}
		}
	}
}

// Fault 8: a bucket is removed only when it is full, however slow its rule is,
// and however often it is swept.
func TestFault08SlowLimitOutlivesItsDebt(t *testing.T) {
	clock := storetest.NewClock()
	l := newLimits(t, clock, LimitsOptions{})
	slow := ratelimit.Charge{Rule: ratelimit.Rule{Name: "slow", Quota: 1, Window: 30 * 24 * time.Hour, Burst: 12}, Subject: "s", Cost: 12}
	quick := ratelimit.Charge{Rule: ratelimit.Rule{Name: "quick", Quota: 10, Window: time.Second}, Subject: "s", Cost: 1}
	if !takes(t, l, slow, quick).Allowed {
		t.Fatal("the first is refused")
	}
	sweep := func() int {
		t.Helper()
		n, err := l.Sweep(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := sweep(); n != 0 {
		t.Fatalf("%d buckets with a debt were removed", n)
	}
	for month := range int64(12) {
		clock.Advance(15 * 24 * time.Hour)
		removed := sweep()
		if left := remaining(t, l, slow); left != month || removed != 0 && month > 0 {
			t.Fatalf("after half of month %d, %d buckets were removed, and %d units are left", month, removed, left)
		}
		clock.Advance(15 * 24 * time.Hour)
	}
	if n := sweep(); n != 0 { // full, but it may be charged again soon
		t.Fatalf("%d buckets that were just filled were removed", n)
	}
	clock.Advance(time.Hour)
	if n := sweep(); n != 1 {
		t.Fatalf("%d full buckets were removed, want 1", n)
	}
	if rows := value[int](t, l, "SELECT count(*) FROM {s}escapement_limits"); rows != 0 || remaining(t, l, slow) != 12 {
		t.Fatalf("%d rows are left, and %d units", rows, remaining(t, l, slow))
	}
}

// A sweep removes in batches, at most its limit, and passes over what is locked.
func TestLimitsSweep(t *testing.T) {
	clock := storetest.NewClock()
	l := newLimits(t, clock, LimitsOptions{})
	const n = sweepLimits + 300
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() { takes(t, l, perHour("r", 10, fmt.Sprint(i), 1)) })
	}
	wait.Wait()
	clock.Advance(2 * time.Hour)
	owing := perHour("r", 10, "7", 1)
	takes(t, l, owing)
	tx, err := connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM "+l.s.o.Schema+".escapement_limits WHERE id = $1 FOR UPDATE", []byte(limitID("r", "9"))); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ limit, want int }{{0, 0}, {100, 100}, {n, n - 102}, {n, 0}} {
		if got, err := l.Sweep(t.Context(), step.limit); err != nil || got != step.want {
			t.Fatalf("Sweep(%d) removed %d, %v, want %d", step.limit, got, err, step.want)
		}
	}
	if left := remaining(t, l, owing); left != 9 {
		t.Fatalf("the bucket that owes has %d left of 10", left)
	}
}

// Q2 and Q3: refusals and looks write no byte, and no row.
func TestRefusalWritesNothing(t *testing.T) {
	l := newLimits(t, nil, LimitsOptions{})
	full := perYear("r", 5, "s", 5)
	takes(t, l, full)
	state := func() string {
		return value[string](t, l, "SELECT coalesce(string_agg(concat_ws(' ', ctid, xmin, xmax, id, state, keep_until), ','), '') FROM {s}escapement_limits")
	}
	before := state()
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			for j := range 25 {
				once := full
				once.Cost = 1
				other := perYear("other", 5, fmt.Sprint(i, j), 1)
				never := perYear("never", 5, fmt.Sprint(i, j), 6)
				look := perYear("look", 5, fmt.Sprint(i, j), 0)
				for _, charges := range [][]ratelimit.Charge{{once}, {other, once}, {never}, {look}, {other, never, look}} {
					if d := takes(t, l, charges...); d.Allowed != (charges[0] == look) {
						t.Errorf("%v is allowed: %v", charges, d.Allowed)
					}
				}
			}
		})
	}
	wait.Wait()
	if after := state(); after != before {
		t.Fatalf("refusals and looks changed\n%s\nto\n%s", before, after)
	}
}

// Updates of a bucket stay within their page and touch no index.
func TestLimitUpdatesStayInTheirPage(t *testing.T) {
	l := newLimits(t, nil, LimitsOptions{})
	a, b := perHour("a", 1_000_000, "s", 1), perHour("b", 1_000_000, "s", 1)
	size := "SELECT pg_relation_size('{s}escapement_limits') + pg_relation_size('{s}escapement_limits_keep')"
	takes(t, l, a, b)
	before := value[int64](t, l, size)
	for range 500 {
		takes(t, l, a, b)
		takes(t, l, a)
	}
	if after := value[int64](t, l, size); after > before+2*8192 {
		t.Fatalf("after 1500 updates of two rows %d bytes became %d", before, after)
	}
}

// Many stores charge the same few buckets, several at once and in whatever
// order: nobody waits for somebody who waits for him, none fails, and no more
// passes than fits.
func TestHotBucketsOfManyStores(t *testing.T) {
	const quick = " deadlock_timeout=5ms application_name=hot_buckets"
	a := newLimits(t, nil, LimitsOptions{})
	deadlocks := "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
	before := value[int64](t, a, deadlocks)
	var nodes []*Limits
	for i := range 4 {
		nodes = append(nodes, beside(t, a, quick))
		if i < 3 {
			nodes[i].busy.span = 0 // one that always tries without locks first
		}
	}
	const capacity = 150
	rules := []string{"a", "b", "c", "d"}
	seed := rand.Uint64()
	var passed [4]atomic.Int64
	var wait sync.WaitGroup
	for i := range 12 {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		wait.Go(func() {
			for range 25 {
				var charges []ratelimit.Charge
				order := rnd.Perm(len(rules))[:1+rnd.IntN(len(rules))]
				for _, r := range order {
					charges = append(charges, perYear(rules[r], capacity, "s", 1))
				}
				if d, err := nodes[i%len(nodes)].Take(t.Context(), charges); err != nil {
					t.Errorf("%v (seed %d)", err, seed)
				} else if d.Allowed {
					for _, r := range order {
						passed[r].Add(1)
					}
				}
			}
		})
	}
	wait.Wait()
	for i, r := range rules {
		if left := remaining(t, a, perYear(r, capacity, "s", 0)); left != capacity-passed[i].Load() {
			t.Errorf("%d passed the rule %s, and %d of %d are left (seed %d)", passed[i].Load(), r, left, capacity, seed)
		}
	}
	// A connection tells what it has counted when it ends.
	for _, n := range nodes {
		if err := n.s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for value[int](t, a, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'hot_buckets'") > 0 {
	}
	if after := value[int64](t, a, deadlocks); after != before {
		t.Errorf("%d deadlocks (seed %d)", after-before, seed)
	}
}

// A transaction of somebody's holds one bucket: whoever needs that gets an
// error soon, and nothing changed; the others do not.
func TestLockedBucketHoldsNobodyElse(t *testing.T) {
	l := newLimits(t, nil, LimitsOptions{})
	held, free := perYear("r", 100, "held", 1), perYear("r", 100, "free", 1)
	takes(t, l, held)
	takes(t, l, free)
	tx, err := connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM "+l.s.o.Schema+".escapement_limits WHERE id = $1 FOR UPDATE", []byte(limitID("r", "held"))); err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for i := range 30 {
		wait.Go(func() {
			charge := free
			if i%3 == 0 {
				charge = held
			}
			_, err := l.Take(t.Context(), []ratelimit.Charge{charge})
			if locked := errors.Is(err, ErrLocked); locked != (i%3 == 0) || err != nil && !locked {
				t.Errorf("a charge of %s: %v", charge.Subject, err)
			}
		})
	}
	wait.Wait()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h, f := remaining(t, l, held), remaining(t, l, free); h != 99 || f != 79 {
		t.Errorf("%d and %d are left, want 99 and 79", h, f)
	}
}

// Callers go away at any moment: what they do not know may have been taken, and
// nothing else.
func TestCancelledTakes(t *testing.T) {
	l := newLimits(t, nil, LimitsOptions{})
	c := perYear("r", 100_000, "s", 1)
	seed := rand.Uint64()
	var passed, unknown atomic.Int64
	var wait sync.WaitGroup
	for i := range 8 {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		wait.Go(func() {
			for range 60 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(3000))*time.Microsecond)
				d, err := l.Take(ctx, []ratelimit.Charge{c})
				cancel()
				switch {
				case err == nil && d.Allowed:
					passed.Add(1)
				case errors.Is(err, context.DeadlineExceeded):
					unknown.Add(1)
				default:
					t.Errorf("a Take is %v, %v (seed %d)", d.Allowed, err, seed)
				}
			}
		})
	}
	wait.Wait()
	if taken := 100_000 - remaining(t, l, c); taken < passed.Load() || taken > passed.Load()+unknown.Load() {
		t.Errorf("%d were taken; %d passed, and of %d it is not known (seed %d)", taken, passed.Load(), unknown.Load(), seed)
	}
}

// The server dies and comes back, under load: what passed is still charged,
// with Durable at once, else once the server's log is written; charges are never
// made twice.
func TestLimitsOutliveTheServer(t *testing.T) {
	for _, durable := range []bool{false, true} {
		t.Run(fmt.Sprintf("durable=%t", durable), func(t *testing.T) {
			l := newLimits(t, nil, LimitsOptions{Durable: durable})
			old, c := perYear("old", 100_000, "s", 7), perYear("r", 100_000, "s", 1)
			takes(t, l, old)
			for end := value[string](t, l, "SELECT pg_current_wal_insert_lsn()::text"); !value[bool](t, l, "SELECT pg_current_wal_flush_lsn() >= $1::text::pg_lsn", end); {
			}
			var passed, unknown atomic.Int64
			var stop atomic.Bool
			var wait sync.WaitGroup
			for range 8 {
				wait.Go(func() {
					for !stop.Load() {
						if d, err := l.Take(t.Context(), []ratelimit.Charge{c}); err != nil {
							unknown.Add(1)
						} else if d.Allowed {
							passed.Add(1)
						}
					}
				})
			}
			for passed.Load() < 100 {
				takes(t, l, old) // it is under way
			}
			err := pgserver.Shared(t).Restart()
			for n := passed.Load(); err == nil && passed.Load() < n+100; {
				_, _ = l.Take(t.Context(), []ratelimit.Charge{perYear("poll", 1, "s", 0)}) // until it is back
			}
			stop.Store(true)
			wait.Wait()
			if err != nil {
				t.Fatal(err)
			}
			taken := 100_000 - remaining(t, l, c)
			if taken > passed.Load()+unknown.Load() || durable && taken < passed.Load() {
				t.Errorf("%d were taken; %d passed, and of %d it is not known", taken, passed.Load(), unknown.Load())
			}
			if left := remaining(t, l, old); left > 99_993 {
				t.Errorf("of what was charged and written long before %d are left", left)
			}
		})
	}
}

// A row that was changed by hand is an error that says so, of that bucket alone.
func TestDamagedLimit(t *testing.T) {
	l := newLimits(t, nil, LimitsOptions{})
	bad, good := perHour("r", 5, "bad", 1), perHour("r", 5, "good", 1)
	takes(t, l, bad)
	value[string](t, l, "UPDATE {s}escapement_limits SET state = 'x' RETURNING encode(state, 'escape')")
	if _, err := l.Take(t.Context(), []ratelimit.Charge{good, bad}); err == nil || !strings.Contains(err.Error(), "delete its row") || errors.Is(err, ratelimit.ErrCharge) {
		t.Fatalf("a damaged row is %v", err)
	}
	if err := l.Return(t.Context(), &ratelimit.Taken{Charges: []ratelimit.Charge{bad}, Receipts: make([]ratelimit.Receipt, 1)}); err == nil {
		t.Fatal("a Return to a damaged row is no error")
	}
	if left := remaining(t, l, good); left != 5 {
		t.Fatalf("the other bucket has %d left", left)
	}
	if err := l.Reset(t.Context(), "r", "bad"); err != nil {
		t.Fatal(err)
	}
	takes(t, l, bad)
}

func TestClosedLimits(t *testing.T) {
	l := newLimits(t, nil, LimitsOptions{})
	c := []ratelimit.Charge{perHour("r", 5, "s", 1)}
	d := takes(t, l, c...)
	if err := l.s.Close(); err != nil {
		t.Fatal(err)
	}
	_, take := l.Take(t.Context(), c)
	_, sweep := l.Sweep(t.Context(), 1)
	for name, err := range map[string]error{"Take": take, "Sweep": sweep, "Return": l.Return(t.Context(), d.Taken), "Reset": l.Reset(t.Context(), "r", "s")} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s of a closed store is %v", name, err)
		}
	}
}

// The view for people spells out what is stored.
func TestBucketsView(t *testing.T) {
	l := newLimits(t, nil, LimitsOptions{})
	d := takes(t, l, ratelimit.Charge{Rule: ratelimit.Rule{Name: "r", Quota: 60, Window: time.Minute, Burst: 70}, Subject: "é\xff", Cost: 3})
	got := value[string](t, l, `SELECT concat_ws(' ', rule, subject, quota, "window", burst, round(extract(epoch FROM full_at) * 1000000), keep_until > full_at) FROM {s}escapement_buckets`)
	if want := fmt.Sprintf(`r \303\251\377 60 00:01:00 70 %d t`, d.Taken.Receipts[0].Arrival); got != want {
		t.Errorf("the view says %q, want %q", got, want)
	}
}

// As the store's own records' statements (see TestKeptPlansGoByTheIndex).
func TestKeptPlansOfLimitsGoByTheIndex(t *testing.T) {
	ctx := context.Background()
	l := newLimits(t, nil, LimitsOptions{})
	id, ids := []byte("r\x00s"), [][]byte{[]byte("r\x00a"), []byte("r\x00b")}
	states := [][]byte{fullState, fullState}
	statements := map[string]struct {
		text string
		args []any
	}{
		"readOne": {l.q.readOne, []any{nil, id}}, "read": {l.q.read, []any{ids}}, "lock": {l.q.lock, []any{ids}},
		"updateOne": {l.q.updateOne, []any{id, fullState, fullState, int64(1)}},
		"update":    {l.q.update, []any{ids, states, states, []int64{1, 2}, 2}},
		"reset":     {l.q.reset, []any{id}}, "sweep": {l.q.sweep, []any{int64(5), 10}},
	}
	c := connect(t)
	for _, size := range []string{"small", "large"} {
		if size == "large" {
			if _, err := c.Exec(ctx, "INSERT INTO "+l.s.o.Schema+".escapement_limits SELECT ('r\\000' || n)::bytea,$1,n FROM generate_series(1,50000) n", fullState); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Exec(ctx, "ANALYZE "+l.s.o.Schema+".escapement_limits"); err != nil {
			t.Fatal(err)
		}
		tx, err := c.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, "SELECT "+noScan+",set_config('plan_cache_mode','force_generic_plan',true)"); err != nil {
			t.Fatal(err)
		}
		for name, st := range statements {
			rows, err := tx.Query(ctx, "EXPLAIN "+st.text, st.args...)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if fault := faultOf(plan); fault != "" {
				t.Errorf("%s of a %s table %s:\n%s", name, size, fault, strings.Join(plan, "\n"))
			}
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
	}
}
