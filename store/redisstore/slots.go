package redisstore

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/escapement-dev/escapement/ratelimit"
)

// group is charges that lie in one slot, or anywhere outside of a Cluster.
type group struct {
	from []int // their places among all charges
}

// groups parts charges by where they lie in a Cluster: those of no tenant each
// alone and first, then those of each tenant.
func (s *Store) groups(charges []ratelimit.Charge) []group {
	var alone, tenants []group
	tags := map[string]int{}
	for i := range charges {
		k, ofTenant := s.limitKey(charges[i].Rule.Name, charges[i].Subject)
		list := &alone
		if ofTenant {
			list = &tenants
		}
		tag := hashTag(k)
		at, ok := tags[tag]
		if !ok {
			at = len(*list)
			tags[tag] = at
			*list = append(*list, group{})
		}
		g := &(*list)[at]
		g.from = append(g.from, i)
	}
	return append(alone, tenants...)
}

// cluster reports whether the Redis is a Cluster, where one script sees only
// one slot.
func (s *Store) cluster() bool { return s.client.Mode() == rueidis.ClientModeCluster }

// Apart reports whether what the rule holds about the subject lies apart from
// the records of its tenant: in a Cluster, where the subject belongs to none
// (see Options.TenantOf) or Options.Spread is set. [Store.Take] and
// [Store.Admit] ask such limits in round trips of their own. A program says at
// its start which rules these are.
func (s *Store) Apart(rule, subject string) bool {
	_, ofTenant := s.limitKey(rule, subject)
	return s.cluster() && (s.spread || !ofTenant)
}

// hashTag is the part of a key, braces included, by which a Cluster places it.
// Ours always have one.
func hashTag(key string) string {
	for i := range len(key) {
		if key[i] != '{' {
			continue
		}
		for j := i + 1; j < len(key); j++ {
			if key[j] == '}' {
				return key[i : j+1]
			}
		}
	}
	return key
}

// refundTime is how long charges that lie apart may take to be given back, once
// the caller's own context has ended.
const refundTime = time.Second

// takeApart charges groups one after the other. Once one refuses, those before
// it are given back, and all others are looked at, so that the decision says
// everything.
//
// If they passed, undo is what takes token buckets back.
func (s *Store) takeApart(ctx context.Context, charges []ratelimit.Charge, groups []group) (d ratelimit.Decision, undo []change, err error) {
	d = ratelimit.Decision{Allowed: true, Levels: make([]ratelimit.Level, len(charges))}
	taken := &ratelimit.Taken{Charges: append([]ratelimit.Charge(nil), charges...), Receipts: make([]ratelimit.Receipt, len(charges))}
	ask := func(g *group, real bool) error {
		some := make([]ratelimit.Charge, len(g.from))
		for i, at := range g.from {
			some[i] = charges[at]
		}
		part, list, err := s.takeTogether(ctx, some, real, real)
		if err != nil {
			return err
		}
		undo = append(undo, list...)
		for i, at := range g.from {
			d.Levels[at] = part.Levels[i]
			if part.Taken != nil {
				taken.Receipts[at] = part.Taken.Receipts[i]
			}
		}
		d.Allowed = d.Allowed && part.Allowed
		return nil
	}
	for i := range groups {
		if err := ask(&groups[i], true); err != nil {
			s.refund(ctx, taken, undo)
			return ratelimit.Decision{}, nil, err
		}
		if d.Allowed {
			continue
		}
		s.refund(ctx, taken, undo)
		for j := range groups {
			if j == i {
				continue
			}
			if err := ask(&groups[j], false); err != nil {
				return ratelimit.Decision{}, nil, err
			}
			if err := s.repair(ctx, charges, &groups[j], d.Levels); err != nil {
				return ratelimit.Decision{}, nil, err
			}
		}
		return d, nil, nil
	}
	d.Taken = taken
	return d, undo, nil
}

// repair asks a group in earnest that a look found to refuse: then a new rule,
// or a clock that stepped back, has what it writes written, as in one call. What
// passes after all is given back.
func (s *Store) repair(ctx context.Context, charges []ratelimit.Charge, g *group, levels []ratelimit.Level) error {
	refused := false
	some := make([]ratelimit.Charge, len(g.from))
	for i, at := range g.from {
		some[i] = charges[at]
		refused = refused || !levels[at].Allowed
	}
	if !refused {
		return nil
	}
	d, undo, err := s.takeTogether(ctx, some, true, true)
	if err == nil && d.Allowed {
		s.refund(ctx, d.Taken, undo)
	}
	return err
}

// refund gives back what was taken before a refusal or an error. A bucket that
// nobody has charged since is put back as it was. What cannot be given back
// comes back by itself, as after any charge: the decision stands, and somebody
// may wait longer than needed.
func (s *Store) refund(ctx context.Context, t *ratelimit.Taken, undo []change) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refundTime)
	defer cancel()
	undone := map[string]bool{}
	for _, c := range undo {
		if done, err := s.swap(ctx, []change{c}); done && err == nil {
			undone[c.key] = true
		}
	}
	some := false
	for i := range t.Receipts {
		key, _ := s.limitKey(t.Charges[i].Rule.Name, t.Charges[i].Subject)
		if t.Receipts[i] == (ratelimit.Receipt{}) || undone[key] {
			t.Charges[i].Cost = 0 // was not taken, or is not any more
		}
		some = some || t.Charges[i].Cost > 0
	}
	if some {
		_ = s.Return(ctx, t)
	}
}
