package pgstore

import (
	"errors"
	"fmt"
	"time"
)

// Defaults of [Options].
const (
	DefaultMaxBatch    = 512
	DefaultConnections = 4
	DefaultTimeout     = 10 * time.Second
	DefaultLockWait    = time.Second
)

// Options are a store's options. The zero value is right for most.
type Options struct {
	// Now is the store's clock; nil is the server's (clock_timestamp). It is
	// for tests: its time is sent with each statement.
	Now func() time.Time
	// Schema is where the tables are; "" is the connection's search_path.
	Schema string
	// Connections is how many connections the store opens at most. They are
	// its own: it never waits for a pool that handlers use. 0 is what the URL
	// of Open says (pool_max_conns), else DefaultConnections; at least 3.
	Connections int32
	// MaxBatch is how many operations are committed together at most. 0 is
	// DefaultMaxBatch.
	MaxBatch int
	// Timeout is how long one transaction of the store's, or the making of one
	// connection, may take before it is given up, and its operations fail. 0 is
	// DefaultTimeout; at least 1ms.
	Timeout time.Duration
	// LockWait is how long an operation that must write tries again while a
	// transaction of the caller's holds the record. 0 is DefaultLockWait; at
	// least 1ms.
	LockWait time.Duration
}

// Validate reports every fault of o at once.
func (o Options) Validate() error {
	var errs []error
	if o.Connections != 0 && o.Connections < 3 {
		errs = append(errs, fmt.Errorf("pgstore: options: Connections is %d: want 0 (for %d) or at least 3", o.Connections, DefaultConnections))
	}
	if o.MaxBatch < 0 {
		errs = append(errs, fmt.Errorf("pgstore: options: MaxBatch is %d: want 0 (for %d) or more", o.MaxBatch, DefaultMaxBatch))
	}
	if o.Timeout != 0 && o.Timeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("pgstore: options: Timeout is %v: want 0 (for %v) or at least 1ms", o.Timeout, DefaultTimeout))
	}
	if o.LockWait != 0 && o.LockWait < time.Millisecond {
		errs = append(errs, fmt.Errorf("pgstore: options: LockWait is %v: want 0 (for %v) or at least 1ms", o.LockWait, DefaultLockWait))
	}
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	if o.Connections == 0 {
		o.Connections = DefaultConnections
	}
	if o.MaxBatch == 0 {
		o.MaxBatch = DefaultMaxBatch
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.LockWait == 0 {
		o.LockWait = DefaultLockWait
	}
	return o
}
