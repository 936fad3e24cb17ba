package escapement_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// Records and limits in one store: each request is one call of it, and the
// observer sees its parts.
func TestAdmitIsOneCall(t *testing.T) {
	r := newRig(t, escapement.Options{})
	both := &one{faulty: r.net, Store: r.limits}
	g := r.another(escapement.Options{Records: both, Limits: both})
	each, ran := charge("each", ratelimit.Requests, 4), charge("ran", ratelimit.Executions, 1)
	req := request(1)
	req.Charges = []ratelimit.Charge{ran, each}
	op := creating(0)
	told := func() (s string) {
		for _, e := range r.events.all {
			if !e.Together {
				continue
			}
			s += fmt.Sprintf("%v %v %v %d;", e.Kind, e.Claim, e.Allowed, len(e.Levels))
		}
		r.events.all = nil
		return s
	}
	for i, want := range []struct {
		key     uint64
		outcome escapement.Outcome
		levels  string
		events  string
	}{
		{1, escapement.Admitted, "ran each ", "limits_asked refused true 1;limits_asked refused true 1;claimed started false 0;"},
		{1, escapement.Replayed, "each ", "limits_asked refused true 1;claimed replayed false 0;"},
		{2, escapement.Limited, "ran each ", "limits_asked refused true 1;limits_asked refused false 1;"},
		{1, escapement.Replayed, "each ", "limits_asked refused true 1;claimed replayed false 0;"},
		{1, escapement.Limited, "each ", "limits_asked refused false 1;"},
	} {
		req.Key = key(want.key)
		v, err := g.Do(t.Context(), req, op.run)
		levels := ""
		for _, l := range v.Decision.Levels {
			levels += l.Rule.Name + " "
		}
		if err != nil || v.Outcome != want.outcome || levels != want.levels {
			t.Errorf("request %d: %v of %q, %v; want %v of %q", i, v.Outcome, levels, err, want.outcome, want.levels)
		}
		if got := told(); got != want.events {
			t.Errorf("request %d: the observer saw %q, want %q", i, got, want.events)
		}
		if got := both.admits.Load(); got != int64(i+1) {
			t.Errorf("request %d: %d calls", i, got)
		}
	}
	r.wantEffects(op, 1)
	r.wantStatus(key(2), idempotency.StatusFree)

	// Without charges there is nothing to put together, and with records of
	// its own the policy has another store.
	for _, req := range []escapement.Request{
		{Key: key(3), Policy: req.Policy},
		{Key: key(4), Policy: escapement.Policy{Terms: req.Policy.Terms, Timeout: time.Minute, Records: r.store}, Charges: []ratelimit.Charge{charge("x", ratelimit.Requests, 1)}},
	} {
		calls := r.net.count("reserve")
		if v, err := g.Do(t.Context(), req, op.run); err != nil || !v.Recorded {
			t.Errorf("%+v, %v", v, err)
		}
		if got := both.admits.Load(); got != 5 {
			t.Errorf("%d calls of Admit, want 5", got)
		}
		if own := r.net.count("reserve") == calls; own != (req.Policy.Records != nil) {
			t.Errorf("the gate's own records were asked: %v", !own)
		}
		r.wantStatus(req.Key, idempotency.StatusSucceeded)
	}
}

// broken is an Admitter whose calls fail.
type broken struct {
	*one
	err error
}

func (b *broken) Admit(context.Context, []ratelimit.Charge, []ratelimit.Charge, idempotency.Claim) (ratelimit.Decision, idempotency.Answer, error) {
	return ratelimit.Decision{}, idempotency.Answer{}, b.err
}

func TestErrorsOfAdmit(t *testing.T) {
	for _, tt := range []struct {
		err, want, not error
		voids          int
	}{
		{errAway, escapement.ErrRecords, escapement.ErrLimits, 1},
		{fmt.Errorf("%w: a rule is closed", escapement.ErrLimits), escapement.ErrLimits, escapement.ErrRecords, 1},
		{idempotency.ErrFull, escapement.ErrRecords, escapement.ErrLimits, 0},
		{fmt.Errorf("away: %w", idempotency.ErrNotSent), escapement.ErrRecords, escapement.ErrLimits, 0},
	} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, escapement.Options{})
			both := &broken{one: &one{faulty: r.net, Store: r.limits}, err: tt.err}
			g := r.another(escapement.Options{Records: both, Limits: both, MaxRunning: 1})
			req := request(1)
			req.Charges = []ratelimit.Charge{charge("each", ratelimit.Requests, 4)}
			op := creating(0)
			_, err := g.Do(t.Context(), req, op.run)
			if !errors.Is(err, tt.want) || errors.Is(err, tt.not) || !errors.Is(err, tt.err) {
				t.Errorf("%v gives %v", tt.err, err)
			}
			stop := r.work(g)
			pass(time.Minute)
			if got := r.net.count("void"); got != tt.voids {
				t.Errorf("%v: %d calls of Void, want %d", tt.err, got, tt.voids)
			}
			stop()
			r.wantEffects(op, 0)
			r.wantStatus(key(1), idempotency.StatusFree)
		})
	}
}

// uncomparable is an Admitter that cannot be compared with anything.
type uncomparable struct {
	*one
	_ []int
}

func TestStoresThatCannotBeCompared(t *testing.T) {
	r := newRig(t, escapement.Options{})
	both := uncomparable{one: &one{faulty: r.net, Store: r.limits}}
	g := r.another(escapement.Options{Records: both, Limits: both})
	req := request(1)
	req.Charges = []ratelimit.Charge{charge("each", ratelimit.Requests, 4)}
	if v, err := g.Do(t.Context(), req, creating(0).run); err != nil || !v.Recorded || both.admits.Load() != 0 {
		t.Errorf("%+v, %v, %d calls of Admit", v, err, both.admits.Load())
	}
}
