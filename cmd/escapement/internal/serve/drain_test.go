package serve

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
)

func TestDrainLetsRequestsFinish(t *testing.T) {
	r := newRig(t, setup{})
	answers := make(chan answer, 2)
	go func() { answers <- r.do("POST", "/v1/orders", "", key, "a", "X-Demo-Delay", "400ms") }()
	go func() { answers <- r.do("POST", "/v1/notes", "", "X-Demo-Delay", "400ms") }()
	r.received("/v1/orders", 1)
	r.received("/v1/notes", 1)
	if err := r.stopServer(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if a := <-answers; a.status != 201 {
			t.Errorf("got %v", a)
		}
	}
	if _, err := net.Dial("tcp", r.server.Addr().String()); err == nil {
		t.Error("it still listens")
	}
}

func TestDrainSaysNotReady(t *testing.T) {
	r := newRig(t, setup{})
	ready := func() (int, error) {
		res, err := r.client.Get(r.admin + "/readyz")
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	if s, err := ready(); s != 200 {
		t.Errorf("got %d, %v", s, err)
	}
	done := make(chan answer)
	go func() { done <- r.do("POST", "/v1/orders", "", key, "a", "X-Demo-Delay", "700ms") }()
	r.received("/v1/orders", 1)
	stopped := make(chan error)
	go func() { stopped <- r.stopServer() }()
	r.eventually(func() bool { s, _ := ready(); return s == 503 })
	if a := <-done; a.status != 201 {
		t.Errorf("got %v", a)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// What cannot finish in time becomes unknown; its client is told.
func TestDrainEndsWhatCannotFinish(t *testing.T) {
	r := newRig(t, setup{change: func(c *config.Config) { c.Server.Drain = 100 * time.Millisecond }})
	done := make(chan answer)
	go func() { done <- r.do("POST", "/v1/payments", "", key, "a", "X-Demo-Delay", "60s") }()
	r.received("/v1/payments", 1)
	start := time.Now()
	if err := r.stopServer(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("the drain took %v", took)
	}
	if a := <-done; a.status == 201 {
		t.Errorf("got %v", a)
	}
	s := newRig(t, setup{file: r.file})
	if a := s.do("POST", "/v1/payments", "", key, "a"); a.status != 409 || a.code() != "idempotency-outcome-unknown" {
		t.Errorf("after the restart: got %v", a)
	}
	s.wantCounts("/v1/payments", 0, 0)
}

func TestDrainCutsAWebSocket(t *testing.T) {
	r := newRig(t, setup{change: memory})
	c := r.dial()
	fmt.Fprint(c, "GET /_test/socket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: a\r\nSec-WebSocket-Version: 13\r\n\r\n")
	b := make([]byte, 12)
	if _, err := c.Read(b); err != nil || string(b) != "HTTP/1.1 101" {
		t.Fatalf("got %q, %v", b, err)
	}
	if err := r.stopServer(); err != nil {
		t.Error(err)
	}
	rest := make([]byte, 1000)
	for {
		if _, err := c.Read(rest); err != nil {
			var slow net.Error
			if errors.As(err, &slow) && slow.Timeout() {
				t.Error("the connection is still there")
			}
			return
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	base := func() *config.Config {
		c := config.Default()
		err := c.Override(config.Overrides{Upstream: "http://127.0.0.1:1", Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Tenant: "const:a", Store: "memory:"})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for name, tt := range map[string]struct {
		change  func(*config.Config)
		mending bool // by a change of the configuration
	}{
		"a certificate that is not there": {func(c *config.Config) { c.TLS = config.TLS{Cert: "/no/c", Key: "/no/k"} }, true},
		"an upstream's that is not there": {func(c *config.Config) { c.UpstreamTLS.CA = "/no/ca" }, true},
		"a port in use":                   {func(c *config.Config) { c.Listen = busy.Addr().String() }, false},
		"an admin port in use":            {func(c *config.Config) { c.Admin.Listen = busy.Addr().String() }, false},
		"a store that cannot be opened":   {func(c *config.Config) { c.Store = config.StoreURL{Kind: "sqlite", Path: "/no/such/dir/x.db"} }, false},
		"limits by route that overlap": {func(c *config.Config) {
			l, err := config.Parse("f", []byte("limits: [{name: a, by: [route], routes: ['/{a}/x', '/y/{b}'], rate: 1/s}]"), nil)
			if err != nil {
				t.Fatal(err)
			}
			c.Limits = l.Limits
		}, true},
	} {
		c := base()
		tt.change(c)
		s, err := Open(t.Context(), c, "test", nil)
		var wrong *ConfigError
		if err == nil || s != nil || errors.As(err, &wrong) != tt.mending {
			t.Errorf("%s: got %v, %v", name, s, err)
		}
	}
}
