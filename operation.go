package escapement

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// stage says how far an attempt's function is.
type stage uint8

const (
	running  stage = iota
	finished       // it returned, and Do takes its outcome
	givingUp       // its time is over, and Do records that nobody knows
	givenUp        // that is done; whatever it says now, it records itself
)

// outcome is what an attempt's function came to.
type outcome struct {
	ending   idempotency.Ending
	panicked any
	stack    []byte
}

// killGrace is how long a cancelled attempt may take to say how it ended, once
// Shutdown has lost its patience.
const killGrace = time.Second

// errGoexit stands for a panic's value where the function ended its goroutine.
var errGoexit = errors.New("escapement: the operation called runtime.Goexit")

// operation is the function's context: it carries the attempt.
type operation struct {
	context.Context
	run *Run
}

func (o operation) Value(key any) any {
	if key == (runKey{}) {
		return o.run
	}
	return o.Context.Value(key)
}

// perform calls fn, keeps the lease meanwhile, and records the ending.
func (a *Run) perform(v *Verdict, fn func(context.Context, *Run) idempotency.Ending) {
	c, cancel := context.WithCancelCause(operation{a.ctx, a})
	op, stop := context.WithDeadline(c, a.deadline())
	defer stop()
	a.op, a.cancel, a.done = op, cancel, make(chan struct{})
	v.Outcome, v.Ran = Admitted, true
	a.decision = v.Decision

	start := time.Now()
	a.hold()
	go a.call(fn)
	v.TimedOut = !a.wait()

	if v.TimedOut {
		a.ended(v, outcome{}, start)
		a.g.log(a.ctx, slog.LevelWarn, a.req, "an operation was given up",
			slog.Duration("after", time.Since(start)), slog.Any("cause", context.Cause(op)))
		a.record(v, idempotency.UnknownEnding())
		if out, ok := a.afterGivingUp(); ok {
			if e := a.judge(out); e.Kind != idempotency.EndedUnknown {
				v.Panicked = out.panicked
				a.record(v, e)
			}
		}
		return
	}
	v.Panicked = a.out.panicked
	a.ended(v, a.out, start)
	a.record(v, a.judge(a.out))
}

// call runs fn on the attempt's own goroutine.
func (a *Run) call(fn func(context.Context, *Run) idempotency.Ending) {
	var out outcome
	returned := false
	defer func() {
		if !returned {
			out.ending = idempotency.UnknownEnding()
			if out.panicked = recover(); out.panicked == nil {
				out.panicked = errGoexit
			}
			out.stack = debug.Stack()
		}
		a.finish(out)
		a.cancel(nil)
	}()
	out.ending = fn(a.op, a)
	returned = true
}

// finish hands the outcome to Do, or, where Do has given up, records it. It gives
// up the function's part of the slot before Do can return, so that the slot is
// free when Do is over.
func (a *Run) finish(out outcome) {
	a.mu.Lock()
	was := a.stage
	a.out = out
	switch was {
	case running:
		a.stage = finished
		a.release() // not the last: Do has one
		close(a.done)
	case givingUp:
		a.late = true
		a.release()
	}
	a.mu.Unlock()
	if was == givenUp {
		a.recordLate(a.judge(out))
		a.release()
	}
}

// wait keeps the lease until the function is done, and reports false if it gave
// the function up. It uses one timer.
func (a *Run) wait() bool {
	lease := a.req.Policy.Terms.Lease
	deadline := a.deadline()
	beat := a.begin.Add(lease / 3)
	a.mu.Lock()
	if held := a.safe.Add(-lease + lease/3); held.After(beat) {
		beat = held // Hold has just extended it
	}
	a.mu.Unlock()
	kill := a.g.slots.kill.Done()
	timer := time.NewTimer(time.Until(earlier(beat, deadline)))
	defer timer.Stop()
	for {
		select {
		case <-a.done:
			return true
		case <-kill:
			kill = nil
			a.cancel(ErrClosed)
			deadline = earlier(deadline, time.Now().Add(killGrace))
		case <-timer.C:
			now := time.Now()
			if !now.Before(deadline) {
				return !a.giveUp()
			}
			if !now.Before(beat) {
				beat = a.beat(lease)
			}
		}
		timer.Reset(time.Until(earlier(beat, deadline)))
	}
}

// beat renews the lease and returns when to do it again. The call ends with the
// function, and with Shutdown's patience, so that a slow store holds up neither.
func (a *Run) beat(lease time.Duration) time.Time {
	before := time.Now()
	stop := context.AfterFunc(a.g.slots.kill, func() { a.cancel(ErrClosed) })
	err := a.extend(a.op, false)
	stop()
	switch {
	case err == nil && a.leased(before) > lease/2:
		return before.Add(lease / 3)
	case errors.Is(err, idempotency.ErrFenced):
		return a.deadline()
	}
	return time.Now().Add(max(lease/9, time.Millisecond))
}

// leased returns for how long the lease was surely ours at the time t.
func (a *Run) leased(t time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.safe.Sub(t)
}

// giveUp reports whether the function was still running; then its outcome is
// not waited for any more.
func (a *Run) giveUp() bool {
	a.mu.Lock()
	if a.stage != running {
		a.mu.Unlock()
		return false
	}
	a.stage = givingUp
	a.mu.Unlock()
	a.cancel(context.DeadlineExceeded) // where the context's own timer is a moment behind
	return true
}

// afterGivingUp returns the outcome if it came while unknown was recorded. If it
// did not, the function's goroutine records it when it comes.
func (a *Run) afterGivingUp() (outcome, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stage = givenUp
	return a.out, a.late
}

// judge makes an ending of an outcome, and tells of panics and invalid endings.
func (a *Run) judge(out outcome) idempotency.Ending {
	if out.panicked != nil {
		if err, ok := out.panicked.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			a.g.log(a.ctx, slog.LevelWarn, a.req, "an operation was broken off", slog.Any("panic", out.panicked))
		} else {
			a.g.log(a.ctx, slog.LevelError, a.req, "an operation panicked",
				slog.Any("panic", out.panicked), slog.String("stack", string(out.stack)))
		}
		return a.inTransaction(idempotency.UnknownEnding())
	}
	if err := out.ending.Validate(); err != nil {
		a.g.log(a.ctx, slog.LevelError, a.req, "an operation returned an invalid ending, which counts as unknown", slog.Any("err", err))
		return a.inTransaction(idempotency.UnknownEnding())
	}
	if e := out.ending; e.Kind == idempotency.EndedDone && e.Result.Class == idempotency.FailedRetryable && a.stepOpen() {
		a.g.log(a.ctx, slog.LevelWarn, a.req, "a retryable result counts as unknown: nobody knows what became of a step")
		return a.inTransaction(idempotency.UnknownEnding())
	}
	return a.inTransaction(out.ending)
}

// ended tells the observer that the function is over, or given up.
func (a *Run) ended(v *Verdict, out outcome, start time.Time) {
	if a.g.o.Observer == nil {
		return
	}
	a.g.observe(a.ctx, a.req, Event{
		Kind: OperationEnded, Took: time.Since(start), Ending: out.ending,
		TimedOut: v.TimedOut, Panicked: out.panicked != nil,
	})
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a time.Time, others ...time.Time) time.Time {
	for _, b := range others {
		if b.After(a) {
			a = b
		}
	}
	return a
}
