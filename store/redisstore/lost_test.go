package redisstore_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// manyLost is how many Reserves are lost by each of the tests below.
const manyLost = 10_000

// latency is the usual time of a Reserve among so many callers.
func latency(t *testing.T, s *redisstore.Store, callers int) time.Duration {
	t.Helper()
	t.Cleanup(func() { shared.Cli(t, "flushall") }) // so many keys make each SCAN of others long
	var mu sync.Mutex
	var took []time.Duration
	var wait sync.WaitGroup
	for w := range callers {
		wait.Go(func() {
			for i := range 20 {
				c := newClaim(w*20 + i)
				c.Key.Tenant = "latency"
				begin := time.Now()
				if _, err := s.Reserve(t.Context(), c); err != nil {
					t.Error(err)
				}
				mu.Lock()
				took = append(took, time.Since(begin))
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	slices.Sort(took)
	return took[len(took)/2]
}

// TestCallsThatEndLeaveNoKeyHeld: contexts end before, while and after a
// Reserve is queued and under way, until 10,000 are lost. Where somebody calls
// Void, the key is free at once; where nobody does, since the process is gone,
// once the lease is over.
func TestCallsThatEndLeaveNoKeyHeld(t *testing.T) {
	const callers = 64
	clock := fixedClock()
	s := open(t, "redis://"+shared.Addr, clock)
	usual := latency(t, s, callers)
	var next, lost, answered atomic.Int64
	var mu sync.Mutex
	var left []int // what was lost and is not voided
	var wait sync.WaitGroup
	for range callers {
		wait.Go(func() {
			for lost.Load() < manyLost {
				i := int(next.Add(1))
				if i >= 1<<16 {
					return // newClaim has no more keys; see below
				}
				c := newClaim(i)
				c.Terms.OnUnknown = idempotency.Retry
				ctx, cancel := contextFor(t, usual*time.Duration(i%100)/80)
				a, err := s.Reserve(ctx, c)
				ended := ctx.Err() != nil
				cancel()
				switch {
				case err == nil:
					answered.Add(1)
					if err := s.End(t.Context(), a.Reservation, idempotency.NotRun()); err != nil {
						t.Error(err)
					}
				case !ended && !errors.Is(err, redisstore.ErrUnavailable):
					t.Error(err)
					return
				case i%2 == 0:
					lost.Add(1)
					if err := s.Void(t.Context(), c.Key, c.Owner); err != nil {
						t.Error(err)
					}
				default:
					lost.Add(1)
					mu.Lock()
					left = append(left, i)
					mu.Unlock()
				}
			}
		})
	}
	wait.Wait()
	t.Logf("%d lost, %d answered; a Reserve takes %v", lost.Load(), answered.Load(), usual)
	if lost.Load() < manyLost || answered.Load() == 0 {
		t.Fatalf("%d were lost and %d answered: the test has tested nothing", lost.Load(), answered.Load())
	}
	held := atomic.Int64{}
	free := func(i int) {
		c := newClaim(i)
		c.Terms.OnUnknown = idempotency.Retry
		if a, err := s.Reserve(t.Context(), c); err != nil || a.Outcome != idempotency.Started {
			t.Errorf("key %d is %v, %v, want it free", i, a.Outcome, err)
		} else if a.Reservation.Takeover {
			held.Add(1)
		}
	}
	abandoned := map[int]bool{}
	for _, i := range left {
		abandoned[i] = true
	}
	together(func(yield func(int) bool) {
		for i := 1; i <= int(next.Load()) && i < 1<<16; i++ {
			if !abandoned[i] && !yield(i) {
				return
			}
		}
	}, free)
	if n := held.Load(); n > 0 {
		t.Errorf("%d keys were held, though each was ended or voided", n)
	}
	clock.Advance(newClaim(0).Terms.Lease)
	together(slices.Values(left), free)
	if n := held.Load(); n == 0 || n == int64(len(left)) {
		t.Errorf("%d of %d lost Reserves have been carried out: the test has tested little", n, len(left))
	}
}

// hasty is a store most of whose Reserves, and some of whose Voids, have little
// time.
type hasty struct {
	*redisstore.Store
	usual time.Duration
	calls atomic.Int64
}

func (h *hasty) hurry(ctx context.Context, each int64) (context.Context, context.CancelFunc) {
	n := h.calls.Add(1)
	if n%8 >= each {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, h.usual*time.Duration(n%97)/80)
}

func (h *hasty) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	ctx, cancel := h.hurry(ctx, 6)
	defer cancel()
	return h.Store.Reserve(ctx, c)
}

func (h *hasty) Void(ctx context.Context, k idempotency.Key, o idempotency.Owner) error {
	ctx, cancel := h.hurry(ctx, 1)
	defer cancel()
	return h.Store.Void(ctx, k, o)
}

// TestLostReservesThroughTheGate: the Gate withdraws 10,000 Reserves whose
// deadline ended, by itself, and repeats what is lost of that too.
func TestLostReservesThroughTheGate(t *testing.T) {
	const callers = 64
	s := open(t, "redis://"+shared.Addr, nil)
	usual := latency(t, s, callers)
	var next, lost, ran atomic.Int64
	done := idempotency.Done(idempotency.Result{Class: idempotency.Succeeded})
	policy := escapement.Policy{Terms: idempotency.Terms{Lease: time.Hour, Retention: 2 * time.Hour, OnUnknown: idempotency.Retry}, Timeout: time.Minute}
	g, err := escapement.New(escapement.Options{
		Records: &hasty{Store: s, usual: usual}, MaxRunning: 1 << 20, Logger: slog.New(slog.DiscardHandler), SweepEvery: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	background, stop := context.WithCancel(t.Context())
	defer stop()
	worker := make(chan error, 1)
	go func() { worker <- g.Run(background) }()
	var wait sync.WaitGroup
	for range callers {
		wait.Go(func() {
			for lost.Load() < manyLost {
				i := int(next.Add(1))
				if i >= 1<<16 {
					return
				}
				v, err := g.Do(t.Context(), escapement.Request{Key: newClaim(i).Key, Policy: policy}, func(context.Context, *escapement.Run) idempotency.Ending {
					ran.Add(1)
					return done
				})
				switch {
				case err != nil && errors.Is(err, escapement.ErrRecords):
					lost.Add(1)
				case err != nil:
					t.Errorf("%v, %v", v.Outcome, err)
					return
				}
			}
		})
	}
	wait.Wait()
	t.Logf("%d lost, %d ran; a Reserve takes %v", lost.Load(), ran.Load(), usual)
	if lost.Load() < manyLost || ran.Load() == 0 {
		t.Fatalf("%d were lost and %d ran: the test has tested little", lost.Load(), ran.Load())
	}
	ctx, cancel := contextFor(t, 30*time.Second)
	defer cancel()
	if err := g.Shutdown(ctx); err != nil { // it waits for what is queued
		t.Errorf("what was lost is not withdrawn: %v", err)
	}
	stop()
	if err := <-worker; err != nil {
		t.Error(err)
	}
	var replayed atomic.Int64
	together(func(yield func(int) bool) {
		for i := 1; i <= int(next.Load()) && i < 1<<16 && yield(i); i++ {
		}
	}, func(i int) {
		a, err := s.Reserve(t.Context(), newClaim(i))
		switch {
		case err == nil && a.Outcome == idempotency.Started && !a.Reservation.Takeover:
		case err == nil && a.Outcome == idempotency.Replayed:
			replayed.Add(1)
		default:
			t.Errorf("key %d is %v (takeover %v), %v, want it free or done", i, a.Outcome, a.Reservation.Takeover, err)
		}
	})
	if replayed.Load() != ran.Load() {
		t.Errorf("%d operations ran, and %d results are there", ran.Load(), replayed.Load())
	}
}
