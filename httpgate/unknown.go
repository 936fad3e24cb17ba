package httpgate

import (
	"log/slog"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// tellUnknown writes what a person needs to find out what became of an
// operation, if nobody knows: the record has no path, and neither the log nor
// the record has the client's key.
func (c *call) tellUnknown(x *exchange, req escapement.Request, v escapement.Verdict) {
	ctx := c.r.Context()
	if v.Fenced || v.Ending.Kind != idempotency.EndedUnknown || !c.m.log.Enabled(ctx, slog.LevelWarn) {
		return
	}
	attrs := []slog.Attr{
		slog.String("method", c.r.Method), slog.String("path", c.r.URL.EscapedPath()),
		slog.String("tenant", req.Key.Tenant), slog.String("key", req.Key.ID.String()),
		slog.String("on_unknown", req.Policy.Terms.OnUnknown.String()),
	}
	if !v.TimedOut && v.Panicked == nil && x.answer.status != 0 { // else the handler may still write it
		attrs = append(attrs, slog.Int("status", x.answer.status))
	}
	for _, a := range []slog.Attr{
		slog.String("route", req.Origin.Route), slog.String("trace", req.Origin.Trace), slog.String("request", req.ID),
	} {
		if a.Value.String() != "" {
			attrs = append(attrs, a)
		}
	}
	c.m.log.LogAttrs(ctx, slog.LevelWarn, "nobody knows how an operation ended", attrs...)
}
