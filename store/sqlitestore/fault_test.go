package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// lock takes the write lock of the file, and returns how to give it back.
func lock(t testing.TB, path string) (unlock func()) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ExecContext(context.Background(), "BEGIN EXCLUSIVE"); err != nil {
		t.Fatal(err)
	}
	unlocked := false
	unlock = func() {
		if unlocked {
			return
		}
		unlocked = true
		if _, err := c.ExecContext(context.Background(), "ROLLBACK"); err != nil {
			t.Error(err)
		}
		c.Close()
		db.Close()
	}
	t.Cleanup(unlock)
	return unlock
}

func TestLockedFile(t *testing.T) {
	ctx := context.Background()
	path := newFile(t)
	s := open(t, path, Options{BusyTimeout: 20 * time.Millisecond})
	held := newClaim(newKey())
	r := start(t, s, held)
	old := newClaim(newKey())
	if err := s.End(ctx, start(t, s, old), done("old")); err != nil {
		t.Fatal(err)
	}
	before, err := s.Lookup(ctx, held.Key)
	if err != nil {
		t.Fatal(err)
	}
	unlock := lock(t, path)

	fresh := newClaim(newKey())
	_, err = s.Reserve(ctx, fresh)
	wantError(t, "Reserve", err, path, "holds the file's lock", "fuser")
	err = s.End(ctx, r, done("new"))
	wantError(t, "End", err, path, "holds the file's lock")
	old.Owner = idempotency.NewOwner()
	if a, err := s.Reserve(ctx, old); err != nil || a.Outcome != idempotency.Replayed {
		t.Errorf("a replay of a locked file: %v, %v", a.Outcome, err)
	}
	if rec, err := s.Lookup(ctx, held.Key); err != nil || rec.Revision != before.Revision || rec.State != idempotency.Held {
		t.Errorf("the failed End left %v, %v", rec.State, err)
	}
	unlock()
	if err := s.End(ctx, r, done("new")); err != nil {
		t.Errorf("End after the lock: %v", err)
	}
	if _, err := s.Lookup(ctx, fresh.Key); !errors.Is(err, idempotency.ErrNotFound) {
		t.Errorf("the failed Reserve left something: %v", err)
	}
}

// An operation whose context ends while the file is locked fails at once, and
// leaves no trace.
func TestLockedFileContext(t *testing.T) {
	path := newFile(t)
	s := open(t, path, Options{BusyTimeout: time.Hour})
	unlock := lock(t, path)
	c := newClaim(newKey())
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error)
	go func() {
		_, err := s.Reserve(ctx, c)
		failed <- err
	}()
	waitQueued(t, s, 1)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("Reserve: %v: want context.Canceled", err)
	}
	unlock()
	start(t, s, newClaim(newKey())) // goes through the same queue
	if _, err := s.Lookup(context.Background(), c.Key); !errors.Is(err, idempotency.ErrNotFound) {
		t.Errorf("a claim that was cancelled before it was picked up took effect: %v (F6)", err)
	}
}

func TestCloseWhileLocked(t *testing.T) {
	path := newFile(t)
	s := open(t, path, Options{BusyTimeout: time.Hour})
	unlock := lock(t, path)
	failed := make(chan error)
	go func() {
		_, err := s.Reserve(context.Background(), newClaim(newKey()))
		failed <- err
	}()
	waitQueued(t, s, 1)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("Reserve: %v: want ErrClosed", err)
	}
	unlock()
}

func TestClosed(t *testing.T) {
	ctx := context.Background()
	s := open(t, newFile(t), Options{})
	c := newClaim(newKey())
	r := start(t, s, c)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close twice: %v", err)
	}
	_, reserveErr := s.Reserve(ctx, c)
	_, extendErr := s.Extend(ctx, r, time.Second)
	_, lookupErr := s.Lookup(ctx, c.Key)
	_, sweepErr := s.Sweep(ctx, 1)
	_, listErr := s.List(ctx, idempotency.Filter{})
	_, _, getErr := s.Get(ctx, "x")
	_, auditErr := s.Audit(ctx, 0, 1)
	for what, err := range map[string]error{
		"Reserve": reserveErr, "Extend": extendErr, "Lookup": lookupErr, "Sweep": sweepErr, "List": listErr,
		"Get": getErr, "Audit": auditErr,
		"End": s.End(ctx, r, idempotency.NotRun()), "Void": s.Void(ctx, c.Key, c.Owner),
		"SaveStep": s.SaveStep(ctx, r, idempotency.Step{Name: "x"}),
		"Settle":   s.Settle(ctx, c.Key, 1, idempotency.Result{Class: idempotency.Succeeded}),
		"Forget":   s.Forget(ctx, c.Key, 1), "PutIf": s.PutIf(ctx, "x", nil, 0),
		"Append": s.Append(ctx, idempotency.AuditEntry{}),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

// A full file refuses writes, keeps what it has, and works again when there is
// room.
func TestFull(t *testing.T) {
	ctx := context.Background()
	clock := time.Now()
	s := open(t, newFile(t), Options{MaxPages: 128, Now: func() time.Time { return clock }})
	large := done(strings.Repeat("x", 32<<10))
	var r idempotency.Reservation
	var err error
	n := 0
	for ; err == nil && n < 1000; n++ {
		r = start(t, s, newClaim(newKey()))
		err = s.End(ctx, r, large)
	}
	if !errors.Is(err, idempotency.ErrFull) {
		t.Fatalf("after %d records: %v: want ErrFull", n, err)
	}
	wantError(t, "End", err, "no room", "MaxPages")
	if rec, err := s.Lookup(ctx, r.Key); err != nil || rec.State != idempotency.Held {
		t.Fatalf("the failed End left %v, %v", rec.State, err)
	}
	// One that does not fit fails alone, though it shares a batch (F6).
	if err := s.End(ctx, start(t, s, newClaim(newKey())), done("small")); err != nil {
		t.Errorf("a small result: %v", err)
	}
	clock = clock.Add(testTerms.Retention)
	removed, err := s.Sweep(ctx, 1000)
	if err != nil || removed != n { // all but the held one, and the small one
		t.Errorf("swept %d, %v: want %d", removed, err, n)
	}
	if err := s.End(ctx, r, large); err != nil {
		t.Errorf("End when there is room: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	database := func(name string, sqls ...string) string {
		path := filepath.Join(dir, name)
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		for _, q := range sqls {
			if _, err := db.Exec(q); err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	newer := filepath.Join(dir, "newer.db")
	if err := open(t, newer, Options{}).Close(); err != nil {
		t.Fatal(err)
	}
	database("newer.db", "INSERT INTO escapement_schema VALUES (1000, 0)")
	damagedFile := filepath.Join(dir, "damaged.db")
	s := open(t, damagedFile, Options{})
	for range 200 {
		start(t, s, newClaim(newKey()))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(damagedFile)
	if err != nil {
		t.Fatal(err)
	}
	clear(whole[100:4096]) // the schema's page
	damagedFile = write("damaged.db", string(whole))

	for _, c := range []struct {
		path string
		o    Options
		want []string
	}{
		{"", Options{}, []string{"the path is empty"}},
		{filepath.Join(dir, "none", "keys.db"), Options{}, []string{"does not exist", "mkdir"}},
		{filepath.Join(write("plain", ""), "keys.db"), Options{}, []string{"not a directory"}},
		{dir, Options{}, []string{"not a regular file"}},
		{write("text.db", strings.Repeat("this is no database\n", 100)), Options{}, []string{"not a SQLite database"}},
		{damagedFile, Options{}, []string{"damaged", "backup"}},
		{newer, Options{}, []string{"schema 1000", "newer version"}},
		{database("other.db", "CREATE TABLE orders (id)"), Options{}, []string{"another program", `"orders"`, "New"}},
		{
			filepath.Join(dir, "x.db"),
			Options{BusyTimeout: -1, MaxBatch: -1, MaxPages: -1},
			[]string{"BusyTimeout", "MaxBatch", "MaxPages"},
		},
		{filepath.Join(dir, "tiny.db"), Options{MaxPages: 2}, []string{"no room", "MaxPages"}},
	} {
		s, err := Open(ctx, c.path, c.o)
		if err == nil {
			s.Close()
		}
		wantError(t, c.path, err, c.want...)
	}
	if _, err := os.Stat(filepath.Join(dir, "x.db")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("faulty options made a file: %v", err)
	}
}

// A directory that nobody may write to, not even root.
func TestOpenReadOnlyDirectory(t *testing.T) {
	dir := "/sys"
	if os.Geteuid() != 0 {
		dir = t.TempDir()
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(context.Background(), filepath.Join(dir, "keys.db"), Options{})
	if err == nil {
		s.Close()
	}
	wantError(t, "Open", err, "cannot be made", "write its directory", dir)
}

func TestReadOnly(t *testing.T) {
	path := newFile(t)
	open(t, path, Options{})
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	s := &Store{file: path, o: Options{}.withDefaults()}
	wantError(t, "Void", s.In(tx).Void(context.Background(), newKey(), idempotency.NewOwner()), path, "cannot be written")
}

// Answers to clients are nobody else's business.
func TestFileMode(t *testing.T) {
	path := newFile(t)
	open(t, path, Options{})
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v: want the mode 0600", name, info.Mode(), err)
		}
	}
}

func TestOddPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?c=d%20#e&_txlock=x.db")
	start(t, open(t, path, Options{}), newClaim(newKey()))
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestNewRefuses(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name, query string
		conns       int
		o           Options
		want        []string
	}{
		{name: "deferred", query: "_pragma=journal_mode(wal)", want: []string{"_txlock=immediate"}},
		{name: "exclusive is fine", query: "_pragma=journal_mode(wal)&_txlock=exclusive"},
		{name: "journal", query: "_txlock=immediate", want: []string{`"delete"`, "_pragma=journal_mode(wal)"}},
		{name: "one connection", query: "_pragma=journal_mode(wal)&_txlock=immediate", conns: 1, want: []string{"SetMaxOpenConns(2)"}},
		{name: "two connections", query: "_pragma=journal_mode(wal)&_txlock=immediate", conns: 2},
		{name: "pages", query: "_pragma=journal_mode(wal)&_txlock=immediate", o: Options{MaxPages: 1}, want: []string{"max_page_count"}},
		{name: "options", query: "_pragma=journal_mode(wal)&_txlock=immediate", o: Options{MaxBatch: -1}, want: []string{"MaxBatch"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			db, err := sql.Open("sqlite", "file:"+newFile(t)+"?"+c.query)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			db.SetMaxOpenConns(c.conns)
			s, err := New(ctx, db, c.o)
			if err == nil {
				start(t, s, newClaim(newKey()))
				s.Close()
			}
			if len(c.want) == 0 && err != nil {
				t.Error(err)
			}
			if len(c.want) > 0 {
				wantError(t, "New", err, c.want...)
			}
			if n := db.Stats().InUse; n != 0 {
				t.Errorf("%d connections are still taken", n)
			}
			if _, err := db.Exec("CREATE TABLE later (x)"); err != nil {
				t.Errorf("the database is not usable afterwards: %v", err)
			}
		})
	}
	if _, err := New(ctx, nil, Options{}); err == nil {
		t.Error("New took no database")
	}
	memory, err := sql.Open("sqlite", "file::memory:?_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	_, err = New(ctx, memory, Options{})
	wantError(t, "New", err, `"memory"`, "WAL needs a file on a local disk")
}

// A caller may close the database before the store.
func TestNewDatabaseClosedFirst(t *testing.T) {
	ctx := context.Background()
	db := ownDatabase(t, newFile(t))
	s, err := New(ctx, db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = s.Reserve(ctx, newClaim(newKey()))
	wantError(t, "Reserve", err, "database is closed")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func wantError(t testing.TB, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error: want one about %q", what, parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%s: the error does not say %q: %v", what, p, err)
		}
	}
}

// waitQueued waits until n operations wait for the writer.
func waitQueued(t testing.TB, s *Store, n int) {
	t.Helper()
	eventually(t, func() bool {
		s.w.mu.Lock()
		defer s.w.mu.Unlock()
		return len(s.w.queue) == n
	})
}

func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("waited for 30s in vain")
		}
	}
}
