package pgstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/pgserver"
	"github.com/escapement-dev/escapement/store/storetest"
)

// The two statements that say a part of the rule in SQL (a first claim, and the
// end of a known record) leave what the rule itself leaves, to the last field,
// alone and in batches.
func TestShortWaysFollowTheRule(t *testing.T) {
	ctx := context.Background()
	server := pgserver.Shared(t)
	clock := storetest.NewClock()
	s := openStore(t, server.URL(), Options{Schema: migrated(t, server), Now: clock.Now})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	stored := func(k idempotency.Key) idempotency.Record {
		_, rec, found, err := readOne(ctx, pooled{s.pool}, s.q.readOne, k.ID, s.now())
		if err != nil || !found {
			t.Fatalf("the record is not there: %v", err)
		}
		return rec
	}
	same := func(what string, got, want idempotency.Record) {
		t.Helper()
		want.AsOf = time.Time{}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s (seed %d):\n got %+v\nwant %+v", what, seed, got, want)
		}
	}
	for round := range 60 {
		size := 1 + round%2*(1+rnd.IntN(6))
		var reserves, endings []*short
		var claims []idempotency.Claim
		for range size {
			c := newClaim(newKey())
			c.Terms = idempotency.Terms{
				Lease: time.Duration(1+rnd.IntN(1e6)) * time.Microsecond, Retention: time.Duration(1+rnd.IntN(1e9)) * time.Microsecond,
				Remember: time.Duration(rnd.IntN(2)) * time.Hour, Quiet: time.Duration(rnd.IntN(1e6)) * time.Microsecond,
				OnUnknown: idempotency.OnUnknown(rnd.IntN(4)),
			}
			for i := range rnd.IntN(3) {
				c.Prints = append(c.Prints, idempotency.Fingerprint{Tag: fmt.Sprintf("tag %d", i), Sum: [32]byte{byte(i)}})
			}
			c.Origin.Route = []string{"", "POST /v1/orders", "nul \x00 and \xff", "\\x:"}[rnd.IntN(4)]
			claims = append(claims, c)
			reserves = append(reserves, &short{claim: &claim{c: c}})
		}
		now := clock.Now()
		s.runShort(reserves)
		clock.Set(now.Add(time.Duration(rnd.IntN(2e6)-5e5) * time.Microsecond))
		later := clock.Now()
		var ends []idempotency.Ending
		var records []idempotency.Record
		var reservations []idempotency.Reservation
		for i, o := range reserves {
			if o.err != nil || !o.claim.answered {
				t.Fatalf("a new key is not claimed: %v", o.err)
			}
			rec, a := idempotency.Decide(idempotency.Record{}, claims[i], now)
			if !reflect.DeepEqual(a, o.claim.answer) {
				t.Fatalf("the answer differs (seed %d): %+v, want %+v", seed, o.claim.answer, a)
			}
			same("a first claim", stored(claims[i].Key), rec)
			res := idempotency.Result{
				Class: idempotency.Class(1 + rnd.IntN(3)), Status: rnd.IntN(600), By: idempotency.Source(rnd.IntN(4)),
				Payload: []byte(strings.Repeat("p", rnd.IntN(3))), NotKept: rnd.IntN(2) == 0,
			}
			if res.NotKept || len(res.Payload) == 0 {
				res.Payload = nil
			}
			if res.Class == idempotency.FailedRetryable {
				res.Window = time.Duration(rnd.IntN(3)) * time.Hour
			}
			e := idempotency.Done(res)
			f := s.finishing(a.Reservation, e)
			if f == nil {
				t.Fatalf("the end of a record that was just claimed has no short way (seed %d)", seed)
			}
			reservations = append(reservations, a.Reservation)
			ends, records, endings = append(ends, e), append(records, rec), append(endings, &short{finish: f})
		}
		s.runShort(endings)
		for i, o := range endings {
			next, err := idempotency.Finish(records[i], reservations[i], ends[i], later)
			if fenced := err != nil; o.err != nil || fenced == o.finish.ok {
				t.Fatalf("the short end is %v, %v; the rule says %v (seed %d)", o.finish.ok, o.err, err, seed)
			}
			if err == nil {
				same("an end", stored(claims[i].Key), next)
			}
		}
	}
}

// A sweep, which says a part of the rule in SQL, leaves what the rule leaves, of
// records in every state.
func TestSweepFollowsTheRule(t *testing.T) {
	ctx := context.Background()
	server := pgserver.Shared(t)
	clock := storetest.NewClock()
	s := openStore(t, server.URL(), Options{Schema: migrated(t, server), Now: clock.Now})
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	some := func() time.Duration { return time.Duration(1+rnd.IntN(100)) * time.Minute }
	var keys []idempotency.Key
	for range 300 {
		c := newClaim(newKey())
		keys = append(keys, c.Key)
		c.Terms = idempotency.Terms{
			Lease: some(), Retention: some(), Quiet: some(), OnUnknown: idempotency.OnUnknown(rnd.IntN(4)),
			Remember: time.Duration(rnd.IntN(2)) * some(),
		}
		r := start(t, s, c)
		if rnd.IntN(3) == 0 {
			if err := s.SaveStep(ctx, r, idempotency.Step{Name: "charge", ProviderKey: "key"}); err != nil {
				t.Fatal(err)
			}
		}
		res := done("body").Result
		res.Class = idempotency.Class(1 + rnd.IntN(3))
		if res.Class == idempotency.FailedRetryable {
			res.Window = some()
		}
		var err error
		switch rnd.IntN(6) {
		case 0: // it stays held
		case 1:
			err = s.End(ctx, r, idempotency.UnknownEnding())
		case 2:
			err = s.Void(ctx, c.Key, c.Owner)
		default:
			err = s.End(ctx, r, idempotency.Done(res))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	stored := func(k idempotency.Key) (idempotency.Record, bool) {
		_, rec, found, err := readOne(ctx, pooled{s.pool}, s.q.readOne, k.ID, s.now())
		if err != nil {
			t.Fatal(err)
		}
		return rec, found
	}
	removed, shrunk := 0, 0
	for range 12 {
		clock.Advance(some() / 4)
		before := map[idempotency.Key]idempotency.Record{}
		for _, k := range keys {
			if rec, found := stored(k); found {
				before[k] = rec
			}
		}
		if _, err := s.Sweep(ctx, len(keys)); err != nil {
			t.Fatal(err)
		}
		for k, rec := range before {
			want, keep := idempotency.Expire(rec, clock.Now())
			got, found := stored(k)
			want.AsOf, got.AsOf = time.Time{}, time.Time{}
			if found != keep || keep && !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: of %+v a sweep leaves %v %+v; the rule says %v %+v", seed, rec, found, got, keep, want)
			}
			switch {
			case !keep:
				removed++
			case want.Revision != rec.Revision:
				shrunk++
			}
		}
	}
	if removed < 100 || shrunk < 10 {
		t.Errorf("seed %d: %d records were removed, %d were shrunk: too few", seed, removed, shrunk)
	}
}

// A plan that is made for a small table, and kept while it grows, looks every
// key up in the index.
func TestKeptPlansGoByTheIndex(t *testing.T) {
	ctx := context.Background()
	server := pgserver.Shared(t)
	schema := migrated(t, server)
	s := openStore(t, server.URL(), Options{Schema: schema})
	claims := func(n int) []any {
		var list []*claim
		for range n {
			list = append(list, &claim{c: newClaim(newKey())})
		}
		return s.newClaims(list).args
	}
	ends := func(n int) []any {
		var list []*finish
		for range n {
			r := start(t, s, newClaim(newKey()))
			list = append(list, s.finishing(r, done("x")))
		}
		return s.newEnds(list).args
	}
	ids := [][]byte{make([]byte, 32)}
	cols := newColumns(1)
	rec, _ := idempotency.Decide(idempotency.Record{}, newClaim(newKey()), claimBase)
	cols.add(&rec, false)
	id := make([]byte, 32)
	statements := map[string]struct {
		text string
		args []any
	}{
		"claim": {s.q.claim, claims(2)}, "claimOne": {s.q.claimOne, scalars(claims(1))},
		"finish": {s.q.finish, ends(2)}, "finishOne": {s.q.finishOne, scalars(ends(1))},
		"lock": {s.q.lock, []any{ids}}, "lockAway": {s.q.lockAway, []any{ids}}, "share": {s.q.share, []any{ids}},
		"relock": {s.q.relock, []any{ids}}, "read": {s.q.read, []any{ids}}, "readOne": {s.q.readOne, []any{nil, id}},
		"lockOne": {s.q.lockOne, []any{nil, id}}, "stepsOf": {s.q.stepsOf, []any{ids}},
		"insert": {s.q.insert, cols.args(nil)}, "update": {s.q.update, append(cols.args(nil), cols.same)},
		"remove": {s.q.remove, []any{ids}}, "dropSteps": {s.q.dropSteps, []any{ids}},
		"sweep": {s.q.sweep, []any{int64(5), 10}},
		"due":   {s.q.due, []any{int64(5), 10}}, "list": {s.q.list, []any{nil, id, 10}}, "listHeld": {s.q.listHeld, []any{nil, id, 10}},
		"setting": {s.q.setting, []any{"x"}}, "putSetting": {s.q.putSetting, []any{nil, "x", id, int64(1)}},
		"audit": {s.q.audit, []any{int64(5), 10}},
	}
	// Every other statement has no key to look up.
	keyless := map[string]string{
		"begin": "no table", "now": "no table", "settings": "no table",
		"putSteps": "an insert", "newSetting": "an insert", "addAudit": "an insert",
		"schemaVersion": "a table with a row for each migration",
	}
	all := reflect.TypeOf(*s.q)
	for i := range all.NumField() {
		name := all.Field(i).Name
		if _, ok := statements[name]; !ok && keyless[name] == "" {
			t.Errorf("nobody looks at the plan of %s", name)
		}
	}
	c, err := pgx.Connect(ctx, server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	for _, size := range []string{"small", "large"} {
		if size == "large" {
			if _, err := c.Exec(ctx, "INSERT INTO "+schema+".escapement_records (id,tenant,created,updated,revision) "+
				"SELECT sha256(n::text::bytea),'x',n,n,n FROM generate_series(1,50000) n"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Exec(ctx, "ANALYZE "+schema+".escapement_records"); err != nil {
			t.Fatal(err)
		}
		// As the store's own transactions are.
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

// faultOf says what a plan must not do, or "".
func faultOf(plan []string) string {
	index := false
	for i, line := range plan {
		switch {
		case strings.Contains(line, "Seq Scan"):
			return "reads the whole table"
		case strings.HasPrefix(line, "JIT"):
			return "is compiled each time"
		case strings.Contains(line, "Scan using") || strings.Contains(line, "Bitmap Index Scan"):
			index = true
			if i+1 == len(plan) || !strings.Contains(plan[i+1], "Index Cond") {
				return "reads a whole index"
			}
		}
	}
	if !index {
		return "uses no index"
	}
	return ""
}

// Two programs on one database: the whole suite, each call by either of two
// stores.
func TestSuiteWithTwoStores(t *testing.T) {
	h := harness(func(t testing.TB) string { return pgserver.Shared(t).URL() })
	inner := h.New
	h.New = func(t testing.TB, clock *storetest.Clock) idempotency.Store {
		a := inner(t, clock).(*Store)
		return &either{Store: a, b: openStore(t, pgserver.Shared(t).URL(), a.o)}
	}
	reopen, endIn := h.Caps.Reopen, h.Caps.EndInTx
	h.Caps.Reopen = func(t testing.TB, s idempotency.Store, clock *storetest.Clock) idempotency.Store {
		x := s.(*either)
		return &either{Store: reopen(t, x.Store, clock).(*Store), b: x.b}
	}
	h.Caps.EndInTx = func(t testing.TB, s idempotency.Store, r idempotency.Reservation, e idempotency.Ending) func(bool) {
		return endIn(t, s.(*either).Store, r, e)
	}
	// The other store's connections break as well, and Lookup asks but one.
	h.Faults.Restart = nil
	storetest.Run(t, h)
}

// either is two stores on one database.
type either struct {
	*Store
	b *Store
}

func (x *either) one() *Store {
	if rand.IntN(2) == 0 {
		return x.b
	}
	return x.Store
}

func (x *either) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	return x.one().Reserve(ctx, c)
}

func (x *either) Extend(ctx context.Context, r idempotency.Reservation, d time.Duration) (time.Time, error) {
	return x.one().Extend(ctx, r, d)
}

func (x *either) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	return x.one().End(ctx, r, e)
}

func (x *either) Void(ctx context.Context, k idempotency.Key, o idempotency.Owner) error {
	return x.one().Void(ctx, k, o)
}

func (x *either) SaveStep(ctx context.Context, r idempotency.Reservation, s idempotency.Step) error {
	return x.one().SaveStep(ctx, r, s)
}

func (x *either) Sweep(ctx context.Context, limit int) (int, error) { return x.one().Sweep(ctx, limit) }
