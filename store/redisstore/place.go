package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/escapement-dev/escapement/idempotency"
)

// node is a master of the Redis.
type node struct {
	addr string
	c    rueidis.Client
}

// masters are the nodes that have keys, by address.
func (s *Store) masters(ctx context.Context) ([]node, error) {
	all := s.client.Nodes()
	nodes := make([]node, 0, len(all))
	for addr, c := range all {
		if len(all) > 1 {
			role, err := c.Do(ctx, c.B().Role().Build()).ToArray()
			if err != nil {
				return nil, explain("ask "+addr+" for its role", err)
			}
			if len(role) == 0 || text(role[0]) != "master" {
				continue
			}
		}
		nodes = append(nodes, node{addr, c})
	}
	if len(nodes) == 0 {
		return nil, explain("find a master", errors.New("no node is one"))
	}
	slices.SortFunc(nodes, func(a, b node) int { return strings.Compare(a.addr, b.addr) })
	return nodes, nil
}

// nodeAt is the index of the first node at or after the address.
func nodeAt(nodes []node, addr string) int {
	return sort.Search(len(nodes), func(i int) bool { return nodes[i].addr >= addr })
}

func (n node) scan(ctx context.Context, cursor uint64, pattern string, count int) (keys []string, next uint64, err error) {
	e, err := n.c.Do(ctx, n.c.B().Scan().Cursor(cursor).Match(pattern).Count(int64(count)).Build()).AsScanEntry()
	if err != nil {
		return nil, 0, explain("scan "+n.addr, err)
	}
	return e.Elements, e.Cursor, nil
}

// place is how far a walk through all nodes has come.
//
// SCAN gives a part of a node's keys and the cursor of the next part. A part
// may hold more records than fit into a page: the rest of them comes on later
// pages, in the order of their IDs. When such a part is read again, Redis's
// table may have grown, and then the same part comes in several pieces; so a
// place remembers where the part ended.
type place struct {
	node   string // its address; a walk begins at ""
	cursor uint64
	parts  []part // those that were begun, nearest first
}

// part is what was seen of the keys up to a cursor: those up to an ID.
type part struct {
	end   uint64
	after idempotency.ID
}

// order is the place of a cursor in a walk. SCAN counts in bits from the
// highest to the lowest, so that a table that grows keeps the order; 0 as an
// end is the end of all.
func order(end uint64) uint64 {
	if end == 0 {
		return math.MaxUint64
	}
	return bits.Reverse64(end)
}

// beyond reports whether a piece that ends at next goes beyond the part that
// was begun.
func (p *place) beyond(next uint64) bool {
	return len(p.parts) > 0 && order(next) > order(p.parts[0].end)
}

// left are the records of a piece that were not seen yet. The piece may begin
// in a part that has no more records and end in a later one: then its records
// are of that one.
func (p *place) left(keys []string, next uint64) []foundRecord {
	found := recordsIn(keys)
	for _, x := range p.parts {
		if order(next) <= order(x.end) {
			i := sort.Search(len(found), func(i int) bool { return cmpID(found[i].id, x.after) > 0 })
			return found[i:]
		}
	}
	return found
}

// interrupt notes that of the piece up to next the IDs up to the given one
// have been seen.
func (p *place) interrupt(next uint64, after idempotency.ID) {
	for len(p.parts) > 0 && order(p.parts[0].end) <= order(next) {
		p.parts = p.parts[1:]
	}
	p.parts = append([]part{{next, after}}, p.parts...)
}

// pass notes that all keys up to next have been seen.
func (p *place) pass(next uint64) {
	p.cursor = next
	for len(p.parts) > 0 && order(p.parts[0].end) <= order(next) {
		p.parts = p.parts[1:]
	}
}

// String is the place as a cursor of pages.
func (p *place) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s|%d", p.node, p.cursor)
	for _, x := range p.parts {
		fmt.Fprintf(&b, "|%d:%s", x.end, x.after)
	}
	return b.String()
}

var errCursor = errors.New("redisstore: list with a cursor that no page gave")

func parsePlace(s string) (p place, err error) {
	fields := strings.Split(s, "|")
	if len(fields) < 2 || len(fields) > 64 {
		return p, errCursor
	}
	p.node = fields[0]
	if p.cursor, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
		return p, errCursor
	}
	for _, f := range fields[2:] {
		end, id, _ := strings.Cut(f, ":")
		var x part
		if x.end, err = strconv.ParseUint(end, 10, 64); err != nil {
			return p, errCursor
		}
		if x.after, err = idempotency.ParseID(id); err != nil {
			return p, errCursor
		}
		p.parts = append(p.parts, x)
	}
	return p, nil
}

func cmpID(a, b idempotency.ID) int { return bytes.Compare(a[:], b[:]) }
