package serve

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
	"github.com/escapement-dev/escapement/store/pgstore"
	"github.com/escapement-dev/escapement/store/redisstore"
	"github.com/escapement-dev/escapement/store/sqlitestore"
)

// records is what each of our stores of records can do.
type records interface {
	idempotency.Store
	idempotency.StepStore
	idempotency.Keeper
	idempotency.Settings
}

// stores are the two stores of a server; they may be one.
type stores struct {
	records records
	limits  ratelimit.Store
	// confirmed are other ways to the records, by the number of replicas that
	// must have a write.
	confirmed map[int64]idempotency.Store
	// unconfirmed are the writes that they did not have in time.
	unconfirmed unconfirmed
	reports     []*redisstore.Report
	notes       []string // warnings of the start
	closers     []func() error
	servers     []*pgstore.Report
	// sweep, if set, removes what the limits no longer need, until its context
	// ends.
	sweep func(context.Context)
}

const openTimeout = 30 * time.Second

// openStores opens what c names. After an error nothing is left open.
func openStores(ctx context.Context, c *config.Config, log *slog.Logger) (s *stores, err error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	s = &stores{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := s.openRedis(ctx, c, log); err != nil {
		return s, err
	}
	if err := s.openPostgres(ctx, c, log); err != nil {
		return s, err
	}
	if s.limits == nil {
		if s.limits, err = memstore.NewLimits(memstore.LimitsOptions{}); err != nil {
			return s, err
		}
	}
	switch c.Store.Kind {
	case "redis", "postgres":
	case "memory":
		if s.records, err = memstore.NewRecords(memstore.RecordsOptions{}); err != nil {
			return s, err
		}
	case "sqlite":
		db, err := sqlitestore.Open(ctx, c.Store.Path, sqlitestore.Options{})
		if err != nil {
			return s, err
		}
		s.records, s.closers = db, append(s.closers, db.Close)
	default:
		return s, fmt.Errorf("serve: %s is no store of this version", c.Store)
	}
	return s, nil
}

func (s *stores) close() error {
	var errs []error
	for _, f := range s.closers {
		errs = append(errs, f())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// secretName is the setting that keeps the secret of the keys' hashes.
const secretName = "secret"

const secretSize = 32

// secret returns the configured secret, or the one that the store keeps. The
// first process that asks makes it; of several at once, one wins and the others
// take its.
func secret(ctx context.Context, s idempotency.Settings, configured string) ([]byte, error) {
	if configured != "" {
		return []byte(configured), nil
	}
	for {
		v, _, err := s.Get(ctx, secretName)
		if err == nil {
			return v, nil
		}
		if !errors.Is(err, idempotency.ErrNotFound) {
			return nil, fmt.Errorf("serve: the secret of the keys' hashes: %w", err)
		}
		fresh := make([]byte, secretSize)
		rand.Read(fresh) // never fails (documented since Go 1.24)
		err = s.PutIf(ctx, secretName, fresh, 0)
		if err == nil {
			return fresh, nil
		}
		if !errors.Is(err, idempotency.ErrConflict) {
			return nil, fmt.Errorf("serve: the secret of the keys' hashes: %w", err)
		}
	}
}

// checkName is the setting that tells one secret from another, and does not
// tell the secret.
const checkName = "secret_check"

// checkSecret reports whether the store's keys were last made with another
// secret, and notes this one. Such keys are not found: operations could run
// again.
func checkSecret(ctx context.Context, s idempotency.Settings, h *idempotency.Hasher) (changed bool, err error) {
	check := h.Pseudonym(checkName, "1")
	for {
		v, version, err := s.Get(ctx, checkName)
		if err != nil && !errors.Is(err, idempotency.ErrNotFound) {
			return false, fmt.Errorf("serve: the check of the secret: %w", err)
		}
		if string(v) == check {
			return false, nil
		}
		changed := err == nil
		err = s.PutIf(ctx, checkName, []byte(check), version)
		if err == nil {
			return changed, nil
		}
		if !errors.Is(err, idempotency.ErrConflict) {
			return false, fmt.Errorf("serve: the check of the secret: %w", err)
		}
	}
}

// recordsWork reports why the store of records cannot be read, or nil.
func recordsWork(s idempotency.Settings) func(context.Context) error {
	return func(ctx context.Context) error {
		_, _, err := s.Get(ctx, secretName)
		if errors.Is(err, idempotency.ErrNotFound) { // the secret is configured
			return nil
		}
		return err
	}
}

// limitsWork looks at a bucket without charging it (a cost of 0). A limiter that
// is away and has a policy for that works.
func limitsWork(s ratelimit.Store) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := s.Take(ctx, []ratelimit.Charge{{Rule: ratelimit.Rule{Name: readyRule, Quota: 1, Window: time.Second}}})
		return err
	}
}
