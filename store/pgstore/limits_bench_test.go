package pgstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/escapement-dev/escapement/internal/pgserver"
	"github.com/escapement-dev/escapement/ratelimit"
)

// BenchmarkLimits compares decisions that admit one unit, on a server that
// flushes to the disk: of 10,000 subjects, of one that all share, and refusals
// of one.
//
//   - ours, as it is and Durable;
//   - plain: one INSERT … ON CONFLICT DO UPDATE … RETURNING for each decision,
//     a token bucket in floating point, on as many connections as callers, but
//     at most 64; and the same with synchronous_commit off.
func BenchmarkLimits(b *testing.B) {
	server, err := pgserver.Start(true)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Stop(); err != nil {
			b.Error(err)
		}
	})
	for _, kind := range []struct {
		name     string
		subjects int
		quota    int64
	}{{"spread", 10_000, 1_000_000_000}, {"hot", 1, 1_000_000_000}, {"refused", 1, 1}} {
		for _, callers := range []int{1, 16, 128} {
			name := fmt.Sprintf("%s/callers=%d", kind.name, callers)
			rule := ratelimit.Rule{Name: "r", Quota: kind.quota, Window: 24 * time.Hour}
			subject := func() string { return fmt.Sprint("subject-", rand.IntN(kind.subjects)) }
			for _, durable := range []bool{false, true} {
				b.Run(fmt.Sprintf("ours/durable=%t/%s", durable, name), func(b *testing.B) {
					l := openStore(b, server.URL(), Options{Schema: migrated(b, server)}).Limits(LimitsOptions{Durable: durable})
					rate(b, callers, func() error {
						d, err := l.Take(context.Background(), []ratelimit.Charge{{Rule: rule, Subject: subject(), Cost: 1}})
						if err == nil && !d.Allowed && kind.quota > 1 {
							err = fmt.Errorf("a decision is %+v", d)
						}
						return err
					})
				})
				b.Run(fmt.Sprintf("plain/durable=%t/%s", durable, name), func(b *testing.B) {
					benchPlainLimit(b, server, callers, durable, rule, subject)
				})
			}
		}
	}
}

func benchPlainLimit(b *testing.B, server *pgserver.Server, callers int, durable bool, rule ratelimit.Rule, subject func() string) {
	ctx := context.Background()
	url := server.URL()
	if !durable {
		url += " synchronous_commit=off"
	}
	pool := newPool(b, url, int32(min(callers, 64)))
	if _, err := pool.Exec(ctx, "DROP TABLE IF EXISTS plain_limits; CREATE TABLE plain_limits (id text PRIMARY KEY, tokens float8 NOT NULL, at timestamptz NOT NULL) WITH (fillfactor = 70)", pgx.QueryExecModeSimpleProtocol); err != nil {
		b.Fatal(err)
	}
	const left = "least($2, plain_limits.tokens + extract(epoch FROM clock_timestamp() - plain_limits.at)::float8 * $3)"
	const text = "INSERT INTO plain_limits VALUES ($1, $2::float8 - 1, clock_timestamp()) ON CONFLICT (id) DO UPDATE SET tokens = " + left +
		" - 1, at = clock_timestamp() WHERE " + left + " >= 1 RETURNING tokens"
	var all []*pgxpool.Conn
	for range min(callers, 64) { // to connect costs more than a decision
		c, err := pool.Acquire(ctx)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, c)
	}
	for _, c := range all {
		c.Release()
	}
	rate(b, callers, func() error {
		var tag pgconn.CommandTag
		tag, err := pool.Exec(ctx, text, "r:"+subject(), float64(rule.Quota), float64(rule.Quota)/rule.Window.Seconds())
		if err == nil && tag.RowsAffected() != 1 && rule.Quota > 1 {
			err = fmt.Errorf("%d rows", tag.RowsAffected())
		}
		return err
	})
}

// rate measures b.N operations of so many callers.
func rate(b *testing.B, callers int, do func() error) {
	b.Helper()
	b.ResetTimer()
	start := time.Now()
	repeat(b, callers, b.N, do)
	b.StopTimer()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "ops/s")
}
