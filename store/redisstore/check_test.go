package redisstore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/store/redisstore"
)

func TestCheck(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, "redis://"+server.Addr, nil)
	allowing, err := redisstore.Open("redis://"+server.Addr, redisstore.Options{AllowEviction: true})
	if err != nil {
		t.Fatal(err)
	}
	defer allowing.Close()
	check := func(s *redisstore.Store, wants ...string) {
		t.Helper()
		rep, err := s.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if rep.Mode != "standalone" || len(rep.Nodes) != 1 || rep.Nodes[0].Role != "master" || !strings.HasPrefix(rep.Nodes[0].Version, "7.") {
			t.Fatalf("the report is %+v", rep)
		}
		if len(rep.Warnings) != len(wants) {
			t.Fatalf("the warnings are %q, want %q", rep.Warnings, wants)
		}
		for _, w := range wants {
			if !strings.Contains(strings.Join(rep.Warnings, "\n"), w) {
				t.Fatalf("the warnings are %q, want %q", rep.Warnings, w)
			}
		}
	}
	check(s, "has no replica", "has no maxmemory")
	server.Cli(t, "config", "set", "maxmemory", "1gb")
	server.Cli(t, "config", "set", "appendfsync", "everysec")
	check(s, "has no replica", "appendfsync everysec")
	server.Cli(t, "config", "set", "appendonly", "no")
	check(s, "has no replica", "writes nothing to disk")
	server.Cli(t, "config", "set", "save", "3600 1")
	check(s, "has no replica", "only snapshots")
	for _, policy := range []string{"allkeys-lru", "volatile-ttl"} {
		server.Cli(t, "config", "set", "maxmemory-policy", policy)
		if _, err := s.Check(t.Context()); !errors.Is(err, redisstore.ErrSettings) || !strings.Contains(err.Error(), policy) {
			t.Fatalf("Check of a server with %s: %v", policy, err)
		}
		check(allowing, "has no replica", "only snapshots", policy)
	}
	server.Cli(t, "config", "set", "maxmemory-policy", "noeviction")
	server.Cli(t, "acl", "setuser", "app", "on", ">pw", "~*", "+@all", "-config")
	check(open(t, "redis://app:pw@"+server.Addr, nil), "CONFIG is not permitted")
	server.Kill()
	if _, err := s.Check(t.Context()); !errors.Is(err, redisstore.ErrUnavailable) {
		t.Fatalf("Check of a server that is gone: %v", err)
	}
}

func TestCheckOfAClusterSeesAllNodes(t *testing.T) {
	c := redistest.StartCluster(t, 3, 1)
	s := open(t, "redis+cluster://"+strings.Join(c.Addrs(), ","), nil)
	rep, err := s.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	roles := map[string]int{}
	for _, n := range rep.Nodes {
		roles[n.Role]++
	}
	if rep.Mode != "cluster" || fmt.Sprint(roles) != "map[master:3 slave:3]" {
		t.Fatalf("the mode is %q and the roles are %v", rep.Mode, roles)
	}
	if !strings.Contains(strings.Join(rep.Warnings, "\n"), "has 1 replicas, which follow asynchronously") {
		t.Fatalf("the warnings are %q", rep.Warnings)
	}
}
