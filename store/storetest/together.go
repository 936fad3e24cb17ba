package storetest

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"

	"github.com/escapement-dev/escapement/idempotency"
)

// together calls f from n goroutines at once and returns what each returned.
func together(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var ready, finished sync.WaitGroup
	ready.Add(n)
	begin := make(chan struct{})
	for i := range n {
		finished.Go(func() {
			ready.Done()
			<-begin
			errs[i] = f(i)
		})
	}
	ready.Wait()
	close(begin)
	finished.Wait()
	return errs
}

// race sends n claims at once and returns the reservations of those that
// started. Any error fails the test.
func race(e *env, n int, c func(i int) idempotency.Claim) []idempotency.Reservation {
	e.Helper()
	answers := make([]idempotency.Answer, n)
	claims := make([]idempotency.Claim, n)
	for i := range n {
		claims[i] = c(i)
	}
	ctx := e.ctx()
	for _, err := range together(n, func(i int) (err error) {
		answers[i], err = e.s.Reserve(ctx, claims[i])
		return err
	}) {
		if err != nil {
			e.Fatalf("a concurrent Reserve: %v", err)
		}
	}
	var won []idempotency.Reservation
	for _, a := range answers {
		if a.Outcome == idempotency.Started {
			won = append(won, a.Reservation)
		}
	}
	return won
}

func isAny(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// soak reports whether the random parts run long.
func (h Harness) soak() bool { return h.Soak || os.Getenv("ESCAPEMENT_SOAK") == "1" }

// times is n, or many times n in a soak.
func (h Harness) times(n int) int {
	if h.soak() {
		return 50 * n
	}
	return n
}

// seed is that of one random run: fresh, or ESCAPEMENT_SEED if that is set.
func (h Harness) seed() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("ESCAPEMENT_SEED"), 10, 64); err == nil {
		return n
	}
	return rand.Uint64()
}
