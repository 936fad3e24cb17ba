package redistest

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/internal/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func TestRestartKeepsItsData(t *testing.T) {
	s := Start(t)
	s.Cli(t, "set", "a", "1")
	s.Restart(t)
	if got := s.Cli(t, "get", "a"); got != "1" {
		t.Fatalf("after a restart the value is %q", got)
	}
}

func TestClusterServesAllSlots(t *testing.T) {
	c := StartCluster(t, 3, 1)
	for _, s := range append(c.Masters, c.Replicas...) {
		if got := s.Cli(t, "cluster", "info"); !strings.Contains(got, "cluster_slots_ok:16384") {
			t.Fatalf("the node at %s says:\n%s", s.Addr, got)
		}
	}
}

func TestSentinelsFailOver(t *testing.T) {
	s := StartSentinel(t, 1)
	from := s.Replicas[0].Log()
	s.Master.Kill()
	s.Replicas[0].Expect(t, from, "MASTER MODE enabled")
}

func TestTLS(t *testing.T) {
	s := StartTLS(t, NewCertificates(t), true)
	if got := s.Cli(t, "ping"); got != "PONG" {
		t.Fatalf("PING over TLS gets %q", got)
	}
}

// A proxy that swallows and delays lets through in the end; one that refuses
// does not.
func TestProxy(t *testing.T) {
	s := Start(t)
	p := StartProxy(t, s)
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", p.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	c := dial()
	ask := func() <-chan string {
		reply := make(chan string, 1)
		if _, err := c.Write([]byte("PING\r\n")); err != nil {
			t.Fatal(err)
		}
		go func() {
			b := make([]byte, 16)
			n, _ := c.Read(b)
			reply <- string(b[:n])
		}()
		return reply
	}
	p.Swallow(true)
	reply := ask()
	select {
	case got := <-reply:
		t.Fatalf("a proxy that swallows answers %q", got)
	case <-time.After(50 * time.Millisecond):
	}
	p.Swallow(false)
	if got := <-reply; got != "+PONG\r\n" {
		t.Fatalf("after that the answer is %q", got)
	}
	p.Delay(50 * time.Millisecond)
	begin := time.Now()
	if got := <-ask(); got != "+PONG\r\n" || time.Since(begin) < 50*time.Millisecond {
		t.Fatalf("a delayed proxy answers %q after %v", got, time.Since(begin))
	}
	p.Delay(0)
	p.Refuse(t, true)
	if got := make([]byte, 1); true {
		if _, err := c.Read(got); err == nil {
			t.Fatal("a proxy that refuses keeps its connections")
		}
	}
	if _, err := net.Dial("tcp", p.Addr); err == nil {
		t.Fatal("a proxy that refuses can be connected to")
	}
	p.Refuse(t, false)
	c = dial()
	if got := <-ask(); got != "+PONG\r\n" {
		t.Fatalf("when it no longer refuses, the answer is %q", got)
	}
}
