package escapement

import (
	"context"
	"time"
)

// sweepBatch is how many records one Sweep may remove, and after it the sweeper
// rests for sweepRest times as long as that took: what clients wait for goes
// first, also where half a million records are due at once.
const (
	sweepBatch = 500
	sweepRest  = 3
)

// sweep cleans the record store, and counts what is abandoned, until ctx ends.
func (g *Gate) sweep(ctx context.Context) {
	tick := time.NewTicker(g.o.SweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.sweepAll(ctx)
			g.countAbandoned(ctx)
		}
	}
}

// sweepAll sweeps in batches until one is not full.
func (g *Gate) sweepAll(ctx context.Context) {
	var none Request
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case <-rest.C:
		case <-ctx.Done():
			return
		}
		start := time.Now()
		c, cancel := context.WithTimeout(ctx, g.o.RecordsDeadline)
		n, err := g.keeper.Sweep(c, sweepBatch)
		cancel()
		if g.o.Observer != nil {
			g.observe(ctx, &none, Event{Kind: RecordsSwept, Took: time.Since(start), Count: n, Err: err, Background: true})
		}
		if ctx.Err() == nil {
			g.records.saw(ctx, g, nil, err)
		}
		if err != nil || n < sweepBatch {
			return
		}
		rest.Reset(sweepRest * time.Since(start))
	}
}
