package escapement

import (
	"context"
	"log/slog"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// Counting the abandoned is slow work that nobody waits for: so many pages at
// each sweep, so long between two counts, and so long until a count that has
// not changed is logged again.
const (
	abandonedPages = 10
	abandonedEvery = time.Minute
	abandonedAgain = time.Hour
)

// abandoned counts the records whose outcome has been unknown for long. It is
// used by the sweeper's goroutine alone.
type abandoned struct {
	cursor string
	count  int
	oldest time.Duration // how long ago the oldest changed, by the store's clock
	next   time.Time     // when the next count may begin

	told   int // what was logged last
	toldAt time.Time
}

// countAbandoned goes on with the count, and reports it when it is complete.
func (g *Gate) countAbandoned(ctx context.Context) {
	a := &g.abandoned
	if a.cursor == "" && time.Now().Before(a.next) {
		return
	}
	for range abandonedPages {
		c, cancel := context.WithTimeout(ctx, g.o.RecordsDeadline)
		page, err := g.keeper.List(c, idempotency.Filter{
			Status: idempotency.StatusUnknown, Older: g.o.AbandonedAfter, Cursor: a.cursor, Limit: idempotency.MaxPage,
		})
		cancel()
		if err != nil { // the sweep says when the store is away; begin anew
			a.cursor, a.count, a.oldest = "", 0, 0
			return
		}
		for _, r := range page.Records {
			a.count++
			a.oldest = max(a.oldest, r.AsOf.Sub(r.Updated))
		}
		if a.cursor = page.Next; a.cursor == "" {
			g.tellAbandoned(ctx)
			return
		}
	}
}

// tellAbandoned reports a count that is complete.
func (g *Gate) tellAbandoned(ctx context.Context) {
	a, now := &g.abandoned, time.Now()
	if g.o.Observer != nil {
		var none Request
		g.observe(ctx, &none, Event{Kind: AbandonedCounted, Count: a.count, Oldest: a.oldest, Background: true})
	}
	switch {
	case a.count > 0 && (a.count != a.told || now.Sub(a.toldAt) >= abandonedAgain):
		g.log(ctx, slog.LevelWarn, nil, "operations whose outcome nobody knows wait for a repeat or an operator to settle them",
			slog.Int("count", a.count), slog.Duration("oldest", a.oldest.Truncate(time.Second)))
		a.told, a.toldAt = a.count, now
	case a.count == 0 && a.told > 0:
		g.log(ctx, slog.LevelInfo, nil, "no operation with an unknown outcome is left")
		a.told = 0
	}
	a.count, a.oldest, a.next = 0, 0, now.Add(abandonedEvery)
}
