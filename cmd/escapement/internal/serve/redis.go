package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
	"github.com/escapement-dev/escapement/httpgate"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/guard"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// openRedis opens one Redis and has its settings looked at.
func openRedis(ctx context.Context, c *config.Config, u config.StoreURL, keepsRecords bool) (*redisstore.Store, *redisstore.Report, error) {
	s, err := redisstore.Open(u.Address, redisstore.Options{
		Prefix:        c.Redis.Prefix,
		TenantOf:      httpgate.TenantOf(c.HTTP().Limits),
		Spread:        c.Spread(),
		AllowEviction: c.Redis.AllowEviction || !keepsRecords,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", u, err)
	}
	rep, err := s.Check(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("%s: %w", u, err), s.Close())
		if errors.Is(err, redisstore.ErrSettings) {
			err = &ConfigError{err}
		}
		return nil, nil, err
	}
	if !keepsRecords {
		rep.Warnings = nil
		for _, n := range rep.Nodes {
			if n.Role == "master" && n.Eviction != "" && n.Eviction != "noeviction" {
				rep.Warnings = append(rep.Warnings, fmt.Sprintf("%s has maxmemory-policy %s: a bucket that it evicts is full again", n.Addr, n.Eviction))
			}
		}
	}
	return s, &rep, nil
}

// openRedis opens what is in Redis; one connection where both are in one.
func (s *stores) openRedis(ctx context.Context, c *config.Config, log *slog.Logger) error {
	limiter := c.LimiterURL()
	var keys *bounded
	var shared *redisstore.Store
	if c.Store.IsRedis() {
		store, rep, err := openRedis(ctx, c, c.Store, true)
		if err != nil {
			return err
		}
		s.closers, s.reports, shared = append(s.closers, store.Close), append(s.reports, rep), store
		keys = &bounded{records: store, deadline: c.Redis.KeyDeadline, breaker: newBreaker(log, redisAway)}
		s.records = keys
		if s.confirmed, err = confirmed(c, store, keys, log); err != nil {
			return err
		}
	}
	if !limiter.IsRedis() {
		return nil
	}
	store := shared
	if limiter != c.Store {
		var rep *redisstore.Report
		var err error
		if store, rep, err = openRedis(ctx, c, limiter, false); err != nil {
			return err
		}
		s.closers, s.reports = append(s.closers, store.Close), append(s.reports, rep)
	}
	cached, err := store.Cached(redisstore.DenyCacheOptions{})
	if err != nil {
		return err
	}
	guarded, policies, err := guarded(c, cached, c.Redis.LimitDeadline, log)
	if err != nil {
		return err
	}
	s.limits = guarded
	if store == shared {
		both := &redisBoth{bounded: keys, Guard: guarded, cached: cached, policies: policies}
		s.records, s.limits = both, both
	}
	return nil
}

// confirmed are the ways to the records that wait for replicas, by their
// number.
func confirmed(c *config.Config, s *redisstore.Store, keys *bounded, log *slog.Logger) (map[int64]idempotency.Store, error) {
	list := map[int64]idempotency.Store{}
	for _, t := range append([]config.Route{c.Default}, c.Routes...) {
		if t.Confirm == 0 || list[t.Confirm] != nil {
			continue
		}
		way, err := s.Confirmed(int(t.Confirm), max(c.Redis.KeyDeadline/2, time.Millisecond))
		if err != nil {
			return nil, err
		}
		list[t.Confirm] = &confirming{
			bounded: &bounded{records: way, deadline: keys.deadline, breaker: keys.breaker},
			short:   way.Unconfirmed, replicas: t.Confirm, log: log,
		}
	}
	return list, nil
}

// redisAway reports whether an error of a call says that Redis is out of reach.
func redisAway(err error) bool { return errors.Is(err, redisstore.ErrUnavailable) }

// confirming are records of which replicas must have each write.
type confirming struct {
	*bounded
	short    func() int64
	told     atomic.Int64
	replicas int64
	log      *slog.Logger
}

// End implements idempotency.Store.
func (c *confirming) End(ctx context.Context, res idempotency.Reservation, e idempotency.Ending) error {
	err := c.bounded.End(ctx, res, e)
	if n := c.short(); n != c.told.Swap(n) {
		c.log.Warn("replicas did not confirm a write in time", slog.Int64("want", c.replicas), slog.Int64("so_far", n))
	}
	return err
}

// redisBoth keeps records and limits in one Redis.
type redisBoth struct {
	*bounded
	*guard.Guard
	cached   *redisstore.Cached
	policies map[string]guard.Fallback
}

var _ escapement.Admitter = (*redisBoth)(nil)

// Admit implements escapement.Admitter. While Redis is away nothing with a key
// is executed, whatever a limit's policy: only the answer is that of a limit
// that is closed.
func (b *redisBoth) Admit(ctx context.Context, requests, executions []ratelimit.Charge, c idempotency.Claim) (d ratelimit.Decision, a idempotency.Answer, err error) {
	err = b.ask(ctx, func(ctx context.Context) error {
		d, a, err = b.cached.Admit(ctx, requests, executions, c)
		return err
	})
	switch {
	case err == nil:
		if d.Allowed {
			all := slices.Concat(requests, executions)
			b.Warm(ctx, all[:min(len(d.Levels), len(all))])
		}
	case errors.Is(err, redisstore.ErrBusy):
		err = fmt.Errorf("%w: %w", escapement.ErrLimits, err)
	case errors.Is(err, redisstore.ErrUnavailable) || errors.Is(err, idempotency.ErrNotSent):
		for i := range requests {
			if name := requests[i].Rule.Name; b.policies[name].On == guard.OnClosed {
				err = fmt.Errorf("%w: limit %q is closed while its store is away: %w", escapement.ErrLimits, name, err)
				break
			}
		}
	}
	return d, a, err
}

// reportWord is a Redis in a few words.
func reportWord(rep *redisstore.Report) string {
	var versions []string
	for _, n := range rep.Nodes {
		if !slices.Contains(versions, n.Version) {
			versions = append(versions, n.Version)
		}
	}
	nodes := "1 server"
	if n := len(rep.Nodes); n != 1 {
		nodes = fmt.Sprintf("%d servers", n)
	}
	return fmt.Sprintf("Redis %s, %s, %s", strings.Join(versions, " and "), rep.Mode, nodes)
}
