package escapement

import (
	"context"
	"fmt"
	"time"
)

// Shutdown admits nothing more (Do and Limit return ErrClosed) and waits until
// every keyed operation is over and its ending is recorded; it works off what
// is queued, whether Run is running or not. It returns nil when that is done.
// Requests without a key are their server's to wait for.
//
// When ctx ends first, the contexts of the operations that still run are
// cancelled, with ErrClosed as their cause (see context.Cause). What was never
// sent is not run, if the operation says so within a second; whatever says
// nothing in that time is unknown. Shutdown waits for that, and for
// Options.RecordsDeadline more until the endings are recorded; then it returns
// an error that wraps the cause of ctx's end and says how many operations are
// left: their leases run out by themselves.
//
// It may be called more than once, and concurrently.
func (g *Gate) Shutdown(ctx context.Context) error {
	g.slots.close()
	if g.drain(ctx) {
		return nil
	}
	g.slots.cancel()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), killGrace+g.o.RecordsDeadline)
	defer cancel()
	if g.drain(last) {
		return fmt.Errorf("escapement: operations were cancelled: %w", context.Cause(ctx))
	}
	return fmt.Errorf("escapement: %d operations were cancelled and are not recorded: %w", g.slots.open(), context.Cause(ctx))
}

// drain works until no operation is open, and reports false if ctx ended first.
func (g *Gate) drain(ctx context.Context) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		t, ok := g.await(ctx, timer, g.slots.idle)
		if !ok {
			break
		}
		g.queue.run(ctx, t)
	}
	select {
	case <-g.slots.idle:
		return true
	default:
		return false
	}
}
