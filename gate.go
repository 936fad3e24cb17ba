package escapement

import (
	"context"
	"log/slog"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// Options are what a Gate is made of.
type Options struct {
	// Records keeps the records. Required if any request has a key.
	Records idempotency.Store
	// Limits keeps the limits. Required if any request has charges.
	Limits ratelimit.Store
	// Observer may be nil.
	Observer Observer
	// Logger gets a line for what a person should know: panics, time-outs,
	// lost leases, stores out of reach. Nil: slog.Default().
	Logger *slog.Logger
	// MaxRunning bounds the keyed operations that run at one time. 0: 1000.
	MaxRunning int
	// RecordsDeadline bounds each call of Records. 0: 5 s.
	RecordsDeadline time.Duration
	// LimitsDeadline bounds each call of Limits. 0: 1 s.
	LimitsDeadline time.Duration
	// SweepEvery is the pause between two sweeps of Run. 0: 10 s.
	SweepEvery time.Duration
}

// Gate admits or answers requests. It is safe for concurrent use.
type Gate struct{ o Options }

// New returns a Gate. It starts nothing; see Gate.Run.
func New(o Options) (*Gate, error) { return &Gate{o: o}, nil }

// Do judges r and, if it is admitted, calls fn once.
func (g *Gate) Do(ctx context.Context, r Request, fn func(context.Context, *Run) idempotency.Ending) (Verdict, error) {
	return Verdict{}, ErrClosed
}

// Limit charges without running anything.
func (g *Gate) Limit(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, ErrClosed
}

// Run sweeps and retries until ctx ends.
func (g *Gate) Run(ctx context.Context) error { return nil }

// Shutdown stops admitting, waits for what is running, and cancels it when ctx ends.
func (g *Gate) Shutdown(ctx context.Context) error { return nil }

// Run is one attempt, for the function that performs it.
type Run struct{}

// RunFrom returns the attempt that ctx belongs to, or nil.
func RunFrom(ctx context.Context) *Run { return nil }

// Reservation returns the attempt's reservation, and false if the request has no key.
func (r *Run) Reservation() (idempotency.Reservation, bool) { return idempotency.Reservation{}, false }

// Hold makes sure that the attempt still holds its key, right before something
// is sent: it extends a lease that is over by the holder's own clock (F8).
func (r *Run) Hold(ctx context.Context) error { return nil }

// FenceIn locks the record inside the caller's transaction.
func (r *Run) FenceIn(ctx context.Context, tx idempotency.Store) error { return nil }

// EndIn records the result inside the caller's transaction.
func (r *Run) EndIn(ctx context.Context, tx idempotency.Store, res idempotency.Result) error {
	return nil
}
