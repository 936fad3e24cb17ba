package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// startPatience is how long the start waits for a store of records that does
// not answer: both may have been started at one time.
const startPatience = 10 * time.Second

// retryPause is the pause between two tries to open a Redis.
const retryPause = 500 * time.Millisecond

// awayForNow reports whether err says that no server answers, which may pass by
// itself.
func awayForNow(err error) bool {
	return errors.Is(err, redisstore.ErrUnavailable) && !errors.Is(err, redisstore.ErrRejected)
}

// openPatiently is openRedis for records.
func (s *stores) openPatiently(ctx context.Context, c *config.Config, u config.StoreURL, log *slog.Logger) (*redisstore.Store, *redisstore.Report, error) {
	for begin, told := time.Now(), false; ; {
		store, rep, err := openRedis(ctx, c, u, true, func(write string) { s.unconfirmed.note(write, log) })
		if err == nil || !awayForNow(err) || ctx.Err() != nil || time.Since(begin) > startPatience {
			return store, rep, err
		}
		if !told {
			log.Warn("the store of records does not answer: trying again", slog.Duration("for", startPatience), slog.Any("error", err))
			told = true
		}
		if !rest(ctx, retryPause) {
			return nil, nil, err
		}
	}
}

// rest waits for d, and reports false if ctx has ended.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// openLimiter opens a Redis that has only limits. Where none answers, the
// program starts without it: each limit has a policy for that.
func (s *stores) openLimiter(ctx context.Context, c *config.Config, u config.StoreURL, log *slog.Logger) (ratelimit.Store, error) {
	store, rep, err := openCached(ctx, c, u)
	if err == nil {
		s.closers, s.reports = append(s.closers, store.Close), append(s.reports, rep)
		return store, nil
	}
	if !awayForNow(err) || ctx.Err() != nil {
		return nil, err
	}
	log.Warn("the limiter does not answer: the start goes on without it", slog.Any("error", err))
	s.notes = append(s.notes, fmt.Sprintf("%s does not answer. Until it does, each limit is decided by its on_unavailable", u))
	l := &lateLimits{done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go l.open(ctx, c, u, log)
	s.closers = append(s.closers, func() error {
		cancel()
		<-l.done
		if store := l.store.Load(); store != nil {
			return store.Close()
		}
		return nil
	})
	return l, nil
}

// openCached is openRedis for limits alone, behind a cache of refusals.
func openCached(ctx context.Context, c *config.Config, u config.StoreURL) (*redisstore.Cached, *redisstore.Report, error) {
	store, rep, err := openRedis(ctx, c, u, false, nil)
	if err != nil {
		return nil, nil, err
	}
	cached, err := store.Cached(redisstore.DenyCacheOptions{})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return cached, rep, nil
}

// lateLimits are limits whose Redis did not answer at the start: it is opened
// as soon as it does.
type lateLimits struct {
	store atomic.Pointer[redisstore.Cached]
	done  chan struct{} // closed when nobody tries any more
}

var _ ratelimit.Store = (*lateLimits)(nil)

func (l *lateLimits) open(ctx context.Context, c *config.Config, u config.StoreURL, log *slog.Logger) {
	defer close(l.done)
	last := ""
	for rest(ctx, retryPause) {
		try, cancel := context.WithTimeout(ctx, openTimeout)
		store, rep, err := openCached(try, c, u)
		cancel()
		if err != nil {
			if text := err.Error(); !awayForNow(err) && ctx.Err() == nil && text != last {
				log.Error("the limiter cannot be used", slog.Any("error", err))
				last = text
			}
			continue
		}
		for _, text := range rep.Warnings {
			log.Warn("of the limiter: " + text)
		}
		log.Info("the limiter answers", slog.String("limiter", u.String()))
		l.store.Store(store)
		return
	}
}

// now is the limits' store, once it is open.
func (l *lateLimits) now() (*redisstore.Cached, error) {
	if s := l.store.Load(); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("%w: it has not answered since the start", errors.Join(redisstore.ErrUnavailable, redisstore.ErrNotExecuted))
}

// Take implements ratelimit.Store.
func (l *lateLimits) Take(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	s, err := l.now()
	if err != nil {
		return ratelimit.Decision{}, err
	}
	return s.Take(ctx, charges)
}

// Return implements ratelimit.Store.
func (l *lateLimits) Return(ctx context.Context, t *ratelimit.Taken) error {
	s, err := l.now()
	if err != nil {
		return err
	}
	return s.Return(ctx, t)
}

// Reset implements ratelimit.Store.
func (l *lateLimits) Reset(ctx context.Context, rule, subject string) error {
	s, err := l.now()
	if err != nil {
		return err
	}
	return s.Reset(ctx, rule, subject)
}
