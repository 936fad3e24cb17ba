//go:build unix

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

const pausedConfig = `
identity: {tenant: const:a}
idempotency:
  lease: 300ms
  timeout: 20s
  routes:
    POST /v1/orders: {on_unknown: retry, quiet: 0s}
    POST /v1/notes: {on_unknown: hold}
`

type said struct {
	status   int
	body     string
	replayed bool
}

func post(t *testing.T, url, key, delay string) said {
	t.Helper()
	req, err := http.NewRequest("POST", url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header["idempotency-key"] = []string{key} // so that this client never repeats by itself
	req.Header.Set("X-Demo-Delay", delay)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return said{}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return said{res.StatusCode, string(b), res.Header.Get("Idempotent-Replayed") == "true"}
}

// A process that is paused for longer than its lease, with a request at the
// upstream, comes back to a key that is not its own any more, or that others
// were told nobody knows about. Two processes share the file.
func TestPausedHolder(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(file, []byte(pausedConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	_, up := start(t, regexp.MustCompile(`demo upstream on`), nil, "demo-upstream", "--listen", "127.0.0.1:0")
	serve := func() (*started, string) {
		s, urls := start(t, regexp.MustCompile(`limits`), nil, "serve", "-c", file, "--upstream", up[0],
			"--store", "sqlite:"+filepath.Join(dir, "records.db"), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
		return s, strings.Replace(urls[0], "[::]", "127.0.0.1", 1)
	}
	a, urlA := serve()
	_, urlB := serve()
	counts := func(path string) (v struct{ Count, Received int }) {
		res, err := http.Get(up[0] + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if err := json.NewDecoder(res.Body).Decode(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
			if time.Now().After(end) {
				t.Fatal("it did not come to pass: " + what)
			}
		}
	}
	for _, c := range []struct {
		path     string
		other    int // what the other process says meanwhile
		received int
	}{
		{"/v1/orders", 201, 2},
		{"/v1/notes", 409, 1},
	} {
		first := make(chan said, 1)
		go func() { first <- post(t, urlA+c.path, "k", "800ms") }()
		until("the request arrives", func() bool { return counts(c.path).Received == 1 })
		if err := a.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		var other said
		until("the lease ends", func() bool {
			other = post(t, urlB+c.path, "k", "0s")
			return !strings.Contains(other.body, "in-progress")
		})
		if other.status != c.other || other.replayed {
			t.Errorf("%s: the other process says %+v", c.path, other)
		}
		// The first attempt's answer arrives while its process is asleep.
		until("the upstream has answered", func() bool { return counts(c.path).Count == 1 })
		if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		one := <-first
		if one.status != 201 || one.replayed != (c.other == 201) || c.other == 201 && one.body != other.body {
			t.Errorf("%s: the client of the paused process got %+v", c.path, one)
		}
		for _, url := range []string{urlA, urlB} {
			if again := post(t, url+c.path, "k", "0s"); again.status != 201 || !again.replayed || again.body != one.body {
				t.Errorf("%s: then %+v", c.path, again)
			}
		}
		if n := counts(c.path); n.Count != 1 || n.Received != c.received {
			t.Errorf("%s: %+v", c.path, n)
		}
	}
}
