package sqlitestore

import (
	"database/sql"
	"strings"
	"testing"
	"time"
)

// A record that cannot be read does not keep the others from being swept.
func TestSweepPassesADamagedRecord(t *testing.T) {
	ctx, path, at := t.Context(), newFile(t), time.Now()
	s := open(t, path, Options{Now: func() time.Time { return at }})
	damaged := newKey()
	for i := range 300 {
		c := newClaim(newKey())
		if i == 0 {
			c.Key = damaged
		}
		if err := s.End(ctx, start(t, s, c), done("x")); err != nil {
			t.Fatal(err)
		}
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("UPDATE escapement_records SET class = 9 WHERE id = ?", damaged.ID[:]); err != nil {
		t.Fatal(err)
	}
	at = at.Add(2 * testTerms.Retention)
	n, err := s.Sweep(ctx, 1000)
	if n != 299 || err == nil || !strings.Contains(err.Error(), damaged.ID.String()) {
		t.Errorf("%d removed, %v", n, err)
	}
}
