package sqlitestore

import (
	"errors"
	"fmt"
	"time"
)

// Defaults of [Options].
const (
	DefaultBusyTimeout = 5 * time.Second
	DefaultMaxBatch    = 512
)

// Options are a store's options. The zero value is right for most.
type Options struct {
	// Now is the store's clock; nil is time.Now. All processes that share a
	// file must share its clock. Times are kept in whole microseconds.
	Now func() time.Time
	// BusyTimeout is how long an operation waits for another writer of the
	// file (another process, or a transaction of the caller's) before it
	// fails. 0 is DefaultBusyTimeout; at least 1ms. An operation whose context
	// ends sooner fails then.
	BusyTimeout time.Duration
	// MaxBatch is how many operations are committed together at most. 0 is
	// DefaultMaxBatch.
	MaxBatch int
	// MaxPages bounds the size of the file, in pages (of 4096 bytes unless the
	// file was made otherwise). 0 is no bound. A write that finds no room
	// fails with idempotency.ErrFull; sweeping makes room. Only for Open.
	MaxPages int64
}

// Validate reports every fault of o at once.
func (o Options) Validate() error {
	var errs []error
	if o.BusyTimeout != 0 && o.BusyTimeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("sqlitestore: options: BusyTimeout is %v: want 0 (for %v) or at least 1ms", o.BusyTimeout, DefaultBusyTimeout))
	}
	if o.MaxBatch < 0 {
		errs = append(errs, fmt.Errorf("sqlitestore: options: MaxBatch is %d: want 0 (for %d) or more", o.MaxBatch, DefaultMaxBatch))
	}
	if o.MaxPages < 0 {
		errs = append(errs, fmt.Errorf("sqlitestore: options: MaxPages is %d: want 0 (for no bound) or more", o.MaxPages))
	}
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.BusyTimeout == 0 {
		o.BusyTimeout = DefaultBusyTimeout
	}
	if o.MaxBatch == 0 {
		o.MaxBatch = DefaultMaxBatch
	}
	return o
}
