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
func openRedis(ctx context.Context, c *config.Config, u config.StoreURL, keepsRecords bool, onUnconfirmed func(write string)) (*redisstore.Store, *redisstore.Report, error) {
	s, err := redisstore.Open(u.Address, redisstore.Options{
		Prefix:        c.Redis.Prefix,
		TenantOf:      httpgate.TenantOf(c.HTTP().Limits),
		Spread:        c.Spread(),
		AllowEviction: c.Redis.AllowEviction || !keepsRecords,
		OnUnconfirmed: onUnconfirmed,
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", u, err)
		if errors.Is(err, redisstore.ErrFile) || errors.Is(err, redisstore.ErrRejected) {
			err = &ConfigError{err}
		}
		return nil, nil, err
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
		store, rep, err := s.openPatiently(ctx, c, c.Store, log)
		if err != nil {
			return err
		}
		s.closers, s.reports, shared = append(s.closers, store.Close), append(s.reports, rep), store
		keys = &bounded{records: store, deadline: c.Redis.KeyDeadline, breaker: newBreaker(log, redisAway)}
		s.records = keys
		if s.confirmed, err = confirmed(c, store, keys); err != nil {
			return err
		}
	}
	if !limiter.IsRedis() {
		return nil
	}
	var limits ratelimit.Store
	var cached *redisstore.Cached
	var err error
	if limiter == c.Store {
		cached, err = shared.Cached(redisstore.DenyCacheOptions{})
		limits = cached
	} else {
		limits, err = s.openLimiter(ctx, c, limiter, log)
	}
	if err != nil {
		return err
	}
	guarded, policies, err := guarded(c, limits, c.Redis.LimitDeadline, log)
	if err != nil {
		return err
	}
	s.limits = guarded
	if cached != nil {
		both := &redisBoth{bounded: keys, Guard: guarded, cached: cached, policies: policies}
		s.records, s.limits = both, both
	}
	return nil
}

// confirmed are the ways to the records that wait for replicas, by their
// number.
func confirmed(c *config.Config, s *redisstore.Store, keys *bounded) (map[int64]idempotency.Store, error) {
	list := map[int64]idempotency.Store{}
	for _, t := range append([]config.Route{c.Default}, c.Routes...) {
		if t.Confirm == 0 || list[t.Confirm] != nil {
			continue
		}
		way, err := s.Confirmed(int(t.Confirm), max(c.Redis.KeyDeadline/2, time.Millisecond))
		if err != nil {
			return nil, err
		}
		list[t.Confirm] = &bounded{records: way, deadline: keys.deadline, breaker: keys.breaker}
	}
	return list, nil
}

// redisAway reports whether an error of a call says that Redis is out of reach.
func redisAway(err error) bool { return errors.Is(err, redisstore.ErrUnavailable) }

// unconfirmed counts the writes that too few replicas had in time, by what they
// were.
type unconfirmed struct{ claims, steps, endings atomic.Int64 }

// note counts one. A claim was given back, and the caller is told; an ending
// stays, and is answered.
func (u *unconfirmed) note(write string, log *slog.Logger) {
	switch write {
	case "reserve":
		u.claims.Add(1)
	case "save step":
		u.steps.Add(1)
	default:
		log.Warn("replicas did not confirm a result in time, which was answered", slog.Int64("so_far", u.endings.Add(1)))
	}
}

// LogValue implements slog.LogValuer.
func (u *unconfirmed) LogValue() slog.Value {
	return slog.GroupValue(slog.Int64("claims", u.claims.Load()), slog.Int64("steps", u.steps.Load()), slog.Int64("results", u.endings.Load()))
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
