package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Open opens a store on the database that url names: a postgres:// URL or a
// keyword string, with pgx's parameters (also of its pool). Several hosts are
// tried in their order; with target_session_attrs=read-write, until one takes
// writes. The caller closes it.
//
// The tables must be there, in the version that this package knows: see
// [Migrate].
func Open(ctx context.Context, url string, o Options) (*Store, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("pgstore: %w", err)
	}
	if o.Connections == 0 {
		// The pool has taken the parameter away, and says only what it made of it.
		if SaysConnections(url) {
			o.Connections = c.MaxConns
		}
		if err := o.Validate(); err != nil {
			return nil, fmt.Errorf("%w (pool_max_conns in the URL)", err)
		}
	}
	if c.ConnConfig.RuntimeParams["application_name"] == "" {
		c.ConnConfig.RuntimeParams["application_name"] = "escapement"
	}
	return open(ctx, c, o.withDefaults())
}

// New opens a store on the database of pool, so that handlers can use
// [Store.In] with pool's transactions. It takes only the pool's configuration:
// the store has connections of its own (Options.Connections), and never waits
// for one that a handler holds.
func New(ctx context.Context, pool *pgxpool.Pool, o Options) (*Store, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if pool == nil {
		return nil, errors.New("pgstore: the pool is nil")
	}
	return open(ctx, pool.Config(), o.withDefaults())
}

func open(ctx context.Context, c *pgxpool.Config, o Options) (*Store, error) {
	c.MaxConns = o.Connections
	c.MinConns, c.MinIdleConns = 0, 0
	if t := c.ConnConfig.ConnectTimeout; t == 0 || t > o.Timeout {
		// A connection goes on being made when its caller has gone, and has one of
		// the places: without an end a server that hangs would take them all.
		c.ConnConfig.ConnectTimeout = o.Timeout
	}
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("pgstore: %w", err)
	}
	q := newQueries(o.Schema)
	if err := checkSchema(ctx, pool, q); err != nil {
		pool.Close()
		return nil, explain(err)
	}
	s := &Store{o: o, pool: pool, q: q}
	s.short = group[*short]{limit: o.MaxBatch, width: shortWidth, more: shortMore, size: (*short).size, run: s.runShort}
	s.changes = group[*change]{limit: o.MaxBatch, width: 1, size: (*change).bytes, run: s.runChanges}
	return s, nil
}

// checkSchema reports a schema that is not the newest one.
func checkSchema(ctx context.Context, pool *pgxpool.Pool, q *queries) error {
	list, err := migrationTexts()
	if err != nil {
		return err
	}
	var have int
	if err := pool.QueryRow(ctx, q.schemaVersion).Scan(&have); err != nil {
		return err
	}
	switch {
	case have > len(list):
		return tooNew(have, len(list))
	case have < len(list):
		return fmt.Errorf("pgstore: the database has the schema version %d, and this version of Escapement needs %d: run escapement migrate, or call Migrate", have, len(list))
	}
	return nil
}

// Close lets the batches that are under way end; every operation that still
// waits, and every later one, fails with ErrClosed. It returns when the store's
// goroutines have ended and its connections are closed. Its error is nil.
func (s *Store) Close() error {
	s.closed.Store(true)
	s.short.close()
	s.changes.close()
	s.limits.close()
	s.pool.Close()
	return nil
}
