package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMain makes the test's own program the service, where a test starts it as a
// process of its own.
func TestMain(m *testing.M) {
	if os.Getenv("EXAMPLE_SERVES") != "" {
		if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// bank makes a transfer for every POST.
type bank struct {
	*httptest.Server
	mu        sync.Mutex
	transfers map[string][]transfer // by reference
	calls     int
	asked     int
	away      int // so many questions are answered with 503
	before    func()
	after     func()
}

func newBank(t *testing.T) *bank {
	t.Helper()
	b := &bank{transfers: map[string][]transfer{}}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if r.Method == http.MethodGet {
			b.asked++
			if b.away > 0 {
				b.away--
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			list := b.transfers[r.URL.Query().Get("reference")]
			if list == nil {
				list = []transfer{}
			}
			json.NewEncoder(w).Encode(list)
			return
		}
		b.calls++
		if b.before != nil {
			b.before()
			panic(http.ErrAbortHandler)
		}
		var o order
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil || len(o.Reference) != 36 {
			t.Errorf("%+v, %v", o, err)
		}
		made := transfer{ID: fmt.Sprintf("t%d", b.calls), Amount: o.Amount, To: o.To}
		b.transfers[o.Reference] = append(b.transfers[o.Reference], made)
		if b.after != nil {
			b.after()
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(made)
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *bank) want(t *testing.T, transfers, calls, asked int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, list := range b.transfers {
		n += len(list)
	}
	if n != transfers || b.calls != calls || b.asked != asked {
		t.Errorf("%d transfers in %d calls, asked %d times; want %d in %d, %d", n, b.calls, b.asked, transfers, calls, asked)
	}
}

// process is the service, as a process.
type process struct {
	cmd *exec.Cmd
	url string
}

func start(t *testing.T, b *bank, db string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(exe, "-listen", "127.0.0.1:0", "-db", db, "-bank", b.URL, "-lease", "1s", "-timeout", "2s")}
	p.cmd.Env = append(os.Environ(), "EXAMPLE_SERVES=1")
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	p.url = "http://" + strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	return p
}

// kill ends the process as a crash does.
func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

func (p *process) send(key string) (status int, body string, err error) {
	req, err := http.NewRequest("POST", p.url+"/v1/transfers", strings.NewReader(`{"amount": 1999, "to": "DE02"}`))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header["idempotency-key"] = []string{key} // so that net/http does not repeat by itself
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// settle repeats the transfer, as a client does, until it has its answer.
func (p *process) settle(t *testing.T, key string) (status int, body string) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 300 {
		status, body, err := p.send(key)
		if err != nil {
			t.Fatal(err)
		}
		if status != http.StatusConflict && status < 500 {
			return status, body
		}
		<-tick.C
	}
	t.Fatal("the transfer never came to an end")
	return 0, ""
}

// The process is killed before or after the bank has made the transfer: another
// one asks the bank, also if that does not answer at once, and there is one
// transfer in the end.
func TestKilledAroundTheCall(t *testing.T) {
	for _, made := range []bool{false, true} {
		t.Run(fmt.Sprintf("made %v", made), func(t *testing.T) {
			b := newBank(t)
			db := filepath.Join(t.TempDir(), "transfers.db")
			first := start(t, b, db)
			calls, transfers := 2, 0
			if made {
				b.after = first.kill
				calls, transfers = 1, 1
			} else {
				b.before = first.kill
			}
			if status, body, err := first.send("rent-may"); err == nil {
				t.Fatalf("a process that was killed has answered: %d %s", status, body)
			}
			b.want(t, transfers, 1, 0)
			b.mu.Lock()
			b.before, b.after, b.away = nil, nil, 1
			b.mu.Unlock()

			second := start(t, b, db)
			status, body := second.settle(t, "rent-may")
			if want := fmt.Sprintf(`{"id":"t%d","amount":1999,"to":"DE02"}`, calls); status != http.StatusCreated || body != want {
				t.Errorf("%d %s, want %s", status, body, want)
			}
			b.want(t, 1, calls, 2)
			if again, same := second.settle(t, "rent-may"); again != status || same != body {
				t.Errorf("the repeat: %d %s, want %d %s", again, same, status, body)
			}
			b.want(t, 1, calls, 2)
		})
	}
}
