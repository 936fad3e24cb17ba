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

	"github.com/stripe/stripe-mock/embedded"
	"github.com/stripe/stripe-mock/server"
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

// mock is stripe-mock behind the part of Stripe that it lacks: equal keys have
// equal answers, and one effect.
type mock struct {
	*httptest.Server
	mu      sync.Mutex
	answers map[string]*httptest.ResponseRecorder
	calls   int
	refuse  int               // a status
	dies    func() (cut bool) // called after the effect
}

func newMock(t *testing.T) *mock {
	t.Helper()
	spec, err := server.LoadSpec(embedded.OpenAPISpec, "")
	if err != nil {
		t.Fatal(err)
	}
	fixtures, err := server.LoadFixtures(embedded.OpenAPIFixtures, "")
	if err != nil {
		t.Fatal(err)
	}
	stub, err := server.NewStubServer(fixtures, spec, false, false)
	if err != nil {
		t.Fatal(err)
	}
	m := &mock{answers: map[string]*httptest.ResponseRecorder{}}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.calls++
		key := r.Header.Get("Idempotency-Key")
		if key == "" {
			t.Error("a call without a key")
		}
		a := m.answers[key]
		if a == nil {
			a = httptest.NewRecorder()
			if m.refuse != 0 {
				a.WriteHeader(m.refuse)
				io.WriteString(a, `{"error": {"type": "card_error", "code": "card_declined"}}`)
			} else {
				stub.HandleRequest(a, r)
			}
			m.answers[key] = a
		}
		if m.dies != nil && m.dies() {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(a.Code)
		w.Write(a.Body.Bytes())
	}))
	t.Cleanup(m.Close)
	return m
}

func (m *mock) want(t *testing.T, effects, calls int) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.answers) != effects || m.calls != calls {
		t.Errorf("%d payments in %d calls, want %d in %d", len(m.answers), m.calls, effects, calls)
	}
}

// process is the service, as a process.
type process struct {
	cmd *exec.Cmd
	url string
}

func start(t *testing.T, m *mock, db string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(exe, "-listen", "127.0.0.1:0", "-db", db, "-stripe", m.URL, "-lease", "1s")}
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

func (p *process) pay(key string) (status int, body string, err error) {
	req, err := http.NewRequest("POST", p.url+"/v1/payments", strings.NewReader(`{"amount": 1999, "currency": "eur"}`))
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

// settle repeats the payment, as a client does, until it has its answer.
func (p *process) settle(t *testing.T, key string) (status int, body string) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 300 {
		status, body, err := p.pay(key)
		if err != nil {
			t.Fatal(err)
		}
		if status != http.StatusConflict && status < 500 {
			return status, body
		}
		<-tick.C
	}
	t.Fatal("the payment never came to an end")
	return 0, ""
}

// The process is killed after Stripe has made the payment and before anything of
// it is recorded: the repeat, at another process, is answered with that payment.
func TestKilledBetweenCallAndRecord(t *testing.T) {
	m := newMock(t)
	db := filepath.Join(t.TempDir(), "payments.db")
	first := start(t, m, db)
	m.dies = func() bool { first.kill(); return true }
	if status, body, err := first.pay("order-1"); err == nil {
		t.Fatalf("a process that was killed has answered: %d %s", status, body)
	}
	m.want(t, 1, 1)
	m.mu.Lock()
	m.dies = nil
	m.mu.Unlock()

	second := start(t, m, db)
	status, body := second.settle(t, "order-1")
	var a answer
	if err := json.Unmarshal([]byte(body), &a); err != nil || status != http.StatusCreated || !strings.HasPrefix(a.Payment, "pi_") {
		t.Errorf("%d %s, %v", status, body, err)
	}
	m.want(t, 1, 2) // the second call had the same key
	if again, same := second.settle(t, "order-1"); again != status || same != body {
		t.Errorf("the repeat: %d %s, want %d %s", again, same, status, body)
	}
	m.want(t, 1, 2)
	if status, body := second.settle(t, "order-2"); status != http.StatusCreated {
		t.Errorf("another order: %d %s", status, body)
	}
	m.want(t, 2, 3)
}

// Stripe's answer is lost on the way: nothing in between repeats the call, and
// the client's repeat comes to the payment that there is.
func TestAnswerLost(t *testing.T) {
	m := newMock(t)
	lost := false
	m.dies = func() bool { was := lost; lost = true; return !was }
	p := start(t, m, filepath.Join(t.TempDir(), "payments.db"))
	if status, body, err := p.pay("order-1"); err != nil || status != http.StatusBadGateway || !strings.Contains(body, `"executed":"unknown"`) {
		t.Fatalf("%d %s, %v", status, body, err)
	}
	m.want(t, 1, 1)
	if status, body := p.settle(t, "order-1"); status != http.StatusCreated {
		t.Errorf("%d %s", status, body)
	}
	m.want(t, 1, 2)
}

// A declined card is the operation's answer, and is not tried again.
func TestDeclined(t *testing.T) {
	m := newMock(t)
	m.refuse = http.StatusPaymentRequired
	p := start(t, m, filepath.Join(t.TempDir(), "payments.db"))
	for range 2 {
		if status, body, err := p.pay("order-1"); err != nil || status != http.StatusPaymentRequired || !strings.Contains(body, "card_error") {
			t.Fatalf("%d %s, %v", status, body, err)
		}
	}
	m.want(t, 1, 1)
}
