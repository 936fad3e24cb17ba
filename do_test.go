package escapement_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

func TestDoOnceThenReplay(t *testing.T) {
	paths(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		op := creating(0)
		v, err := r.gate.Do(t.Context(), request(1), op.run)
		if err != nil || v.Outcome != escapement.Admitted || !v.Ran || !v.Recorded || !v.Ending.Result.Equal(created) {
			t.Fatalf("first: %+v, %v", v, err)
		}
		v, err = r.gate.Do(t.Context(), request(1), op.run)
		if err != nil || v.Outcome != escapement.Replayed || v.Ran || !v.Record.Result.Equal(created) {
			t.Fatalf("second: %+v, %v", v, err)
		}
		r.wantEffects(op, 1)
		decided := r.events.of(escapement.Decided)
		if len(decided) != 2 || decided[0].Verdict != escapement.Admitted || decided[1].Verdict != escapement.Replayed {
			t.Errorf("events: %+v", decided)
		}
		for _, e := range r.events.all {
			if e.Ending.Result.Payload != nil {
				t.Errorf("the event %v shows a payload", e.Kind)
			}
			if e.Key != key(1) || e.RequestID != "request" || e.Origin.Trace != "trace" {
				t.Errorf("the event %v does not say whose it is: %+v", e.Kind, e)
			}
		}
	})
}

// Every answer that a record can give.
func TestOutcomes(t *testing.T) {
	type prepared struct {
		name string
		make func(r *rig, req escapement.Request)
		want escapement.Outcome
		runs int
	}
	attempt := func(e idempotency.Ending) func(*rig, escapement.Request) {
		return func(r *rig, req escapement.Request) {
			v, err := r.gate.Do(context.Background(), req, func(context.Context, *escapement.Run) idempotency.Ending { return e })
			if err != nil || !v.Recorded || v.Ending.Kind != e.Kind {
				r.Fatalf("%+v, %v", v, err)
			}
		}
	}
	temporary := idempotency.Result{Class: idempotency.FailedRetryable, Status: 503, Window: 2 * time.Second}
	for _, c := range []prepared{
		{"free", func(*rig, escapement.Request) {}, escapement.Admitted, 1},
		{"succeeded", attempt(idempotency.Done(created)), escapement.Replayed, 0},
		{"failed", attempt(idempotency.Done(idempotency.Result{Class: idempotency.FailedFinal, Status: 400})), escapement.Replayed, 0},
		{"in its window", attempt(idempotency.Done(temporary)), escapement.Replayed, 0},
		{"after its window", func(r *rig, req escapement.Request) {
			attempt(idempotency.Done(temporary))(r, req)
			pass(2 * time.Second)
		}, escapement.Admitted, 1},
		{"not run", attempt(idempotency.NotRun()), escapement.Admitted, 1},
		{"unknown", attempt(idempotency.UnknownEnding()), escapement.Unknown, 0},
		{"an ending nobody filled in", attempt(idempotency.Ending{}), escapement.Unknown, 0},
		{"expired", func(r *rig, req escapement.Request) {
			attempt(idempotency.Done(created))(r, req)
			pass(24 * time.Hour)
		}, escapement.Admitted, 1},
		{"archived", func(r *rig, req escapement.Request) {
			req.Policy.Terms.Remember = 48 * time.Hour
			attempt(idempotency.Done(created))(r, req)
			pass(25 * time.Hour)
		}, escapement.Archived, 0},
		{"held by another", func(r *rig, req escapement.Request) {
			c := idempotency.Claim{Key: req.Key, Owner: idempotency.NewOwner(), Terms: req.Policy.Terms}
			if _, err := r.store.Reserve(context.Background(), c); err != nil {
				r.Fatal(err)
			}
		}, escapement.InProgress, 0},
		{"left by a dead one", func(r *rig, req escapement.Request) {
			c := idempotency.Claim{Key: req.Key, Owner: idempotency.NewOwner(), Terms: req.Policy.Terms}
			if _, err := r.store.Reserve(context.Background(), c); err != nil {
				r.Fatal(err)
			}
			pass(15 * time.Second)
		}, escapement.Unknown, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, escapement.Options{})
				c.make(r, request(1))
				op := creating(0)
				v, err := r.gate.Do(t.Context(), request(1), op.run)
				if err != nil || v.Outcome != c.want || v.Ran != (c.runs > 0) {
					t.Errorf("%v (ran: %v), %v; want %v", v.Outcome, v.Ran, err, c.want)
				}
				if v.Outcome != escapement.Admitted && v.Record.State == idempotency.Free {
					t.Error("an answer from the record, without the record")
				}
				r.wantEffects(op, c.runs)
			})
		})
	}
}

func TestFaultyRequests(t *testing.T) {
	r := newRig(t, escapement.Options{})
	bare, err := escapement.New(escapement.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		gate *escapement.Gate
		edit func(*escapement.Request)
	}{
		"no time-out":    {r.gate, func(q *escapement.Request) { q.Policy.Timeout = 0 }},
		"fail":           {r.gate, func(q *escapement.Request) { q.Policy.Terms.OnUnknown = idempotency.Fail }},
		"no lease":       {r.gate, func(q *escapement.Request) { q.Policy.Terms.Lease = 0 }},
		"no tenant":      {r.gate, func(q *escapement.Request) { q.Key.Tenant = "" }},
		"two equal tags": {r.gate, func(q *escapement.Request) { q.Prints = make([]idempotency.Fingerprint, 2) }},
		"no store":       {bare, func(*escapement.Request) {}},
	} {
		req := request(1)
		c.edit(&req)
		op := creating(0)
		_, err := c.gate.Do(t.Context(), req, op.run)
		if err == nil || errors.Is(err, escapement.ErrRecords) || errors.Is(err, escapement.ErrLimits) {
			t.Errorf("%s: %v", name, err)
		}
		r.wantEffects(op, 0)
	}
	if len(r.net.log()) > 0 {
		t.Errorf("the store was asked: %v", r.net.log())
	}
}

func TestFaultyOptions(t *testing.T) {
	_, err := escapement.New(escapement.Options{MaxRunning: -1, RecordsDeadline: -1, LimitsDeadline: -1, SweepEvery: -1, AbandonedAfter: -1})
	for _, name := range []string{"MaxRunning", "RecordsDeadline", "LimitsDeadline", "SweepEvery", "AbandonedAfter"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
}

func TestPanicIsUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		fn    func()
		panic any
		stack bool
	}{
		"value":  {func() { panic("boom") }, "boom", true},
		"abort":  {func() { panic(http.ErrAbortHandler) }, http.ErrAbortHandler, false},
		"goexit": {runtime.Goexit, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			r := newRig(t, escapement.Options{Logger: slog.New(slog.NewTextHandler(&out, nil))})
			v, err := r.gate.Do(t.Context(), request(1), func(context.Context, *escapement.Run) idempotency.Ending {
				c.fn()
				return idempotency.Done(created)
			})
			if err != nil || v.Panicked == nil || c.panic != nil && v.Panicked != c.panic {
				t.Fatalf("%+v, %v", v, err)
			}
			if v.Outcome != escapement.Admitted || v.Ending.Kind != idempotency.EndedUnknown || !v.Recorded {
				t.Errorf("%+v", v)
			}
			r.wantStatus(key(1), idempotency.StatusUnknown)
			line := out.String()
			for _, want := range []string{"key=" + key(1).ID.String(), "trace=trace", "request=request", "route=/orders"} {
				if !strings.Contains(line, want) {
					t.Errorf("the line has no %s: %s", want, line)
				}
			}
			if strings.Contains(line, "stack=") != c.stack {
				t.Errorf("stack: %s", line)
			}
		})
	}
}

func TestUnkeyedRunsAsItIs(t *testing.T) {
	r := newRig(t, escapement.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	v, err := r.gate.Do(ctx, escapement.Request{}, func(got context.Context, run *escapement.Run) idempotency.Ending {
		if got != ctx || escapement.RunFrom(got) != nil {
			t.Error("another context")
		}
		if _, keyed := run.Reservation(); keyed {
			t.Error("a reservation without a key")
		}
		if !run.Decision().Allowed {
			t.Error("the attempt's decision is not the verdict's")
		}
		if err := run.Hold(got); err != nil {
			t.Error(err)
		}
		if run.FenceIn(got, r.store) == nil || run.EndIn(got, r.store, created) == nil {
			t.Error("a transaction without a key")
		}
		return idempotency.NotRun()
	})
	if err != nil || !v.Ran || v.Outcome != escapement.Admitted {
		t.Errorf("%+v, %v", v, err)
	}
	defer func() {
		if recover() != "boom" {
			t.Error("the panic did not pass through")
		}
	}()
	_, _ = r.gate.Do(ctx, escapement.Request{}, func(context.Context, *escapement.Run) idempotency.Ending { panic("boom") })
}

func TestContextOfAnAttempt(t *testing.T) {
	type name struct{}
	r := newRig(t, escapement.Options{})
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), name{}, "value"))
	v, err := r.gate.Do(ctx, request(1), func(got context.Context, run *escapement.Run) idempotency.Ending {
		cancel()
		if got.Err() != nil || got.Value(name{}) != "value" || escapement.RunFrom(got) != run {
			t.Errorf("err %v, value %v, run %p", got.Err(), got.Value(name{}), escapement.RunFrom(got))
		}
		child, stop := context.WithCancel(got)
		defer stop()
		if escapement.RunFrom(child) != run {
			t.Error("a child's context has lost the attempt")
		}
		if d, ok := got.Deadline(); !ok || time.Until(d) > time.Minute {
			t.Errorf("deadline %v, %v", d, ok)
		}
		if res, ok := run.Reservation(); !ok || res.Key != key(1) {
			t.Errorf("reservation %+v", res)
		}
		return idempotency.Done(created)
	})
	if err != nil || !v.Recorded {
		t.Errorf("%+v, %v", v, err)
	}
}

// A client that is gone, before or during the call, changes nothing (I21).
func TestClientGone(t *testing.T) {
	for _, when := range []time.Duration{0, time.Second} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, escapement.Options{})
			ctx, cancel := context.WithTimeout(t.Context(), when)
			defer cancel()
			op := creating(10 * time.Second)
			op.obeys = true
			v, err := r.gate.Do(ctx, request(1), op.run)
			if err != nil || v.Ending.Kind != idempotency.EndedDone || !v.Recorded {
				t.Fatalf("%+v, %v", v, err)
			}
			v, err = r.gate.Do(t.Context(), request(1), op.run)
			if err != nil || v.Outcome != escapement.Replayed {
				t.Fatalf("the repeat: %+v, %v", v, err)
			}
			r.wantEffects(op, 1)
		})
	}
}

func TestInvalidEndingIsUnknown(t *testing.T) {
	r := newRig(t, escapement.Options{})
	v, err := r.gate.Do(t.Context(), request(1), func(context.Context, *escapement.Run) idempotency.Ending {
		return idempotency.Done(idempotency.Result{Status: 200})
	})
	if err != nil || v.Ending.Kind != idempotency.EndedUnknown || !v.Recorded {
		t.Errorf("%+v, %v", v, err)
	}
	r.wantStatus(key(1), idempotency.StatusUnknown)
}

func TestMaxRunning(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{MaxRunning: 2})
		op := creating(10 * time.Second)
		if v, err := r.gate.Do(t.Context(), request(9), creating(0).run); err != nil || !v.Recorded {
			t.Fatal(v, err)
		}
		dead := idempotency.Claim{Key: key(7), Owner: idempotency.NewOwner(), Terms: retrying(7).Policy.Terms}
		dead.Terms.Lease = time.Second
		if _, err := r.store.Reserve(t.Context(), dead); err != nil {
			t.Fatal(err)
		}
		a, b := do(r.gate, request(1), op), do(r.gate, request(2), op)
		pass(time.Second)
		for _, c := range []struct {
			req  escapement.Request
			want escapement.Outcome
			err  error
		}{
			{request(3), 0, escapement.ErrBusy},
			{retrying(7), 0, escapement.ErrBusy}, // it would have to take over
			{request(1), escapement.InProgress, nil},
			{request(9), escapement.Replayed, nil},
		} {
			v, err := r.gate.Do(t.Context(), c.req, op.run)
			if !errors.Is(err, c.err) || err == nil && v.Outcome != c.want {
				t.Errorf("at the bound: %v, %v; want %v, %v", v.Outcome, err, c.want, c.err)
			}
		}
		r.wantStatus(key(3), idempotency.StatusFree)
		r.net.set(func(string, int) fault { return fault{before: errAway} })
		if _, err := r.gate.Do(t.Context(), request(3), op.run); !errors.Is(err, escapement.ErrRecords) || !errors.Is(err, errAway) {
			t.Errorf("at the bound, store away: %v", err)
		}
		r.net.set(nil)
		<-a
		<-b
		if v, err := r.gate.Do(t.Context(), request(3), op.run); err != nil || v.Outcome != escapement.Admitted {
			t.Errorf("below it again: %v, %v", v.Outcome, err)
		}
		r.wantEffects(op, 3)
	})
}

// The slot is free again when Do returns, not a moment later.
func TestSlotIsFreeWhenDoReturns(t *testing.T) {
	r := newRig(t, escapement.Options{MaxRunning: 1})
	for i := range uint64(5000) {
		if _, err := r.gate.Do(t.Context(), request(i), creating(0).run); err != nil {
			t.Fatalf("key %d: %v", i, err)
		}
	}
}

// T1: many concurrent requests with one key take effect once and get one answer.
func TestT1ManyAtOnceOneEffect(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		op := creating(1500 * time.Millisecond)
		answers := make(chan string)
		for range 10 {
			go func() {
				for {
					v, err := r.gate.Do(context.Background(), request(1), op.run)
					switch {
					case err != nil:
						answers <- err.Error()
						return
					case v.Outcome == escapement.Admitted:
						answers <- fmt.Sprint(v.Ending.Result)
						return
					case v.Outcome == escapement.Replayed:
						answers <- fmt.Sprint(v.Record.Result)
						return
					}
					<-time.After(time.Second) // Retry-After
				}
			}()
		}
		for range 10 {
			if got := <-answers; got != fmt.Sprint(created) {
				t.Errorf("answer %s", got)
			}
		}
		r.wantEffects(op, 1)
	})
}
