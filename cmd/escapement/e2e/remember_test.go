package e2e

import (
	"database/sql"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// An answer is kept for ttl; then it is known for remember that the key ran;
// then the key is free.
func TestRemember(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"sqlite", "postgres", "redis", "memory"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			up, o := startUpstream(t), options{dir: t.TempDir(), more: unhurried + generous}
			o.settings = strings.NewReplacer(
				"{key: required, on_unknown: retry}", "{key: required, ttl: 3s, remember: 3s}",
				"{key: optional}", "{key: optional, ttl: 1s, remember: 1h}",
			).Replace(patient("10s"))
			archived := func() int64 { return 1 } // this kind has no table to look into
			const query = "SELECT count(*) FROM escapement_keys WHERE state = 'archived' AND payload_bytes IS NULL AND route = 'POST /v1/notes'"
			switch kind {
			case "sqlite":
				o.db = filepath.Join(o.dir, "records.db")
				archived = func() (n int64) {
					c, err := sql.Open("sqlite", o.db)
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					if err := c.QueryRow(strings.Replace(query, "payload_bytes IS NULL", "true", 1)).Scan(&n); err != nil {
						t.Fatal(err)
					}
					return n
				}
			case "postgres":
				d := newDatabase(t)
				o.store = d.url
				archived = func() int64 { return d.number(t, query) }
			case "redis":
				o.store = startRedis(t).url
			case "memory":
				o.store = "memory:"
			}
			p := start(t, up, o)
			if block := p.stdout.String(); !strings.Contains(block, "kept 3s, remembered 3s") {
				t.Errorf("the block says\n%s", block)
			}
			note := request{path: "/v1/notes", key: "k", body: `{"note":"n"}`}
			note.send(p.url).want(t, http.StatusCreated, "")
			q := request{key: "k", body: `{"item":"tea"}`}
			first := q.send(p.url)
			first.want(t, http.StatusCreated, "")
			if again := q.send(p.url); !again.same(first) || !again.replayed() {
				t.Errorf("within ttl the repeat gets %v", again)
			}
			other := q
			other.body = `{"item":"coffee"}`
			var last, mismatched reply
			if !soon(func() bool { last = q.send(p.url); return !last.replayed() }) {
				t.Fatal("the answer stays")
			}
			last.want(t, http.StatusConflict, "idempotency-key-expired")
			if strings.Contains(last.body, `"retryable":true`) || strings.Contains(last.body, "order_id") {
				t.Errorf("after ttl the repeat gets %v", last)
			}
			mismatched = other.send(p.url)
			mismatched.want(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
			if c := mustCount(t, up, "orders"); c != (counts{1, 1}) {
				t.Errorf("after ttl the upstream says %+v, want one order of one POST", c)
			}
			if !soon(func() bool { last = q.send(p.url); return last.code() != "idempotency-key-expired" }) {
				t.Fatal("the key stays expired")
			}
			last.want(t, http.StatusCreated, "")
			if last.replayed() {
				t.Errorf("after remember the repeat is a replay: %v", last)
			}
			if c := mustCount(t, up, "orders"); c.Received != 2 {
				t.Errorf("after remember the upstream says %+v, want two POSTs", c)
			}
			if !soon(func() bool { return archived() == 1 }) { // the sweeper comes every 10 s
				t.Error("the sweeper does not shrink the record")
			}
			note.send(p.url).want(t, http.StatusConflict, "idempotency-key-expired")
		})
	}
}
