package escapement

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// Pauses between the tries of one task, and how many tasks are tried at a time.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
	workers    = 64
)

// Run does what no client waits for, until ctx ends: it tells the record store
// what it could not be told before (withdrawn claims, endings, late results,
// the fates of transactions), with pauses that grow from 50 ms to 5 s, keeping
// the leases of what is known and waits; and it sweeps the store, every
// Options.SweepEvery, where that is a Keeper, and counts the abandoned there. It returns nil when ctx has ended
// and its last calls have returned; what is left stays queued.
//
// A program runs it once per Gate, for as long as it serves. A second Run at
// the same time is an error. Without it nothing is swept, and what is queued is
// tried only by later keyed calls of Do, one task each, and by Shutdown.
func (g *Gate) Run(ctx context.Context) error {
	if !g.working.CompareAndSwap(false, true) {
		return errors.New("escapement: Gate.Run is running already")
	}
	defer g.working.Store(false)
	var wg sync.WaitGroup
	defer wg.Wait()
	if g.keeper != nil {
		wg.Go(func() { g.sweep(ctx) })
	}
	free := make(chan struct{}, workers)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		t, ok := g.await(ctx, timer, nil)
		if !ok {
			return nil
		}
		wg.Go(func() {
			defer func() { <-free }()
			g.queue.run(ctx, t)
		})
	}
}

// await returns the next task when it is due; false when ctx ends or stop is
// closed.
func (g *Gate) await(ctx context.Context, timer *time.Timer, stop <-chan struct{}) (*task, bool) {
	for ctx.Err() == nil {
		t, in, some := g.queue.next()
		if t != nil {
			return t, true
		}
		if some {
			timer.Reset(in)
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
		case <-stop:
			return nil, false
		case <-g.queue.wake:
		case <-timer.C:
		}
	}
	return nil, false
}

// help tries one task that is due, where nobody else does.
func (g *Gate) help(ctx context.Context) {
	if g.queue.n.Load() == 0 || g.working.Load() {
		return
	}
	if t, _, _ := g.queue.next(); t != nil {
		g.queue.run(ctx, t)
	}
}

// call bounds a call of the record store that nobody waits for: by its own
// deadline, and by the worker's context. The values are the request's.
func (g *Gate) call(values, worker context.Context) (context.Context, func()) {
	c, cancel := context.WithTimeout(values, g.o.RecordsDeadline)
	stop := context.AfterFunc(worker, cancel)
	return c, func() { stop(); cancel() }
}

// void withdraws the attempt's claim in the background (R10): it may be in the
// store, or come there late.
func (a *Run) void(o idempotency.Owner) {
	a.hold()
	a.g.queue.add(&task{cap: lastPause, try: func(worker context.Context) bool {
		start := a.g.watch()
		c, end := a.g.call(a.ctx, worker)
		err := a.g.store(a.req).Void(c, a.req.Key, o)
		end()
		if a.g.o.Observer != nil {
			a.g.observe(a.ctx, a.req, Event{Kind: ClaimVoided, Took: time.Since(start), Err: err, Background: true})
		}
		if worker.Err() == nil {
			a.g.records.saw(a.ctx, a.g, a.req, err)
		}
		if err != nil {
			return false
		}
		a.release()
		return true
	}})
}

// owed is an ending that the store does not have. It has at most one task,
// whatever the function says meanwhile.
type owed struct {
	ending  idempotency.Ending
	version int
	queued  bool
}

// replace puts e in the place of the ending that the background is trying to
// record, and reports false if there is none.
func (o *owed) replace(e idempotency.Ending) bool {
	if o.queued {
		o.ending, o.version = e, o.version+1
	}
	return o.queued
}

// owe leaves the ending to the background.
func (a *Run) owe(e idempotency.Ending) {
	a.mu.Lock()
	if a.owed.replace(e) {
		a.mu.Unlock()
		return
	}
	a.owed.ending, a.owed.queued = e, true
	a.mu.Unlock()
	a.hold()
	a.g.log(a.ctx, slog.LevelWarn, a.req, "an ending is not recorded yet", slog.String("ending", e.Kind.String()))
	pause := lastPause
	if e.Kind != idempotency.EndedUnknown { // often enough to keep the lease
		pause = min(pause, max(a.req.Policy.Terms.Lease/3, firstPause))
	}
	a.g.queue.add(&task{cap: pause, due: time.Now().Add(jitter(min(firstPause, pause))), try: a.pay})
}

// amend is owed.replace under the lock.
func (a *Run) amend(e idempotency.Ending) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.owed.replace(e)
}

// pay tries to record what is owed.
func (a *Run) pay(worker context.Context) bool {
	a.mu.Lock()
	e, version := a.owed.ending, a.owed.version
	a.mu.Unlock()
	s, err := a.settleOnce(e, true)
	if err != nil {
		if e.Kind != idempotency.EndedUnknown && worker.Err() == nil {
			a.keep(worker)
		}
		return false
	}
	a.mu.Lock()
	if a.owed.version != version { // the function has said something else meanwhile
		a.mu.Unlock()
		return false
	}
	a.owed.queued = false
	a.mu.Unlock()
	a.tellLate(s)
	a.release()
	return true
}

// keep renews the lease of an ending that waits for its record, once a third of
// it is over, so that meanwhile the key is in progress and not unknown. If
// somebody else has the key, the next try will find out.
func (a *Run) keep(worker context.Context) {
	lease := a.req.Policy.Terms.Lease
	a.mu.Lock()
	fresh := time.Until(a.safe) > lease-lease/3
	a.mu.Unlock()
	if fresh {
		return
	}
	c, end := a.g.call(a.ctx, worker)
	defer end()
	_ = a.extend(c, true) // pay is tried again whatever it says
}
