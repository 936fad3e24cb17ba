package sqlitestore

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// A process that is killed at any moment loses no End that it was told of.
func TestKill(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	path := newFile(t)
	for round := range 10 {
		var ended [][2]int
		c := command(t, "pairs", path, round)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		// The kill comes after so many lines, whatever the writer does then. The
		// first says that the child is ready, the second that a pair was ended.
		for n := 2 + rnd.IntN(300); n > 0 && lines.Scan(); n-- {
			ended = appendPair(ended, lines.Text())
		}
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // what it had said before it died
			ended = appendPair(ended, lines.Text())
		}
		if err := c.Wait(); err == nil {
			t.Fatalf("round %d (seed %d): the child was not killed", round, seed)
		}
		if len(ended) == 0 {
			t.Fatalf("round %d (seed %d): the child ended no pair", round, seed)
		}
		checkPairs(t, path, round, ended)
		if t.Failed() {
			t.Fatalf("round %d, seed %d", round, seed)
		}
	}
}

func appendPair(to [][2]int, line string) [][2]int {
	var p [2]int
	if n, _ := fmt.Sscan(line, &p[0], &p[1]); n == 2 {
		return append(to, p)
	}
	return to // "ready"
}

func checkPairs(t *testing.T, path string, round int, ended [][2]int) {
	t.Helper()
	s := open(t, path, Options{})
	defer s.Close()
	next := make(map[int]int)
	for _, p := range ended {
		k := numbered(round, p[0], p[1])
		rec, err := s.Lookup(context.Background(), k)
		if err != nil || rec.State != idempotency.Ended || !bytes.Equal(rec.Result.Payload, payloadOf(k)) {
			t.Errorf("worker %d, pair %d was ended, and is now %v, %v", p[0], p[1], rec.State, err)
		}
		next[p[0]] = max(next[p[0]], p[1]+1)
	}
	// The pair that the kill cut: anything, but whole.
	for worker := range 8 {
		k := numbered(round, worker, next[worker])
		rec, err := s.Lookup(context.Background(), k)
		switch {
		case errors.Is(err, idempotency.ErrNotFound), err == nil && rec.State == idempotency.Held:
		case err != nil || !bytes.Equal(rec.Result.Payload, payloadOf(k)):
			t.Errorf("worker %d's last pair is now %v, %v", worker, rec.State, err)
		}
	}
	var verdict string
	if err := s.owned.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Errorf("integrity_check: %v, %v", verdict, err)
	}
}

// Of the claims of two processes exactly one starts.
func TestTwoProcesses(t *testing.T) {
	const n = 3000
	path := newFile(t)
	started := make([]int, n)
	type process struct {
		lines *bufio.Scanner
		in    io.WriteCloser
		wait  func() error
	}
	var ps []process
	for range 2 {
		c := command(t, "race", path, n)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		p := process{lines: bufio.NewScanner(out), in: in, wait: c.Wait}
		if !p.lines.Scan() || p.lines.Text() != "ready" {
			t.Fatalf("the child said %q", p.lines.Text())
		}
		ps = append(ps, p)
	}
	for _, p := range ps {
		if _, err := io.WriteString(p.in, "go\n"); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range ps {
		wins := 0
		for p.lines.Scan() {
			var k int
			if _, err := fmt.Sscan(p.lines.Text(), &k); err != nil {
				t.Fatal(err)
			}
			started[k]++
			wins++
		}
		if err := p.wait(); err != nil {
			t.Fatal(err)
		}
		t.Logf("process %d started %d", i, wins)
	}
	for k, times := range started {
		if times != 1 {
			t.Errorf("key %d was started %d times", k, times)
		}
	}
}

// Two processes that make a new file at once both get it.
func TestMigrateTwice(t *testing.T) {
	path := newFile(t)
	var outs [2]bytes.Buffer
	var waits []func() error
	for i := range outs {
		c := command(t, "open", path, 0)
		c.Stdout, c.Stderr = &outs[i], &outs[i]
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		waits = append(waits, c.Wait)
	}
	for i, wait := range waits {
		if err := wait(); err != nil || strings.TrimSpace(outs[i].String()) != "ready" {
			t.Errorf("%v: %s", err, &outs[i])
		}
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var n int
	if err := db.QueryRow("SELECT count(*) FROM escapement_schema").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d rows in escapement_schema, %v: want 1", n, err)
	}
}
