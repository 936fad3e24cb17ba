package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"escapement": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true})
}

// started is the program in a process of its own.
type started struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Reader
}

var addressLine = regexp.MustCompile(`^ *(?:listen|admin|demo upstream on) +(http://\S+)`)

// start starts the program and reads its output until the line that matches,
// of which it returns the group.
func start(t *testing.T, until *regexp.Regexp, env []string, args ...string) (*started, []string) {
	t.Helper()
	exe, err := exec.LookPath("escapement") // testscript has put it into the path
	if err != nil {
		t.Fatal(err)
	}
	s := &started{t: t, cmd: exec.Command(exe, args...)}
	s.cmd.Env = append(os.Environ(), env...)
	s.cmd.Dir = t.TempDir()
	s.cmd.Stderr = t.Output()
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	s.out = bufio.NewReader(out)
	var found []string
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			t.Fatalf("its output ends: %v", err)
		}
		if m := addressLine.FindStringSubmatch(line); m != nil {
			found = append(found, m[1])
		}
		if until.MatchString(line) {
			return s, found
		}
	}
}

// end waits for the process and returns its exit code; -1 after a signal.
func (s *started) end() int {
	s.t.Helper()
	_, _ = io.Copy(io.Discard, s.out)
	done := make(chan struct{})
	go func() { _ = s.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		s.t.Fatal("it does not end")
	}
	return s.cmd.ProcessState.ExitCode()
}

func get(t *testing.T, url string) int {
	t.Helper()
	res, err := http.Get(url) //nolint:gosec // our own
	if err != nil {
		t.Fatal(err)
	}
	return errOr(res.StatusCode, res.Body.Close())
}

func errOr(status int, err error) int {
	if err != nil {
		return 0
	}
	return status
}

func TestDemoStartsAndDrains(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		s, urls := start(t, regexp.MustCompile(`Ctrl-C`), nil, "serve", "--demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
		if len(urls) != 2 {
			t.Fatalf("got %v", urls)
		}
		if got := get(t, urls[0]+"/v1/orders"); got != 200 {
			t.Errorf("got %d", got)
		}
		if got := get(t, urls[1]+"/readyz"); got != 200 {
			t.Errorf("got %d", got)
		}
		if err := s.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if code := s.end(); code != 0 {
			t.Errorf("%v: exit code %d", sig, code)
		}
		if left, err := os.ReadDir(s.cmd.Dir); err != nil || len(left) > 0 {
			t.Errorf("it left %v behind, %v", left, err)
		}
	}
}

// The second signal does not wait for what is under way.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	s, urls := start(t, regexp.MustCompile(`Ctrl-C`), nil, "serve", "--demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	req, err := http.NewRequest("POST", urls[0]+"/v1/notes", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Demo-Delay", "60s")
	go func() {
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
		}
	}()
	eventually(t, "it arrives", func() bool {
		res, err := http.Get(urls[0] + "/v1/notes")
		if err != nil {
			return false
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		return err == nil && strings.Contains(string(b), `"received":1`)
	})
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it drains", func() bool {
		res, err := http.Get(urls[1] + "/readyz")
		return err == nil && errOr(res.StatusCode, res.Body.Close()) == 503
	})
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := s.end(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("it did not come to pass: %s", what)
		}
	}
}

func TestDemoUpstreamKeepsItsData(t *testing.T) {
	data := t.TempDir() + "/orders"
	for want := range 2 {
		s, urls := start(t, regexp.MustCompile(`demo upstream on`), nil, "demo-upstream", "--listen", "127.0.0.1:0", "--data", data)
		res, err := http.Get(urls[0] + "/v1/orders")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if got := string(b); err != nil || got != map[int]string{0: "{\"count\":0,\"received\":0}\n", 1: "{\"count\":1,\"received\":1}\n"}[want] {
			t.Errorf("got %s, %v", got, err)
		}
		res, err = http.Post(urls[0]+"/v1/orders", "text/plain", nil)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		_ = s.cmd.Process.Kill() // not in order
		s.end()
	}
}

func TestEnvironmentIsRead(t *testing.T) {
	s, urls := start(t, regexp.MustCompile(`limits`), []string{
		"ESCAPEMENT_UPSTREAM=http://127.0.0.1:1", "ESCAPEMENT_TENANT=const:a", "ESCAPEMENT_STORE=memory:",
		"ESCAPEMENT_LISTEN=127.0.0.1:0", "ESCAPEMENT_ADMIN=127.0.0.1:0",
	}, "serve")
	if got := get(t, urls[0]+"/"); got != 502 {
		t.Errorf("got %d", got)
	}
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := s.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
