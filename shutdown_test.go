package escapement_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/memstore"
)

func TestShutdownWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		op := creating(10 * time.Second)
		first := do(r.gate, request(1), op)
		pass(time.Second)
		over := make(chan error, 1)
		start := time.Now()
		go func() { over <- r.gate.Shutdown(context.Background()) }()
		pass(time.Second)
		for _, req := range []escapement.Request{request(2), {}} {
			if _, err := r.gate.Do(t.Context(), req, op.run); !errors.Is(err, escapement.ErrClosed) {
				t.Errorf("while it shuts down: %v", err)
			}
		}
		if err := <-over; err != nil {
			t.Error(err)
		}
		within(t, "Shutdown", time.Since(start), 9*time.Second, 9*time.Second)
		if got := <-first; got.err != nil || !got.v.Recorded {
			t.Errorf("%+v", got)
		}
		if err := r.gate.Shutdown(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
		r.wantEffects(op, 1)
	})
}

// What cannot finish is cancelled. What was not sent says so; the rest is
// unknown, whether it obeys or not.
func TestShutdownCancels(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		type attempt struct {
			obeys  bool
			ending idempotency.Ending
			status idempotency.Status
		}
		attempts := []attempt{
			{true, idempotency.NotRun(), idempotency.StatusFree},
			{true, idempotency.UnknownEnding(), idempotency.StatusUnknown},
			{false, idempotency.Done(created), idempotency.StatusUnknown},
		}
		results := make([]chan result, len(attempts))
		for i, a := range attempts {
			results[i] = make(chan result, 1)
			go func() {
				v, err := r.gate.Do(context.Background(), request(uint64(i)), func(ctx context.Context, _ *escapement.Run) idempotency.Ending {
					if a.obeys {
						<-ctx.Done()
						if !errors.Is(context.Cause(ctx), escapement.ErrClosed) {
							t.Errorf("cause %v", context.Cause(ctx))
						}
						<-time.After(900 * time.Millisecond)
					} else {
						<-time.After(50 * time.Second)
					}
					return a.ending
				})
				results[i] <- result{v, err}
			}()
		}
		pass(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		err := r.gate.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		within(t, "Shutdown", time.Since(start), 5*time.Second, 11*time.Second)
		for i, a := range attempts {
			got := <-results[i]
			if got.err != nil || !got.v.Ran || got.v.TimedOut == a.obeys || !got.v.Recorded {
				t.Errorf("%d: %+v", i, got)
			}
			r.wantStatus(key(uint64(i)), a.status)
		}
		pass(time.Minute) // the one that does not obey ends, and tells the truth
		r.wantStatus(key(2), idempotency.StatusSucceeded)
	})
}

func TestShutdownFlushes(t *testing.T) {
	for _, away := range []time.Duration{3 * time.Second, time.Hour} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, escapement.Options{})
			begin := time.Now()
			r.net.set(func(op string, _ int) fault {
				if time.Since(begin) < away && (op == "end" || op == "extend") {
					return fault{before: errAway}
				}
				return fault{}
			})
			v, err := r.gate.Do(t.Context(), request(1), creating(0).run)
			if err != nil || v.Recorded {
				t.Fatalf("%+v, %v", v, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err = r.gate.Shutdown(ctx)
			if away > time.Minute {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the store is away: %v", err)
				}
				return
			}
			if err != nil {
				t.Error(err)
			}
			r.wantStatus(key(1), idempotency.StatusSucceeded)
		})
	}
}

func TestRunSweeps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		g := r.another(escapement.Options{Records: r.store, SweepEvery: time.Minute})
		for i := range uint64(1200) {
			if _, err := g.Do(t.Context(), request(i), creating(0).run); err != nil {
				t.Fatal(err)
			}
		}
		defer r.work(g)()
		pass(23 * time.Hour)
		if r.store.Len() != 1200 {
			t.Errorf("%d records before their time, want 1200", r.store.Len())
		}
		pass(time.Hour + time.Minute)
		if r.store.Len() != 0 {
			t.Errorf("%d records after their time", r.store.Len())
		}
		var counts []int
		for _, e := range r.events.of(escapement.RecordsSwept) {
			if e.Count > 0 {
				counts = append(counts, e.Count)
			}
		}
		if len(counts) != 3 || counts[0] != 500 || counts[2] != 200 {
			t.Errorf("swept %v", counts)
		}
	})
}

func TestRunTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		stop := r.work(r.gate)
		pass(time.Second)
		if err := r.gate.Run(t.Context()); err == nil {
			t.Error("no error")
		}
		stop()
		r.work(r.gate)()
	})
}

// New starts nothing: a Gate that is dropped leaves nothing behind.
func TestNewStartsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store, err := memstore.NewRecords(memstore.RecordsOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := escapement.New(escapement.Options{Records: store}); err != nil {
			t.Fatal(err)
		}
	})
}

// A renewal that hangs does not keep an operation from being cancelled in time.
func TestShutdownDuringARenewal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		r.net.set(func(op string, _ int) fault {
			if op == "extend" {
				return fault{slow: 4500 * time.Millisecond}
			}
			return fault{}
		})
		start := time.Now()
		first := make(chan result, 1)
		go func() {
			v, err := r.gate.Do(context.Background(), request(1), func(ctx context.Context, _ *escapement.Run) idempotency.Ending {
				<-ctx.Done()
				within(t, "the cancellation", time.Since(start), 6*time.Second, 6*time.Second)
				return idempotency.NotRun()
			})
			first <- result{v, err}
		}()
		pass(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := r.gate.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		within(t, "Shutdown", time.Since(start), 6*time.Second, 6*time.Second)
		if got := <-first; got.v.TimedOut || got.v.Ending.Kind != idempotency.EndedNotRun || !got.v.Recorded {
			t.Errorf("%+v", got)
		}
		r.wantStatus(key(1), idempotency.StatusFree)
	})
}
