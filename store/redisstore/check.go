package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Report says what a Redis is and what can be lost in it.
type Report struct {
	// Mode is "standalone", "sentinel" or "cluster".
	Mode  string
	Nodes []NodeReport
	// Warnings are what whoever runs this should know, each a sentence.
	Warnings []string
}

// NodeReport is what one server says of itself.
type NodeReport struct {
	Addr, Role, Version string
	// Eviction is maxmemory-policy; "" if the server does not tell.
	Eviction string
	// MaxMemory is in bytes; 0 is without bound.
	MaxMemory int64
	// Append is true if each write goes to an append-only file; Fsync says
	// when it goes to disk.
	Append bool
	Fsync  string
	// Snapshots is true if the server saves snapshots now and then.
	Snapshots bool
	// Replicas is how many replicas are connected.
	Replicas int
	// Ahead is how far the server's clock is ahead of this process's.
	Ahead time.Duration
}

// ErrSettings is returned by Check for a server on which records would not be
// safe.
var ErrSettings = errors.New("redisstore: the server's settings do not keep records")

// maxSkew is how far clocks of servers may be apart before Check warns.
const maxSkew = time.Second

// Check asks every server for its version, settings and clock. The error is
// ErrSettings if one of them may evict records (unless Options.AllowEviction)
// or is older than Redis 7, and ErrUnavailable if one does not answer; the
// report then says what was found until then.
func (s *Store) Check(ctx context.Context) (Report, error) {
	rep := Report{Mode: string(s.client.Mode())}
	nodes := s.client.Nodes()
	addrs := make([]string, 0, len(nodes))
	for a := range nodes {
		addrs = append(addrs, a)
	}
	slices.Sort(addrs)
	var faults []error
	for _, a := range addrs {
		n, err := askNode(ctx, a, nodes[a])
		if err != nil {
			return rep, err
		}
		rep.Nodes = append(rep.Nodes, n)
		if major, _, _ := strings.Cut(n.Version, "."); len(major) == 1 && major < "7" {
			faults = append(faults, fmt.Errorf("%w: %s is Redis %s: want 7 or newer", ErrSettings, a, n.Version))
		}
		if n.Eviction != "" && n.Eviction != "noeviction" {
			text := fmt.Sprintf("%s has maxmemory-policy %s: when its memory is full it forgets keys, and operations run again", a, n.Eviction)
			if s.allow {
				rep.Warnings = append(rep.Warnings, text)
			} else {
				faults = append(faults, fmt.Errorf("%w: %s; set it to noeviction, or allow_eviction if that is acceptable", ErrSettings, text))
			}
		}
	}
	rep.Warnings = append(rep.Warnings, rep.warn()...)
	return rep, errors.Join(faults...)
}

// warn says what the nodes can lose.
func (r *Report) warn() (list []string) {
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	first, last := time.Duration(0), time.Duration(0)
	for i, n := range r.Nodes {
		if i == 0 || n.Ahead < first {
			first = n.Ahead
		}
		if i == 0 || n.Ahead > last {
			last = n.Ahead
		}
		if n.Role != "master" {
			continue
		}
		switch {
		case n.Eviction == "":
			say("%s does not tell its settings (CONFIG is not permitted): whether it evicts or persists is not known", n.Addr)
			continue
		case !n.Append && !n.Snapshots:
			say("%s writes nothing to disk: a restart loses every record", n.Addr)
		case !n.Append:
			say("%s saves only snapshots: a restart loses every record since the last one", n.Addr)
		case n.Fsync != "always":
			say("%s has appendfsync %s: a crash of its machine can lose the records of the last second or more", n.Addr, n.Fsync)
		}
		if n.Replicas == 0 {
			say("%s has no replica: while it is down, nothing is decided", n.Addr)
		} else {
			say("%s has %d replicas, which follow asynchronously: a failover can lose the last writes, and an operation may run again", n.Addr, n.Replicas)
		}
		if n.MaxMemory == 0 {
			say("%s has no maxmemory: the system may kill it when its memory is full", n.Addr)
		}
	}
	if last-first > maxSkew {
		say("the servers' clocks are %v apart: after a failover, leases and windows are off by as much", (last - first).Round(time.Millisecond))
	}
	return list
}

func askNode(ctx context.Context, addr string, c rueidis.Client) (n NodeReport, err error) {
	n.Addr = addr
	begin := time.Now()
	clock, err := c.Do(ctx, c.B().Time().Build()).AsIntSlice()
	took := time.Since(begin)
	if err != nil || len(clock) != 2 {
		return n, explain("ask "+addr+" for its time", err)
	}
	n.Ahead = time.Unix(clock[0], clock[1]*1000).Sub(begin.Add(took / 2))
	text, err := c.Do(ctx, c.B().Info().Build()).ToString()
	if err != nil {
		return n, explain("ask "+addr+" for its state", err)
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "redis_version":
			n.Version = value
		case "role":
			n.Role = value
		case "connected_slaves":
			n.Replicas, _ = strconv.Atoi(value)
		}
	}
	set, err := c.Do(ctx, c.B().ConfigGet().Parameter("maxmemory-policy", "maxmemory", "appendonly", "appendfsync", "save").Build()).AsStrMap()
	if err != nil {
		if word := code(err); word == "NOPERM" || word == "ERR" { // many hosted servers have no CONFIG
			return n, nil
		}
		return n, explain("ask "+addr+" for its settings", err)
	}
	n.Eviction = set["maxmemory-policy"]
	n.MaxMemory, _ = strconv.ParseInt(set["maxmemory"], 10, 64)
	n.Append, n.Fsync, n.Snapshots = set["appendonly"] == "yes", set["appendfsync"], set["save"] != ""
	return n, nil
}
