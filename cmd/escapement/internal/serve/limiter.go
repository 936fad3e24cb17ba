package serve

import (
	"context"
	"log/slog"
	"time"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/guard"
	"github.com/escapement-dev/escapement/store/memstore"
)

// guarded puts a guard before the limits of a server, which knows what each
// limit does while that is away, and returns that too.
func guarded(c *config.Config, s ratelimit.Store, deadline time.Duration, log *slog.Logger) (*guard.Guard, map[string]guard.Fallback, error) {
	local, err := memstore.NewLimits(memstore.LimitsOptions{})
	if err != nil {
		return nil, nil, err
	}
	policies := fallbacks(c)
	g, err := guard.New(s, guard.Options{
		Deadline: deadline, Local: local,
		Fallback: func(rule string) guard.Fallback { return policies[rule] },
		OnState: func(away bool) {
			if away {
				log.Warn("the limiter is away: each limit is decided by its on_unavailable")
			} else {
				log.Info("the limiter is back")
			}
		},
	})
	return g, policies, err
}

// readyRule is the rule by which /readyz looks at the limiter. While that is
// away it is closed if any limit is.
const readyRule = "escapement-readyz"

// fallbacks are the policies of the rules.
func fallbacks(c *config.Config) map[string]guard.Fallback {
	on := map[string]guard.OnUnavailable{"local": guard.OnLocal, "open": guard.OnOpen, "closed": guard.OnClosed}
	list := map[string]guard.Fallback{readyRule: {On: guard.OnOpen}}
	for _, l := range c.Limits {
		list[l.Rule.Name] = guard.Fallback{On: on[l.OnUnavailable], Share: l.LocalShare}
		if l.OnUnavailable == "closed" {
			list[readyRule] = guard.Fallback{On: guard.OnClosed}
		}
	}
	return list
}

// sweepEvery is the pause between two sweeps of the limits.
const sweepEvery = 10 * time.Second

// sweepBatch is how many buckets one call removes at most.
const sweepBatch = 1000

// sweepLimits removes buckets that are full, until ctx ends.
func sweepLimits(ctx context.Context, l interface {
	Sweep(ctx context.Context, limit int) (removed int, err error)
}, log *slog.Logger,
) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n, err := sweepBatch, error(nil)
		for err == nil && n == sweepBatch {
			n, err = l.Sweep(ctx, sweepBatch)
		}
		if ctx.Err() == nil && err != nil && !failed {
			log.Warn("buckets that are full are not removed", slog.Any("error", err))
		}
		failed = err != nil
	}
}
