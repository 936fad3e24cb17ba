package escapement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// Errors of Step, beside ErrRecords and idempotency.ErrFenced, and of the calls
// that it is given. Test with errors.Is.
var (
	// ErrStepUnknown: nobody knows whether the step's call has had an effect,
	// and it must not be made again. The operation's ending is unknown; see
	// EndingOf. The error also wraps that of the call or of Status.
	ErrStepUnknown = errors.New("escapement: nobody knows whether the step had an effect")
	// ErrNotExecuted is for the error of a call that surely has had no effect:
	// nothing was sent, or the provider said that it did nothing and never
	// will.
	ErrNotExecuted = errors.New("escapement: nothing was executed")
)

var errStepUnkeyed = errors.New("escapement: the request has no key, so it has no record that could keep a step: run steps inside the function of a keyed request, with the context that it is given")

// StepResult is what a provider said of a call. A refusal, such as a declined
// card, is a result too: it is what became of the step.
type StepResult struct {
	// ID is the provider's name for the effect, up to idempotency.MaxStepID
	// bytes; it may be empty.
	ID string
	// Answer is what the operation needs to know of it later, in any encoding,
	// up to idempotency.MaxStepAnswer bytes; it may be empty.
	Answer []byte
}

// StepStatus is what a provider says when it is asked for a call.
type StepStatus uint8

const (
	// StepUnclear: it does not say. It is the zero value.
	StepUnclear StepStatus = iota
	// StepFound: the call has had its effect.
	StepFound
	// StepAbsent: it knows of no such call. That must be a clear answer of the
	// system that would know: an empty page of a list that lags behind, or a
	// 404 of a proxy, is unclear.
	StepAbsent
)

// String returns the status in lower case.
func (s StepStatus) String() string {
	switch s {
	case StepUnclear:
		return "unclear"
	case StepFound:
		return "found"
	case StepAbsent:
		return "absent"
	}
	return "invalid"
}

// StepOptions say what a provider offers for finding out what became of a call
// that an earlier attempt has begun. The zero value: nothing; then such a step
// stays unknown.
type StepOptions struct {
	// KeysFor is for how long the provider surely knows a key again that it was
	// sent, and answers a second call with the first one's effect. Within that
	// time after the step was started, the call is made again, with the same
	// key. Leave room for the call's own time: for a provider that keeps keys
	// for a day, say 23 h. 0: it does not know keys.
	KeysFor time.Duration
	// Status asks the provider what became of the call that was made with the
	// key. An error is as good as StepUnclear. It is asked only once the call
	// can no longer be under way: the terms' Quiet must be no less than the
	// policy's Timeout, else Step is an error before anything is called. Nil:
	// the provider cannot be asked.
	Status func(ctx context.Context, key string) (StepResult, StepStatus, error)
}

// Step performs one external effect of the operation that ctx belongs to; see
// [Run.Step]. It is an error, and nothing is called, if ctx belongs to none: the
// request has no key, or ctx is not the one that the operation's function was
// given, nor made from it.
func Step(ctx context.Context, name string, call func(ctx context.Context, key string) (StepResult, error), o StepOptions) (idempotency.Step, error) {
	a := RunFrom(ctx)
	if a == nil {
		return idempotency.Step{}, errStepUnkeyed
	}
	return a.Step(ctx, name, call, o)
}

// Step performs one external effect of the operation, such as a payment, so
// that no attempt makes it twice. Its name is unique within the operation, and
// says nothing of a person: it stands in logs and metrics.
//
// The record says that the step is started before call is called, and what came
// of it afterwards. The key is the step's own: the same for every attempt (see
// idempotency.StepKey), and the stored one if there is one. So:
//
//   - The step is done: it is returned, and nothing is called.
//   - It is new: it is saved as started, then called, once the attempt surely
//     has its key (see Hold).
//   - An earlier attempt has started it and did not say what came of it: within
//     StepOptions.KeysFor, it is called again with the same key. Else Status is
//     asked: what is found is saved as done, and only if there clearly is no
//     such call it is called. In any other case nothing is called, and the
//     error wraps ErrStepUnknown.
//
// An error of call means that nobody knows whether it had an effect, also if its
// context has ended: the step stays started, and the error wraps ErrStepUnknown
// and that of call. Another Step of this name in this attempt calls again only
// within KeysFor: the first call may still be under way. So a definite refusal
// is a result, not an error. An error that wraps ErrNotExecuted says that this
// call did nothing; then a Step of this name may call again, now or in a later
// attempt. The step stays started all the same, and therefore the operation
// cannot be given back: the NotRun of an attempt with a step is unknown (R9), and
// so is a retryable result while it is not known what became of a step's call:
// the next attempt must not begin while that call may still be under way.
//
// What was done is saved with a context of its own, and tried a few times. If
// the store does not take it, the step is returned all the same, and a later
// attempt finds out as if this one had died. ErrFenced: the key has another
// owner, and the result is not this attempt's to use. An id or an answer too
// large to be saved is left out, in what is returned too: the step is done.
//
// The other errors say that this Step has called nothing: ErrRecords, if the
// step could not be saved or the lease is not sure; ErrFenced, if the attempt
// has lost its key or was given up; the cause of ctx, if it has ended; a store
// that keeps no steps, or as many as a record has room for (MaxSteps); a fault
// of the arguments.
//
// Steps of one name are performed one after the other, and the second returns
// what the first has done; those of different names may run at once. A call must
// not perform a step of its own name.
//
// Only an attempt that takes over finds steps, so terms that hold an unknown
// outcome never continue with them: use Retry or Probe. Steps come before the
// operation's own transaction (FenceIn) or after it was rolled back: while a
// transaction holds the record, no step can be saved.
//
// The client that calls the provider must not repeat by itself. net/http does,
// for requests with the field Idempotency-Key: use httpgate.Transport, which
// does not, and which says ErrNotExecuted where nothing was sent. Switch off the
// retries of a provider's own library.
func (a *Run) Step(ctx context.Context, name string, call func(ctx context.Context, key string) (StepResult, error), o StepOptions) (idempotency.Step, error) {
	if err := a.checkStep(name, call != nil, o); err != nil {
		return idempotency.Step{}, err
	}
	s, err := a.step(name)
	if err != nil {
		return idempotency.Step{}, err
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return idempotency.Step{}, fmt.Errorf("escapement: step %q was not called: %w", name, context.Cause(ctx))
	}
	defer func() { <-s.turn }()
	if s.saved.Done {
		return s.result(), nil
	}
	if s.fate == stepNew {
		if err := a.startStep(ctx, s); err != nil {
			return idempotency.Step{}, err
		}
	} else if !s.keyKnown(o) {
		done, err := a.askStep(ctx, s, o)
		if done || err != nil {
			return s.result(), err
		}
	}
	if err := a.callStep(ctx, s, call); err != nil {
		return idempotency.Step{}, err
	}
	return s.result(), nil
}

// result is the step for a caller, who may change its answer.
func (s *step) result() idempotency.Step {
	r := s.saved
	r.Answer = bytes.Clone(r.Answer)
	return r
}

// stepOpen reports whether there is a step of which nobody knows what became of
// its call.
func (a *Run) stepOpen() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.steps == nil {
		return false
	}
	for _, s := range a.steps.all {
		if s.open.Load() {
			return true
		}
	}
	return false
}

// Stepped reports whether the operation has a step that was called, by this
// attempt or an earlier one: then it has, or may have, had an effect.
func (a *Run) Stepped() bool {
	if a == nil || a.g == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.steps == nil {
		return false
	}
	for _, s := range a.steps.all {
		if s.called.Load() {
			return true
		}
	}
	return false
}

// stepFate is what an attempt knows of a step that is not done.
type stepFate uint8

const (
	stepNew    stepFate = iota // nobody has called it
	stepFound                  // an earlier attempt may have called it
	stepCalled                 // this attempt has called it
)

// step is one step of an attempt. Who has its turn may use the rest.
type step struct {
	turn  chan struct{} // has room for one
	saved idempotency.Step
	fate  stepFate
	// open is true while nobody knows what became of a call. It is read without
	// the turn.
	open atomic.Bool
	// called is true once a call may have had an effect.
	called atomic.Bool
	// born is not later than when it was started, by our clock.
	born time.Time
	// over is when the attempt that started it was over, by our clock.
	over time.Time
}

// steps are those of an attempt, by their names. Run.mu guards it.
type steps struct{ all map[string]*step }

func newStep(s idempotency.Step) *step { return &step{turn: make(chan struct{}, 1), saved: s} }

// foundSteps are those that the claim has found. The record's times are the
// store's, at the claim, which our clock began at begin, or later.
func foundSteps(rec idempotency.Record, begin time.Time, timeout time.Duration) *steps {
	all := make(map[string]*step, len(rec.Steps))
	for _, st := range rec.Steps {
		s := newStep(st)
		s.fate = stepFound
		s.open.Store(!st.Done)
		s.called.Store(true)
		s.born = begin.Add(-max(rec.AsOf.Sub(st.Started), 0))
		switch {
		case !rec.Takeover: // a retryable result: its attempt ended at some time within its time-out
			s.over = s.born.Add(timeout)
		case rec.FoundLease.IsZero(): // a store that keeps it in a form of its own
			s.over = begin.Add(-rec.Terms.Quiet)
		default:
			s.over = begin.Add(-rec.AsOf.Sub(rec.FoundLease))
		}
		all[st.Name] = s
	}
	return &steps{all}
}

// keyKnown reports whether the provider surely knows the step's key again.
func (s *step) keyKnown(o StepOptions) bool {
	return o.KeysFor > 0 && s.saved.ProviderKey != "" && time.Since(s.born) < o.KeysFor
}

// checkStep reports what is wrong with a Step before anything is done.
func (a *Run) checkStep(name string, call bool, o StepOptions) error {
	if a.g == nil {
		return errStepUnkeyed
	}
	if _, ok := a.g.store(a.req).(idempotency.StepStore); !ok {
		return errors.New("escapement: the store of records keeps no steps: it is no idempotency.StepStore")
	}
	errs := []error{idempotency.Step{Name: name}.Validate()}
	if !call {
		errs = append(errs, fmt.Errorf("escapement: step %q has no call", name))
	}
	if o.KeysFor < 0 {
		errs = append(errs, fmt.Errorf("escapement: step %q: KeysFor is %v: want 0 or more", name, o.KeysFor))
	}
	if p := a.req.Policy; o.Status != nil && p.Terms.Quiet < p.Timeout {
		errs = append(errs, fmt.Errorf("escapement: step %q has a Status, and the quiet time of the terms is %v: want at least the time-out of the policy, %v, so that the status is asked once the call is no longer under way", name, p.Terms.Quiet, p.Timeout))
	}
	return errors.Join(errs...)
}

// step returns the attempt's step of that name.
func (a *Run) step(name string) (*step, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.steps == nil {
		a.steps = &steps{make(map[string]*step)}
	}
	s := a.steps.all[name]
	if s == nil {
		if len(a.steps.all) >= idempotency.MaxSteps {
			return nil, fmt.Errorf("escapement: step %q is one too many: a record has room for %d", name, idempotency.MaxSteps)
		}
		s = newStep(idempotency.Step{Name: name, ProviderKey: idempotency.StepKey(a.res.Key, name)})
		a.steps.all[name] = s
	}
	return s, nil
}

// startStep saves the step as started. If that fails, or its reply is lost,
// nothing is called, so that it is as new as before.
func (a *Run) startStep(ctx context.Context, s *step) error {
	if err := a.mayCall(ctx, s); err != nil {
		return err
	}
	if s.born.IsZero() {
		s.born = time.Now()
	}
	return a.saveStep(ctx, s.saved)
}

// mayCall makes sure that the attempt still has its key, right before a call.
func (a *Run) mayCall(ctx context.Context, s *step) error {
	if err := a.Hold(ctx); err != nil {
		return fmt.Errorf("escapement: step %q was not called: %w", s.saved.Name, err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("escapement: step %q was not called: %w", s.saved.Name, context.Cause(ctx))
	}
	return nil
}

// callStep calls, and saves what came of it.
func (a *Run) callStep(ctx context.Context, s *step, call func(ctx context.Context, key string) (StepResult, error)) error {
	if err := a.mayCall(ctx, s); err != nil {
		return err
	}
	was := s.fate
	s.fate = stepCalled
	s.open.Store(true)
	s.called.Store(true)
	start := a.g.watch()
	res, err := call(ctx, s.saved.ProviderKey)
	if a.g.o.Observer != nil {
		a.g.observe(a.ctx, a.req, Event{Kind: StepCalled, Took: time.Since(start), Step: s.saved.Name, Err: err})
	}
	switch {
	case errors.Is(err, ErrNotExecuted):
		s.fate = was
		s.open.Store(was != stepNew)
		s.called.Store(was != stepNew)
		return fmt.Errorf("escapement: step %q: %w", s.saved.Name, err)
	case err != nil:
		return stepUnknown(s, err)
	}
	return a.stepDone(s, res)
}

// askStep asks the provider what became of the step's call, and reports whether
// it is done. It is an error if that is not known.
func (a *Run) askStep(ctx context.Context, s *step, o StepOptions) (done bool, err error) {
	switch quiet := a.req.Policy.Terms.Quiet.Truncate(time.Microsecond); {
	case s.fate == stepCalled:
		return false, stepUnknown(s, errors.New("this attempt has called it, and the call may still be under way"))
	case o.Status == nil && o.KeysFor > 0:
		return false, stepUnknown(s, fmt.Errorf("an earlier attempt has started it, longer ago than the provider knows keys (%v)", o.KeysFor))
	case o.Status == nil:
		return false, stepUnknown(s, errors.New("an earlier attempt has started it, and the provider neither knows keys nor can be asked"))
	case time.Since(s.over) < quiet:
		return false, stepUnknown(s, fmt.Errorf("an earlier attempt has started it, and the quiet time of %v is not over", quiet))
	case ctx.Err() != nil:
		return false, stepUnknown(s, context.Cause(ctx))
	}
	start := a.g.watch()
	res, status, err := o.Status(ctx, s.saved.ProviderKey)
	if a.g.o.Observer != nil {
		a.g.observe(a.ctx, a.req, Event{Kind: StepAsked, Took: time.Since(start), Step: s.saved.Name, StepStatus: status, Err: err})
	}
	switch {
	case err != nil:
		return false, stepUnknown(s, err)
	case status == StepFound:
		return true, a.stepDone(s, res)
	case status == StepAbsent:
		return false, nil
	}
	return false, stepUnknown(s, errors.New("the provider was asked, and its answer is not clear"))
}

func stepUnknown(s *step, err error) error {
	return fmt.Errorf("%w: step %q: %w", ErrStepUnknown, s.saved.Name, err)
}

// stepDone saves the result. Only a fence takes it away from the attempt.
func (a *Run) stepDone(s *step, res StepResult) error {
	done := s.saved
	done.Done, done.ProviderID, done.Answer = true, res.ID, bytes.Clone(res.Answer)
	if len(done.ProviderID) > idempotency.MaxStepID || len(done.Answer) > idempotency.MaxStepAnswer {
		a.g.log(a.ctx, slog.LevelError, a.req, "a step's id or answer is too large to be kept, and is left out",
			slog.String("step", done.Name), slog.Int("id", len(done.ProviderID)), slog.Int("answer", len(done.Answer)))
		if len(done.ProviderID) > idempotency.MaxStepID {
			done.ProviderID = ""
		}
		if len(done.Answer) > idempotency.MaxStepAnswer {
			done.Answer = nil
		}
	}
	switch err := a.saveStep(a.ctx, done); {
	case errors.Is(err, idempotency.ErrFenced):
		return err
	case errors.Is(err, idempotency.ErrStep): // the record says something else of it
		return stepUnknown(s, err)
	case err != nil:
		a.g.log(a.ctx, slog.LevelWarn, a.req, "that a step is done could not be saved",
			slog.String("step", done.Name), slog.Any("err", err))
	}
	s.saved = done
	s.open.Store(false)
	return nil
}

// saveStep brings the step to the store, in a few tries.
func (a *Run) saveStep(ctx context.Context, st idempotency.Step) error {
	a.mu.Lock()
	tx := a.fenced
	a.mu.Unlock()
	limit := time.Now().Add(a.g.o.RecordsDeadline)
	pause := endPause
	for try := 1; ; try++ {
		err := a.saveStepOnce(ctx, st, tx)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, idempotency.ErrFenced):
			a.lose()
			return fmt.Errorf("escapement: step %q: %w", st.Name, err)
		case errors.Is(err, idempotency.ErrStep):
			return fmt.Errorf("escapement: step %q: %w", st.Name, err)
		case tx:
			return fmt.Errorf("%w: step %q cannot be saved while a transaction of the operation's own holds the record: steps come before FenceIn: %w", ErrRecords, st.Name, err)
		case try == endTries || ctx.Err() != nil || time.Now().Add(pause).After(limit):
			return fmt.Errorf("%w: step %q: %w", ErrRecords, st.Name, err)
		}
		select {
		case <-time.After(jitter(pause)):
		case <-ctx.Done():
		}
		pause *= 4
	}
}

// saveStepOnce is one call of SaveStep.
func (a *Run) saveStepOnce(ctx context.Context, st idempotency.Step, tx bool) error {
	store, _ := a.g.store(a.req).(idempotency.StepStore) // see checkStep
	start := a.g.watch()
	b := within(ctx, a.g.o.RecordsDeadline)
	err := store.SaveStep(b, a.res, st)
	b.end()
	if a.g.o.Observer != nil {
		a.g.observe(a.ctx, a.req, Event{Kind: StepSaved, Took: time.Since(start), Step: st.Name, StepDone: st.Done, Err: err})
	}
	switch {
	case errors.Is(err, idempotency.ErrStep):
		a.g.records.saw(a.ctx, a.g, a.req, nil) // an answer of the store
	case err == nil, errors.Is(err, idempotency.ErrFenced), ctx.Err() == nil && !tx: // else the caller was in a hurry, or has locked the record
		a.g.records.saw(a.ctx, a.g, a.req, err)
	}
	return err
}
