package sqlitestore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

var oddTexts = []string{
	"", "acme", "a b", " ", "%", "%20", "\x00", "a\x00b", "\xff\xfe", "ü", "'; DROP TABLE escapement_records; --",
	strings.Repeat("long ", 1000), "\n", "-", "1", "1e9",
}

// Whatever a record says comes back as it was.
func TestRoundTrip(t *testing.T) {
	ctx := context.Background()
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	s := open(t, newFile(t), Options{})
	for i := range 300 {
		want := randomRecord(rnd)
		var got row
		err := s.write(ctx, false, func(ss session, _ time.Time) error {
			prev, err := find(ctx, ss, want.Key.ID)
			if err == nil && prev.seq == 0 { // a new record has no steps yet
				first := want
				first.Steps, first.Revision = nil, want.Revision+1
				if err = save(ctx, ss, prev, first); err == nil {
					prev, err = find(ctx, ss, want.Key.ID)
				}
			}
			if err != nil {
				return err
			}
			if err := save(ctx, ss, prev, want); err != nil {
				return err
			}
			got, err = find(ctx, ss, want.Key.ID)
			return err
		})
		if err != nil {
			t.Fatalf("seed %d, record %d: %v", seed, i, err)
		}
		if d := difference(got.Record, want); d != "" {
			t.Fatalf("seed %d, record %d: %s", seed, i, d)
		}
		// And over a connection of the pool.
		err = s.read(ctx, func(ss session, _ time.Time) (err error) {
			got, err = find(ctx, ss, want.Key.ID)
			return err
		})
		if d := difference(got.Record, want); err != nil || d != "" {
			t.Fatalf("seed %d, record %d, by the pool: %v, %s", seed, i, err, d)
		}
	}
}

// difference says in which fields two records differ.
func difference(got, want idempotency.Record) string {
	var b strings.Builder
	g, w := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range g.NumField() {
		if x, y := g.Field(i).Interface(), w.Field(i).Interface(); !reflect.DeepEqual(x, y) {
			fmt.Fprintf(&b, "%s is %.300q, want %.300q; ", g.Type().Field(i).Name, fmt.Sprint(x), fmt.Sprint(y))
		}
	}
	return b.String()
}

// randomRecord makes a record of one of 20 keys; it need not be one that the
// rule makes.
func randomRecord(rnd *rand.Rand) idempotency.Record {
	txt := func() string { return oddTexts[rnd.IntN(len(oddTexts))] }
	num := func() int64 { return rnd.Int64N(1 << uint(1+rnd.IntN(50))) }
	dur := func() time.Duration { return time.Duration(num()) * time.Microsecond }
	moment := func() time.Time {
		if rnd.IntN(4) == 0 {
			return time.Time{}
		}
		before, after := num(), num()
		return time.UnixMicro(after - before).UTC()
	}
	owner := func() (o idempotency.Owner) {
		if rnd.IntN(3) > 0 {
			binary.LittleEndian.PutUint64(o[3:], rnd.Uint64())
		}
		return o
	}
	blob := func() []byte {
		if rnd.IntN(2) == 0 {
			return nil
		}
		b := make([]byte, 1+rnd.IntN(10000))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	r := idempotency.Record{
		Key:   idempotency.Key{Tenant: txt()},
		State: idempotency.State(rnd.IntN(4)), Owner: owner(), Token: idempotency.Token(num()),
		Terms: idempotency.Terms{
			Lease: dur(), Retention: dur(), Remember: dur(), Quiet: dur(), OnUnknown: idempotency.OnUnknown(rnd.IntN(4)),
		},
		Origin:  idempotency.Origin{Method: txt(), Route: txt(), Trace: txt()},
		Attempt: int(num()), Takeover: rnd.IntN(2) == 0, LeaseEnd: moment(), Found: idempotency.Found(rnd.IntN(3)),
		FoundLease: moment(), FoundSteps: rnd.IntN(65), Released: owner(),
		Result: idempotency.Result{
			Class: idempotency.Class(rnd.IntN(4)), Status: rnd.IntN(600), Payload: blob(), NotKept: rnd.IntN(2) == 0,
			Window: dur(), By: idempotency.Source(rnd.IntN(4)),
		},
		WindowEnd: moment(), Expires: moment(), Created: time.UnixMicro(num()).UTC(), Updated: time.UnixMicro(num()).UTC(),
		Revision: idempotency.Revision(1 + rnd.Int64N(1<<60)),
	}
	r.Key.ID[0], r.Key.ID[31] = 1, byte(rnd.IntN(20))
	for i := range rnd.IntN(5) {
		p := idempotency.Fingerprint{Tag: fmt.Sprint(txt(), i)}
		if i == 0 && rnd.IntN(2) == 0 {
			p.Tag = ""
		}
		copy(p.Sum[:], blob())
		r.Prints = append(r.Prints, p)
	}
	for range rnd.IntN(4) {
		r.Marks = append(r.Marks, idempotency.Mark{Owner: owner(), Until: time.UnixMicro(num()).UTC()})
	}
	for i := range rnd.IntN(4) {
		r.Steps = append(r.Steps, idempotency.Step{
			Name: fmt.Sprint(i, txt()), Done: rnd.IntN(2) == 0, ProviderKey: txt(), ProviderID: txt(), Answer: blob(),
			Started: moment(), Ended: moment(),
		})
	}
	if r.State == idempotency.Free && len(r.Marks) == 0 {
		r.Marks = []idempotency.Mark{{Owner: idempotency.Owner{1}, Until: time.UnixMicro(1).UTC()}}
	}
	return r
}

// A row that was edited into nonsense gives an error that names it, to the
// requests that meet it and to no others of their batch.
func TestDamagedRow(t *testing.T) {
	ctx := context.Background()
	s := open(t, newFile(t), Options{})
	bad, good := start(t, s, newClaim(newKey())), start(t, s, newClaim(newKey()))
	for _, set := range []string{
		"state = 7", "lease = -1", "token = 'x'", "prints = 'zz'", "marks = 'ab'", "lease = 9223372036854775807",
	} {
		if _, err := s.owned.Exec("UPDATE escapement_records SET "+set+" WHERE id = ?", bad.Key.ID[:]); err != nil {
			t.Fatal(err)
		}
		_, err := s.Lookup(ctx, bad.Key)
		wantError(t, set, err, bad.Key.ID.String(), "escapement_records")
		wantError(t, set, s.End(ctx, bad, done("x")), bad.Key.ID.String())
		if _, err := s.Extend(ctx, good, time.Minute); err != nil {
			t.Error(err)
		}
		_, err = s.owned.Exec("UPDATE escapement_records SET state = 1, lease = 1000000, token = 1, prints = NULL, marks = NULL WHERE id = ?", bad.Key.ID[:])
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.End(ctx, bad, done("x")); err != nil {
		t.Errorf("the row that was put right again: %v", err)
	}
}

// FuzzReadRow: no content of a row makes the reader panic.
func FuzzReadRow(f *testing.F) {
	f.Add("1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", "00", "00 1", "41 1 41 41 41 1 1")
	f.Add("", " ", "  ", "a")
	f.Fuzz(func(t *testing.T, numbers, prints, marks, steps string) {
		r, err := readRow([]any{numbers, []byte{1}, "t", prints, nil, "", "", "", nil, marks, nil, steps})
		if err == nil && r.Key.ID[0] != 1 {
			t.Error("the id is lost")
		}
	})
}
