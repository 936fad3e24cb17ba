package escapement_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// provider is somebody else's system, which counts what it is told to do.
type provider struct {
	mu      sync.Mutex
	knows   bool           // keys
	effects map[string]int // by key
	calls   []string       // the keys, in order
	asked   int
	key     string        // of the call that a test makes itself
	fails   error         // after the effect
	takes   time.Duration // before the effect
}

func newProvider(knowsKeys bool) *provider {
	return &provider{knows: knowsKeys, effects: map[string]int{}}
}

func (p *provider) call(_ context.Context, key string) (escapement.StepResult, error) {
	p.mu.Lock()
	p.calls = append(p.calls, key)
	takes := p.takes
	p.mu.Unlock()
	if takes > 0 {
		<-time.After(takes)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.effects[key] == 0 || !p.knows {
		p.effects[key]++
	}
	return escapement.StepResult{ID: "ch_" + key, Answer: []byte("paid")}, p.fails
}

func (p *provider) status(_ context.Context, key string) (escapement.StepResult, escapement.StepStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.effects[key] == 0 {
		return escapement.StepResult{}, escapement.StepAbsent, nil
	}
	return escapement.StepResult{ID: "ch_" + key, Answer: []byte("paid")}, escapement.StepFound, nil
}

func (p *provider) options() escapement.StepOptions {
	if p.knows {
		return escapement.StepOptions{KeysFor: 23 * time.Hour}
	}
	return escapement.StepOptions{Status: p.status}
}

// count returns how many effects there were, and of how many keys.
func (p *provider) count() (effects, keys int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.effects {
		effects += n
	}
	return effects, len(p.effects)
}

func (p *provider) want(t *testing.T, effects, calls int) {
	t.Helper()
	got, keys := p.count()
	if got != effects || keys > 1 || len(p.calls) != calls {
		t.Errorf("%d effects with %d keys in %d calls, want %d in %d", got, keys, len(p.calls), effects, calls)
	}
}

// probing are terms with which steps continue.
func probing(n uint64) escapement.Request {
	r := request(n)
	r.Policy.Terms.OnUnknown = idempotency.Probe
	return r
}

// pay is an operation of one step.
func (p *provider) pay(ctx context.Context, a *escapement.Run) idempotency.Ending {
	s, err := a.Step(ctx, "pay", p.call, p.options())
	if err != nil {
		return escapement.EndingOf(err)
	}
	return idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: []byte(s.ProviderID + " " + string(s.Answer))})
}

// both runs f with a provider that knows keys and with one that can be asked.
func both(t *testing.T, f func(t *testing.T, p *provider)) {
	t.Helper()
	for _, knows := range []bool{true, false} {
		t.Run(map[bool]string{true: "keys", false: "status"}[knows], func(t *testing.T) {
			bubble(t, func(t *testing.T) { f(t, newProvider(knows)) })
		})
	}
}

// died is what an attempt panics with whose node dies.
var died = errors.New("the node died")

// P2: an attempt's node dies at every point of a step; the next attempt ends
// the operation, and the provider has done it once.
func TestP2CrashAtEveryPointOfAStep(t *testing.T) {
	type crash struct {
		name    string
		step    func(n int) (f fault, die bool) // at the n-th SaveStep
		call    func(p *provider) (escapement.StepResult, error)
		effects int // of the attempt that died
		calls   int // in the end
	}
	dead := fault{before: errAway}
	for _, c := range []crash{
		{name: "before the start is saved", step: func(int) (fault, bool) { return dead, true }, calls: 1},
		{name: "after the start is saved", step: func(int) (fault, bool) { return fault{after: errAway}, true }, calls: 1},
		{name: "before the call", call: func(*provider) (escapement.StepResult, error) { panic(died) }, calls: 1},
		{name: "in the call", call: func(p *provider) (escapement.StepResult, error) {
			p.mu.Lock()
			p.calls = append(p.calls, "")
			p.mu.Unlock()
			panic(died)
		}, calls: 2},
		{name: "after the call", call: func(p *provider) (escapement.StepResult, error) {
			if _, err := p.call(context.Background(), p.key); err != nil {
				return escapement.StepResult{}, err
			}
			panic(died)
		}, effects: 1, calls: 1},
		{name: "before the end is saved", step: func(n int) (fault, bool) { return dead, n > 0 }, effects: 1, calls: 1},
		{name: "after the end is saved", step: func(n int) (fault, bool) { return fault{after: errAway}, n > 0 }, effects: 1, calls: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			both(t, func(t *testing.T, p *provider) {
				r := newRig(t, escapement.Options{})
				healthy := r.another(escapement.Options{Records: r.store})
				dies := false
				r.net.set(func(op string, n int) fault {
					switch {
					case dies:
						return dead
					case op == "step" && c.step != nil:
						f, die := c.step(n)
						if dies = die; die {
							return f
						}
					}
					return fault{}
				})
				req := probing(1)
				first, err := r.gate.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
					call := p.call
					if c.call != nil {
						call = func(_ context.Context, key string) (escapement.StepResult, error) {
							p.key = key
							defer func() {
								r.net.mu.Lock()
								dies = true
								r.net.mu.Unlock()
							}()
							return c.call(p)
						}
					}
					if _, err := a.Step(ctx, "pay", call, p.options()); err == nil && c.effects == 0 {
						t.Error("the step went on")
					}
					panic(died)
				})
				if err != nil || first.Recorded || first.Panicked == nil {
					t.Fatalf("%+v, %v", first, err)
				}
				p.want(t, c.effects, len(p.calls))
				// Its lease ends 15 s after the claim, or after its last renewal.
				op := &operation{ending: idempotency.Done(created)}
				for since := time.Duration(0); since < 74*time.Second; since += time.Second {
					if v, err := healthy.Do(t.Context(), req, op.run); err != nil || v.Outcome != escapement.InProgress {
						t.Fatalf("after %v: %v, %v", since, v.Outcome, err)
					}
					pass(time.Second)
				}
				pass(10 * time.Second)
				v, err := healthy.Do(t.Context(), req, p.pay)
				want := "ch_" + idempotency.StepKey(req.Key, "pay") + " paid"
				if err != nil || !v.Recorded || string(v.Ending.Result.Payload) != want {
					t.Fatalf("%+v, %v", v, err)
				}
				calls := c.calls
				if p.knows && c.effects == 1 && c.name != "after the end is saved" {
					calls++ // with the same key
				}
				p.want(t, 1, calls)
				rec, _ := r.record(req.Key)
				if len(rec.Steps) != 1 || !rec.Steps[0].Done || rec.Steps[0].ProviderID != "ch_"+idempotency.StepKey(req.Key, "pay") || !rec.Takeover {
					t.Errorf("%+v", rec)
				}
				if v, err := r.another(escapement.Options{Records: r.store}).Do(t.Context(), req, p.pay); err != nil || v.Outcome != escapement.Replayed {
					t.Errorf("the repeat: %v, %v", v.Outcome, err)
				}
				p.want(t, 1, calls)
			})
		})
	}
}

// The reply to a SaveStep is lost, or takes its time, once or for long: nothing
// is called whose start is not known to be saved, and what was done stays done.
func TestP2LostRepliesOfSaveStep(t *testing.T) {
	for _, at := range []int{0, 1} { // the start, the end
		for _, kind := range kinds {
			for _, times := range []int{1, 3, 1000} {
				t.Run(fmt.Sprintf("%d/%s/%d times", at, kind.name, times), func(t *testing.T) {
					both(t, func(t *testing.T, p *provider) {
						r := newRig(t, escapement.Options{})
						saves, bad := 0, false
						r.net.set(func(op string, n int) fault {
							if op == "step" {
								if saves++; saves > at && saves <= at+times {
									bad = true
									return kind.fault
								}
							}
							return fault{}
						})
						req := probing(1)
						var done idempotency.Step
						var failed error
						v, err := r.gate.Do(t.Context(), req, func(ctx context.Context, a *escapement.Run) idempotency.Ending {
							done, failed = a.Step(ctx, "pay", p.call, p.options())
							return escapement.EndingOf(failed)
						})
						if err != nil || !bad || !v.Recorded {
							t.Fatalf("%+v, %v", v, err)
						}
						if failed != nil {
							if at != 0 || !errors.Is(failed, escapement.ErrRecords) || errors.Is(failed, escapement.ErrStepUnknown) {
								t.Fatal(failed)
							}
							p.want(t, 0, 0)
						} else {
							if !done.Done || string(done.Answer) != "paid" {
								t.Errorf("%+v", done)
							}
							p.want(t, 1, 1)
						}
						r.net.set(nil)
						pass(90 * time.Second)
						v, err = r.gate.Do(t.Context(), req, p.pay)
						if err != nil || v.Outcome != escapement.Admitted || !v.Recorded || v.Ending.Kind != idempotency.EndedDone {
							t.Fatalf("the next attempt: %+v, %v", v, err)
						}
						if got, _ := p.count(); got != 1 {
							t.Errorf("%d effects, want 1", got)
						}
					})
				})
			}
		}
	}
}
