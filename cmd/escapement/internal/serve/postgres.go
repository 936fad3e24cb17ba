package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/pgstore"
)

// openPostgres opens what is in PostgreSQL; one store where both are in one
// database.
func (s *stores) openPostgres(ctx context.Context, c *config.Config, log *slog.Logger) error {
	limiter := c.LimiterURL()
	var store *pgstore.Store
	var err error
	if c.Store.IsPostgres() {
		if store, err = s.postgres(ctx, c, c.Store, log); err != nil {
			return err
		}
		s.records = &bounded{records: store, deadline: c.Postgres.KeyDeadline, breaker: newBreaker(log, postgresAway)}
	}
	if !limiter.IsPostgres() {
		return nil
	}
	if limiter != c.Store {
		if store, err = s.postgres(ctx, c, limiter, log); err != nil {
			return err
		}
	}
	limits := store.Limits(pgstore.LimitsOptions{})
	s.limits, _, err = guarded(c, limits, c.Postgres.LimitDeadline, log)
	s.sweep = func(ctx context.Context) { sweepLimits(ctx, limits, log) }
	return err
}

// bothConnections is how many connections a database with records and limits
// has, unless its URL says otherwise. The store uses one for claims and ends, one
// for what comes seldom, one for limits, and one for each sweep: so none of
// these waits for another.
const bothConnections = 6

// postgres opens one PostgreSQL and has its settings looked at.
func (s *stores) postgres(ctx context.Context, c *config.Config, u config.StoreURL, log *slog.Logger) (*pgstore.Store, error) {
	if err := ready(ctx, u, log); err != nil {
		return nil, err
	}
	var connections int32
	if c.Store == c.LimiterURL() && !pgstore.SaysConnections(u.Address) {
		connections = bothConnections
	}
	store, err := pgstore.Open(ctx, u.Address, pgstore.Options{
		Connections: connections,
		// What a caller no longer waits for ends soon after.
		Timeout: 2*c.Postgres.KeyDeadline + batchTime,
		// Somebody's transaction holds a record for longer: the store answers,
		// and says so.
		LockWait: max(c.Postgres.KeyDeadline/2, time.Millisecond),
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u, err)
	}
	s.closers = append(s.closers, store.Close)
	rep, err := store.Check(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u, err)
	}
	s.servers = append(s.servers, &rep)
	return store, nil
}

// batchTime is how long a full batch of the largest answers takes.
const batchTime = 3 * time.Second

// ready makes the tables where there are none. Those of an earlier version stay
// as they are: other programs may be using them.
func ready(ctx context.Context, u config.StoreURL, log *slog.Logger) error {
	c, err := connect(ctx, u)
	if err != nil {
		return fmt.Errorf("%s: %w", u, err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	have, newest, err := pgstore.SchemaVersion(ctx, c, "")
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", u, err)
	case have == 0:
		from, to, err := pgstore.Migrate(ctx, c, "")
		if err != nil {
			return fmt.Errorf("%s: there are no tables of Escapement yet, and they cannot be made: %w\n"+
				"    write: escapement migrate --store %s, as a user who may create tables", u, err, u)
		}
		if from == to { // another program was faster
			return nil
		}
		log.Info("made the tables of Escapement", slog.String("store", u.String()), slog.Int("version", to))
	case have < newest:
		return fmt.Errorf("%s: its tables are of version %d, and this program needs version %d\n"+
			"    write: escapement migrate --store %s, as the user who owns the tables", u, have, newest, u)
	}
	return nil
}

// connectTimeout is how long one server of several may leave the start waiting.
const connectTimeout = 5 * time.Second

// connect opens one connection that works through any pooler.
func connect(ctx context.Context, u config.StoreURL) (*pgx.Conn, error) {
	c, err := pgxpool.ParseConfig(u.Address) // which knows the pool's parameters
	if err != nil {
		return nil, &ConfigError{err}
	}
	c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	if c.ConnConfig.ConnectTimeout == 0 { // of each host
		c.ConnConfig.ConnectTimeout = connectTimeout
	}
	conn, err := pgx.ConnectConfig(ctx, c.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("the server cannot be reached, or refuses: %w", err)
	}
	return conn, nil
}

// Migrate creates the tables in a PostgreSQL, or brings them to the newest
// version, and returns the version that it found (0: none) and the one that
// there is now.
func Migrate(ctx context.Context, u config.StoreURL) (from, to int, err error) {
	c, err := connect(ctx, u)
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", u, err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	if from, to, err = pgstore.Migrate(ctx, c, ""); err != nil {
		return from, to, fmt.Errorf("%s: %w", u, err)
	}
	return from, to, nil
}

// MigrationSQL returns the SQL that Migrate would run, which is empty where
// there is nothing to do. It changes nothing.
func MigrationSQL(ctx context.Context, u config.StoreURL) (string, error) {
	c, err := connect(ctx, u)
	if err != nil {
		return "", fmt.Errorf("%s: %w", u, err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	have, _, err := pgstore.SchemaVersion(ctx, c, "")
	if err != nil {
		return "", fmt.Errorf("%s: %w", u, err)
	}
	return pgstore.MigrationSQL("", have)
}

// postgresAway reports whether an error of a call says that the server is out
// of reach, or cannot do its work now. The others are decisions.
func postgresAway(err error) bool {
	for _, decision := range []error{idempotency.ErrNotFound, idempotency.ErrFull, pgstore.ErrLocked} {
		if errors.Is(err, decision) {
			return false
		}
	}
	return err != nil
}

// serverWord is a PostgreSQL in a few words.
func serverWord(rep *pgstore.Report) string {
	onOff := map[bool]string{true: "on", false: "off"}
	s := fmt.Sprintf("PostgreSQL %s, fsync %s, synchronous_commit %s, ", rep.Version, onOff[rep.Fsync], rep.SynchronousCommit)
	if rep.SynchronousStandbys == "" {
		s += "no synchronous standby"
	} else {
		s += "synchronous standbys " + rep.SynchronousStandbys
	}
	s += fmt.Sprintf("; at most %d connections", rep.Connections)
	if rep.Pooler {
		s += " through a pooler"
	}
	return s
}

// lossWord says what a crash or a failover loses.
func lossWord(rep *pgstore.Report) string {
	crash := "a crash of the server loses nothing"
	if !rep.Fsync || rep.SynchronousCommit == "off" {
		crash = "a crash of the server can lose records"
	}
	return crash + "; " + rep.Failover()
}
