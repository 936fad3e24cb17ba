package escapement

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// watch is the time now if anybody wants to know how long something takes.
func (g *Gate) watch() time.Time {
	if g.o.Observer == nil {
		return time.Time{}
	}
	return time.Now()
}

// observe completes e with what identifies the request. Callers on the hot
// path ask for the Observer first, so as not to build the event.
func (g *Gate) observe(ctx context.Context, r *Request, e Event) {
	if g.o.Observer == nil {
		return
	}
	e.Key, e.Origin, e.RequestID = r.Key, r.Origin, r.ID
	e.Ending.Result.Payload = nil
	g.o.Observer.Observe(ctx, e)
}

// log writes one line. The client's own key and the payload never stand in it.
func (g *Gate) log(ctx context.Context, level slog.Level, r *Request, msg string, attrs ...slog.Attr) {
	if !g.o.Logger.Enabled(ctx, level) {
		return
	}
	all := make([]slog.Attr, 0, 4+len(attrs))
	if r != nil {
		if r.Origin.Trace != "" {
			all = append(all, slog.String("trace", r.Origin.Trace))
		}
		if r.ID != "" {
			all = append(all, slog.String("request", r.ID))
		}
		if r.keyed() {
			all = append(all, slog.String("key", r.Key.ID.String()))
		}
		if r.Origin.Route != "" {
			all = append(all, slog.String("route", r.Origin.Route))
		}
	}
	g.o.Logger.LogAttrs(ctx, level, msg, append(all, attrs...)...)
}

// health remembers whether a store answers, so that an outage is two lines in
// the log and not two per request.
type health struct {
	what   string
	away   atomic.Bool
	failed atomic.Pointer[time.Time] // the last failure; set while away
}

// calmTime is how long no call fails before a store counts as available again:
// of calls at one time some may fail and others not, as where a limiter is away
// and some limits have a policy for that.
const calmTime = time.Second

// saw takes note of a call's error. ErrFenced is an answer of the store;
// ErrNotFound, the other one, does not come here (see Gate.lookup).
func (h *health) saw(ctx context.Context, g *Gate, r *Request, err error) {
	if errors.Is(err, idempotency.ErrFenced) {
		err = nil
	}
	if err != nil {
		now := time.Now()
		h.failed.Store(&now)
		level := slog.LevelDebug
		if h.away.CompareAndSwap(false, true) {
			level = slog.LevelWarn
		}
		g.log(ctx, level, r, "the "+h.what+" is unavailable", slog.Any("err", err))
		return
	}
	if h.away.Load() && time.Since(*h.failed.Load()) >= calmTime && h.away.CompareAndSwap(true, false) {
		g.log(ctx, slog.LevelInfo, r, "the "+h.what+" is available again")
	}
}
