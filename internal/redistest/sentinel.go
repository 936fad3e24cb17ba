package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// MasterName is how sentinels call their master.
const MasterName = "main"

// Sentinel is a master with replicas, and three sentinels that watch them.
type Sentinel struct {
	// Master and Replicas are as they were made: a failover changes roles.
	Master    *Server
	Replicas  []*Server
	Sentinels []*Server
}

// StartSentinel starts a master with so many replicas, at least 1, and three
// sentinels. It is ready when the replicas have the master's data and every
// sentinel knows the replicas and the other sentinels.
func StartSentinel(t testing.TB, replicas int) *Sentinel {
	t.Helper()
	return startSentinels(t, nil, replicas)
}

// StartTLSSentinel is StartSentinel for servers and sentinels that speak only
// TLS.
func StartTLSSentinel(t testing.TB, certs Certificates, replicas int) *Sentinel {
	t.Helper()
	return startSentinels(t, &certs, replicas)
}

func startSentinels(t testing.TB, certs *Certificates, replicas int) *Sentinel {
	t.Helper()
	start := func(args ...string) *Server {
		r, err := newServer(t.TempDir(), certs, false, args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Kill)
		return r
	}
	s := &Sentinel{Master: start()}
	_, port, _ := net.SplitHostPort(s.Master.Addr)
	for range replicas {
		r := start("--replicaof", "127.0.0.1 "+port)
		r.Expect(t, 0, "MASTER <-> REPLICA sync: Finished with success")
		s.Replicas = append(s.Replicas, r)
	}
	for range 3 {
		s.Sentinels = append(s.Sentinels, startSentinel(t, certs, port))
	}
	for _, w := range s.Sentinels {
		w.Expect(t, 0, "+slave ")
		w.Expect(t, 0, "+sentinel ")
	}
	return s
}

func startSentinel(t testing.TB, certs *Certificates, master string) *Server {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "sentinel.conf")
	listen := fmt.Sprintf("port %d\n", port)
	if certs != nil {
		listen = ""
		args := certs.args(strconv.Itoa(port), false)
		for i := 0; i < len(args); i += 2 {
			listen += strings.TrimPrefix(args[i], "--") + " " + args[i+1] + "\n"
		}
	}
	text := listen + fmt.Sprintf(`bind 127.0.0.1
dir %s
sentinel monitor %s 127.0.0.1 %s 2
sentinel down-after-milliseconds %[2]s 1000
sentinel failover-timeout %[2]s 5000
sentinel parallel-syncs %[2]s 2
`, dir, MasterName, master)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Server{
		Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Dir: dir, port: port, tls: certs,
		args: []string{file, "--sentinel"}, more: make(chan struct{}),
	}
	if err := s.start("+monitor master"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

// Addrs are the addresses of the sentinels.
func (s *Sentinel) Addrs() []string {
	var addrs []string
	for _, w := range s.Sentinels {
		addrs = append(addrs, w.Addr)
	}
	return addrs
}
