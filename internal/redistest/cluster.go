package redistest

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Cluster is a Redis Cluster.
type Cluster struct {
	// Masters and Replicas are as they were made: a failover changes roles.
	Masters, Replicas []*Server
}

// StartCluster starts a cluster of the given number of masters, at least 3,
// with so many replicas of each. It is ready when every node says that the
// cluster is and knows all others, and every replica has its master's data.
func StartCluster(t testing.TB, masters, replicasOfEach int) *Cluster {
	t.Helper()
	return startCluster(t, nil, masters, replicasOfEach)
}

// StartTLSCluster is StartCluster for servers that speak only TLS.
func StartTLSCluster(t testing.TB, certs Certificates, masters, replicasOfEach int) *Cluster {
	t.Helper()
	return startCluster(t, &certs, masters, replicasOfEach)
}

func startCluster(t testing.TB, certs *Certificates, masters, replicasOfEach int) *Cluster {
	t.Helper()
	top := t.TempDir()
	c := &Cluster{}
	var all []*Server
	args := []string{"--cluster", "create"}
	if certs != nil {
		args = append(certs.cli(), args...)
	}
	for i := range masters * (1 + replicasOfEach) {
		bus, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		s, err := newServer(subdir(t, top, strconv.Itoa(i)), certs, false, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus),
			"--cluster-node-timeout", "1500", "--repl-ping-replica-period", "1", "--cluster-replica-validity-factor", "0", "--appendfsync", "everysec")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Kill)
		if all = append(all, s); i < masters {
			c.Masters = append(c.Masters, s)
		} else {
			c.Replicas = append(c.Replicas, s)
		}
		args = append(args, s.Addr)
	}
	args = append(args, "--cluster-replicas", strconv.Itoa(replicasOfEach), "--cluster-yes")
	if out, err := exec.Command("redis-cli", args...).CombinedOutput(); err != nil {
		t.Fatalf("redistest: redis-cli %v: %v: %s", args, err, out)
	}
	for _, s := range all {
		s.Expect(t, 0, "Cluster state changed: ok")
	}
	for _, s := range c.Replicas {
		s.Expect(t, 0, "MASTER <-> REPLICA sync: Finished with success")
	}
	// Who replicates whom is told from node to node, and no log says when.
	for begin, i := time.Now(), 0; i < len(all); {
		switch text := all[i].Cli(t, "cluster", "slots"); {
		case strings.Count(text, "127.0.0.1") >= len(all):
			i++
		case time.Since(begin) > patience:
			t.Fatalf("redistest: the node at %s does not know all others:\n%s", all[i].Addr, text)
		}
	}
	return c
}

// Addrs are the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, s := range append(append([]*Server(nil), c.Masters...), c.Replicas...) {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}
