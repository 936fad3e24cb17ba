package sqlitestore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// A page is bounded also where few records match; the pages together have
// every match once.
func TestListScansInPieces(t *testing.T) {
	ctx := context.Background()
	s := open(t, newFile(t), Options{})
	const n = 2500
	want := map[idempotency.ID]bool{}
	err := s.write(ctx, false, func(ss session, _ time.Time) error {
		for i := range n {
			c := newClaim(newKey())
			if i%500 == 0 {
				c.Origin.Route = "/rare"
				want[c.Key.ID] = true
			}
			if _, err := reserve(ctx, ss, c, now(s.o)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	pages := 0
	for cursor := ""; pages == 0 || cursor != ""; pages++ {
		p, err := s.List(ctx, idempotency.Filter{Route: "/rare", Cursor: cursor, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range p.Records {
			if !want[r.Key.ID] {
				t.Errorf("%v came twice or does not match", r.Key.ID)
			}
			delete(want, r.Key.ID)
		}
		cursor = p.Next
	}
	if len(want) != 0 || pages != 3 {
		t.Errorf("%d pages, %d matches are missing: want 3 and none", pages, len(want))
	}
}

func TestListRefuses(t *testing.T) {
	s := open(t, newFile(t), Options{})
	for _, f := range []idempotency.Filter{{Limit: 1001}, {Limit: -1}, {Cursor: "x"}, {Cursor: "-1"}, {Status: "done"}} {
		if _, err := s.List(context.Background(), f); err == nil {
			t.Errorf("List took %+v", f)
		}
	}
}

// The queries of the hot paths and of the list use their indexes.
func TestPlans(t *testing.T) {
	s := open(t, newFile(t), Options{})
	for st, want := range map[statement]string{
		selectRecord: "sqlite_autoindex_escapement_records_1",
		updateRecord: "INTEGER PRIMARY KEY",
		selectDue:    "escapement_records_keep",
		listAll:      "INTEGER PRIMARY KEY",
		listHeld:     "escapement_records_held",
		listTenant:   "escapement_records_tenant",
	} {
		rows, err := s.owned.Query("EXPLAIN QUERY PLAN " + strings.ReplaceAll(texted[st], "?", "1"))
		if err != nil {
			t.Fatal(err)
		}
		plan := ""
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			plan += detail + "\n"
		}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(plan, want) || strings.Contains(plan, "TEMP B-TREE FOR ORDER BY") {
			t.Errorf("%s\nhas the plan\n%swant %s", texted[st], plan, want)
		}
	}
}

// People read the file with the sqlite3 shell.
func TestView(t *testing.T) {
	ctx := context.Background()
	s := open(t, newFile(t), Options{})
	r := start(t, s, newClaim(newKey()))
	if err := s.End(ctx, r, done("body")); err != nil {
		t.Fatal(err)
	}
	var got string
	err := s.owned.QueryRow("SELECT key || ' ' || tenant || ' ' || state || ' ' || class || ' ' || on_unknown || ' ' || payload_bytes FROM escapement_keys").Scan(&got)
	if want := fmt.Sprintf("%v acme done succeeded hold 4", r.Key.ID); err != nil || got != want {
		t.Errorf("%q, %v: want %q", got, err, want)
	}
}

// A record that was written at a time that the clock has stepped back from is
// listed.
func TestListClockBack(t *testing.T) {
	clock := time.Now()
	s := open(t, newFile(t), Options{Now: func() time.Time { return clock }})
	start(t, s, newClaim(newKey()))
	clock = clock.Add(-time.Minute)
	p, err := s.List(context.Background(), idempotency.Filter{})
	if err != nil || len(p.Records) != 1 {
		t.Errorf("%d records, %v: want 1", len(p.Records), err)
	}
}
