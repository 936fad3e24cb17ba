package redistest

import (
	"strings"
	"testing"

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
