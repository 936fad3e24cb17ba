package escapement

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// Tries of a call that a client waits for, and the pause after the first; each
// is four times as long as the one before. No try begins once RecordsDeadline
// is over.
const (
	endTries = 4
	endPause = 10 * time.Millisecond
)

// settled is what the store has of an attempt that is over.
type settled struct {
	ending  idempotency.Ending // if not fenced
	fenced  bool
	outcome Outcome            // if fenced
	record  idempotency.Record // if fenced
}

// EndingOf returns the ending of an operation that failed with err:
//
//   - err wraps ErrStepUnknown: unknown.
//   - err wraps ErrNotExecuted: NotRun. Return such an error only if the
//     operation has had no effect outside of its steps and its transaction.
//   - err is, or wraps, one of a database that says that it has rolled the
//     operation's transaction back because of others (SQLSTATE 40001,
//     serialization failure, and 40P01, deadlock): a temporary failure without
//     effect, which the next repeat runs again. It is found by its method
//     SQLState() string, as drivers of PostgreSQL have it.
//   - Anything else, and nil, which says nothing of a result: unknown.
//
// It is a default: whoever knows more says so.
func EndingOf(err error) idempotency.Ending {
	switch {
	case err == nil || errors.Is(err, ErrStepUnknown):
		return idempotency.UnknownEnding()
	case errors.Is(err, ErrNotExecuted):
		return idempotency.NotRun()
	case rolledBack(err):
		return idempotency.Done(idempotency.Result{Class: idempotency.FailedRetryable, Status: http.StatusServiceUnavailable})
	}
	return idempotency.UnknownEnding()
}

// rolledBack reports whether a database says that it has rolled a transaction
// back that may pass if it is run again.
func rolledBack(err error) bool {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		return false
	}
	s := state.SQLState()
	return s == "40001" || s == "40P01"
}

// record brings the ending to the store and the verdict. If the store does not
// take it, the background goes on (see Gate.Run).
func (a *Run) record(v *Verdict, e idempotency.Ending) {
	v.Ending, v.Recorded = e, false
	tries := endTries
	if !v.Ran {
		tries = 1
	}
	s, err := a.settle(e, tries)
	if err != nil {
		if a.transaction() { // not even its fate is known
			v.Ending = idempotency.UnknownEnding()
		}
		a.owe(e)
		return
	}
	if !s.fenced {
		a.amend(s.ending) // where an earlier word of it still waits
	}
	v.settledBy(s)
}

// settledBy completes the verdict with what the store has.
func (v *Verdict) settledBy(s settled) {
	if s.fenced {
		v.Fenced, v.Recorded, v.Outcome, v.Record = true, false, s.outcome, s.record
		return
	}
	v.Ending, v.Recorded = s.ending, true
}

// settle tries a few times to bring e to the store.
func (a *Run) settle(e idempotency.Ending, tries int) (settled, error) {
	limit := time.Now().Add(a.g.o.RecordsDeadline)
	pause := endPause
	for try := 1; ; try++ {
		s, err := a.settleOnce(e, false)
		if err == nil || try == tries || time.Now().Add(pause).After(limit) {
			return s, err
		}
		time.Sleep(jitter(pause))
		pause *= 4
	}
}

// settleOnce brings e to the store, or finds out what the store has instead. If
// EndIn was called, the store is asked first: the transaction decides.
func (a *Run) settleOnce(e idempotency.Ending, background bool) (settled, error) {
	if a.transaction() {
		rec, err := a.g.lookup(a.ctx, a.req)
		switch {
		case err != nil && !errors.Is(err, idempotency.ErrNotFound):
			return settled{}, err
		case err != nil || !a.owns(rec) || rec.State != idempotency.Held:
			return a.read(rec, err), nil
		}
	}
	err := a.end(e, background)
	switch {
	case err == nil:
		return settled{ending: e}, nil
	case errors.Is(err, idempotency.ErrFenced):
		return a.look(), nil
	}
	return settled{}, err
}

// end is one call of End.
func (a *Run) end(e idempotency.Ending, background bool) error {
	start := a.g.watch()
	b := within(a.ctx, a.g.o.RecordsDeadline)
	err := a.g.store(a.req).End(b, a.res, e)
	b.end()
	if a.g.o.Observer != nil {
		a.g.observe(a.ctx, a.req, Event{Kind: EndingRecorded, Took: time.Since(start), Ending: e, Err: err, Background: background})
	}
	a.g.records.saw(a.ctx, a.g, a.req, err)
	return err
}

// look asks the record what the answer of a fenced attempt is.
func (a *Run) look() settled {
	rec, err := a.g.lookup(a.ctx, a.req)
	return a.read(rec, err)
}

// read says what a record means to the attempt that was fenced off from it.
//
// A record of its own with a result is no fence at all: a transaction has
// committed it, or a late result came first. A key that is gone (an operator
// forgot it, or it expired) says nothing of what this attempt did: unknown. If
// the store does not say, somebody else holds the key as far as is known, and
// the client's next try asks again: in progress. The same goes for a successor
// that has lost the key in its turn: the next try takes it over, unless the
// terms hold it.
func (a *Run) read(rec idempotency.Record, err error) settled {
	s := settled{fenced: true, outcome: InProgress, record: rec}
	switch {
	case errors.Is(err, idempotency.ErrNotFound):
		s.outcome, s.record = Unknown, idempotency.Record{Key: a.req.Key}
	case err != nil:
		s.record = idempotency.Record{Key: a.req.Key}
	case rec.State == idempotency.Ended && a.owns(rec):
		return settled{ending: idempotency.Done(rec.Result)}
	case rec.State == idempotency.Ended:
		s.outcome = Replayed
	case rec.State == idempotency.Shrunk:
		s.outcome = Archived
	case rec.Status() == idempotency.StatusUnknown && rec.Terms.OnUnknown == idempotency.Hold:
		s.outcome = Unknown
	}
	return s
}

// owns reports whether the record's last attempt is this one.
func (a *Run) owns(rec idempotency.Record) bool {
	return rec.Owner == a.res.Owner && rec.Token == a.res.Token
}

// recordLate records what a function said after Do had given it up. Nobody
// waits for it.
func (a *Run) recordLate(e idempotency.Ending) {
	if e.Kind == idempotency.EndedUnknown {
		return
	}
	if a.amend(e) {
		return
	}
	s, err := a.settleOnce(e, true)
	if err != nil {
		a.owe(e)
		return
	}
	a.tellLate(s)
}

func (a *Run) tellLate(s settled) {
	if s.fenced {
		a.g.log(a.ctx, slog.LevelWarn, a.req, "a late ending was not recorded: the key has another owner or none",
			slog.String("record", s.outcome.String()))
		return
	}
	a.g.log(a.ctx, slog.LevelInfo, a.req, "an ending was recorded late", slog.String("ending", s.ending.Kind.String()))
}

// jitter returns a random duration from half of d to d.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}
