package demo

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

type trial struct {
	t   *testing.T
	api *API
	srv *httptest.Server
}

func start(t *testing.T, data string) *trial {
	t.Helper()
	api, err := New(Options{Data: data})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(api)
	return &trial{t, api, s}
}

func (d *trial) stop() {
	d.srv.Close()
	if err := d.api.Close(); err != nil {
		d.t.Error(err)
	}
}

// do sends a request and returns "status body", or "broken".
func (d *trial) do(method, path string, fields ...string) string {
	d.t.Helper()
	req, err := http.NewRequest(method, d.srv.URL+path, strings.NewReader(`{}`))
	if err != nil {
		d.t.Fatal(err)
	}
	req.GetBody = nil
	for i := 0; i+1 < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	res, err := d.srv.Client().Do(req)
	if err != nil {
		return "broken"
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return "broken"
	}
	return fmt.Sprint(res.StatusCode, " ", strings.TrimSpace(string(b)))
}

func (d *trial) want(got, want string) {
	d.t.Helper()
	if got != want {
		d.t.Errorf("got %s, want %s", got, want)
	}
}

func TestOrdersKnowKeysAndPaymentsDoNot(t *testing.T) {
	d := start(t, "")
	defer d.stop()
	d.want(d.do("POST", "/v1/orders", "Idempotency-Key", `"a"`), `201 {"order_id":1}`)
	d.want(d.do("POST", "/v1/orders", "Idempotency-Key", "a"), `201 {"order_id":1}`)
	d.want(d.do("POST", "/v1/orders", "Idempotency-Key", "b"), `201 {"order_id":2}`)
	d.want(d.do("POST", "/v1/orders", "Idempotency-Key", "a", "X-Tenant-Id", "other"), `201 {"order_id":3}`)
	d.want(d.do("POST", "/v1/orders"), `201 {"order_id":4}`)
	d.want(d.do("GET", "/v1/orders"), `200 {"count":4,"received":5}`)

	d.want(d.do("GET", "/v1/payments/by-key/a"), `404 {"error":"no payment with this key"}`)
	d.want(d.do("POST", "/v1/payments", "Idempotency-Key", "a"), `201 {"payment_id":1}`)
	d.want(d.do("POST", "/v1/payments", "Idempotency-Key", "a"), `201 {"payment_id":2}`)
	d.want(d.do("GET", "/v1/payments"), `200 {"count":2,"received":2}`)
	d.want(d.do("GET", "/v1/payments/by-key/%22a%22"), `200 {"payment_id":2}`)
	d.want(d.do("GET", "/v1/payments/by-key/a", "X-Tenant-Id", "other"), `404 {"error":"no payment with this key"}`)

	d.want(d.do("POST", "/v1/notes"), `201 {"note_id":1}`)
	d.want(d.do("GET", "/export"), `200 {"notes":1,"orders":4,"payments":2}`)
	d.want(d.do("GET", "/search?q=x"), `200 {"found":[],"query":"x"}`)
	d.want(d.do("GET", "/v1/limited"), `200 {"ok":true}`)
}

func TestSteering(t *testing.T) {
	d := start(t, "")
	defer d.stop()
	d.want(d.do("POST", "/v1/orders", "X-Demo-Status", "503"), `503 {"error":"as X-Demo-Status says; nothing was done"}`)
	d.want(d.do("GET", "/v1/orders"), `200 {"count":0,"received":1}`)
	d.want(d.do("POST", "/v1/orders", "X-Demo-Status", "202"), `202 {"order_id":1}`)
	d.want(d.do("POST", "/v1/orders", "X-Demo-Fault", "crash-before-effect"), "broken")
	d.want(d.do("GET", "/v1/orders"), `200 {"count":1,"received":3}`)
	d.want(d.do("POST", "/v1/orders", "X-Demo-Fault", "crash-after-effect"), "broken")
	d.want(d.do("GET", "/v1/orders"), `200 {"count":2,"received":4}`)
	d.want(d.do("POST", "/v1/orders", "X-Demo-Fault", "slow-body", "X-Demo-Delay", "1ms"), `201 {"order_id":3}`)
	for _, f := range []string{"X-Demo-Status", "X-Demo-Delay", "X-Demo-Fault"} {
		if got := d.do("POST", "/v1/orders", f, "nonsense"); !strings.HasPrefix(got, "400 ") || !strings.Contains(got, f) {
			t.Errorf("%s: nonsense: got %s", f, got)
		}
	}
	d.want(d.do("GET", "/v1/orders", "X-Demo-Status", "418"), `418 {"count":3,"received":8}`)
}

func TestDataFileIsReopened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "orders")
	d := start(t, path)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { d.do("POST", "/v1/orders", "Idempotency-Key", fmt.Sprint(i%5)) })
	}
	wg.Wait()
	d.want(d.do("GET", "/v1/orders"), `200 {"count":5,"received":20}`)
	first := d.do("POST", "/v1/orders", "Idempotency-Key", "3")
	d.do("POST", "/v1/payments", "Idempotency-Key", "p")
	d.stop()

	// A line that the crash cut is as if it had not been.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"kind":"orders","n":6`); err != nil {
		t.Fatal(err)
	}
	f.Close()

	d = start(t, path)
	d.want(d.do("GET", "/v1/orders"), `200 {"count":5,"received":21}`)
	d.want(d.do("POST", "/v1/orders", "Idempotency-Key", "3"), first)
	d.want(d.do("GET", "/v1/payments/by-key/p"), `200 {"payment_id":1}`)
	d.want(d.do("POST", "/v1/orders", "Idempotency-Key", "new"), `201 {"order_id":6}`)
	d.stop()

	if err := os.WriteFile(path, []byte("not ours\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Data: path}); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a foreign file: got %v", err)
	}
}

func TestClosedAPIMakesNothing(t *testing.T) {
	d := start(t, "")
	defer d.srv.Close()
	if err := d.api.Close(); err != nil {
		t.Fatal(err)
	}
	if got := d.do("POST", "/v1/orders"); !strings.HasPrefix(got, "500 ") {
		t.Errorf("got %s", got)
	}
}

func TestTrials(t *testing.T) {
	d := start(t, "")
	defer d.stop()
	d.want(d.do("POST", "/_test/events?n=2&every=1ms"), "200 data: 1\n\ndata: 2")
	d.want(d.do("POST", "/_test/upload"), `200 {"bytes":2}`)
	if got := d.do("GET", "/_test/big?bytes=100000"); len(got) < 90_000 {
		t.Errorf("got %d bytes", len(got))
	}
	if got := d.do("GET", "/_test/big?bytes=x"); !strings.HasPrefix(got, "400 ") {
		t.Errorf("got %s", got)
	}
	if got := d.do("GET", "/_test/socket"); !strings.HasPrefix(got, "426 ") {
		t.Errorf("got %s", got)
	}
}
