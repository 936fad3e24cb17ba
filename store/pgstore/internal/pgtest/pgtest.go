// Package pgtest gives tests of pgstore schemas of their own on a private
// PostgreSQL server.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/escapement-dev/escapement/internal/pgserver"
)

const patience = 60 * time.Second

// pool keeps the schemas of one server.
type pool struct {
	s       *pgserver.Server
	mu      sync.Mutex
	free    []string // schemas that nobody uses
	schemas int
}

var pools sync.Map // *pgserver.Server to *pool

// Schema returns the name of a schema with empty tables, of which this test is
// the only user until it is over. Schemas are made by migrate, and used again:
// to make one takes longer than most tests.
func Schema(t testing.TB, s *pgserver.Server, migrate func(ctx context.Context, c *pgx.Conn, schema string) error) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	known, _ := pools.LoadOrStore(s, &pool{s: s})
	p := known.(*pool)
	p.mu.Lock()
	var name string
	if n := len(p.free); n > 0 {
		name = p.free[n-1]
		p.free = p.free[:n-1]
	} else {
		p.schemas++
		name = fmt.Sprintf("test_%d", p.schemas)
		defer func() {
			err := p.do(ctx, func(c *pgx.Conn) error { return migrate(ctx, c, name) })
			if err != nil {
				t.Fatal(err)
			}
		}()
	}
	p.mu.Unlock()
	t.Cleanup(func() {
		if err := p.empty(name); err != nil {
			t.Error(err)
			return
		}
		p.mu.Lock()
		p.free = append(p.free, name)
		p.mu.Unlock()
	})
	return name
}

// empty deletes what is in the tables of a schema, but for the version. Where
// benchmarks run, nothing dead is left.
func (p *pool) empty(schema string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return p.do(ctx, func(c *pgx.Conn) error {
		how := map[bool]string{true: "TRUNCATE", false: "DELETE FROM"}[p.s.Durable()]
		rows, err := c.Query(ctx, "SELECT format('"+how+" %I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = $1 AND tablename <> 'escapement_schema'", schema)
		if err != nil {
			return err
		}
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(list) == 0 {
			return err
		}
		return c.PgConn().Exec(ctx, strings.Join(list, ";")).Close()
	})
}

// do runs f with a connection of its own.
func (p *pool) do(ctx context.Context, f func(*pgx.Conn) error) error {
	c, err := pgx.Connect(ctx, p.s.URL())
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close(ctx))
}
