package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// Bounds of [Records] where its options leave them out.
const (
	DefaultMaxRecords = 100_000
	DefaultMaxBytes   = 256 << 20
)

// RecordsOptions are the options of [NewRecords]. The zero value is ready.
type RecordsOptions struct {
	// Now is the store's clock. It is called from many goroutines; times are
	// cut to whole microseconds. Nil: time.Now.
	Now func() time.Time
	// MaxRecords is the greatest number of records: at least 1. 0:
	// DefaultMaxRecords.
	MaxRecords int
	// MaxBytes bounds what the records, settings and audit entries hold, as
	// counted (see [Records]): at least 1. 0: DefaultMaxBytes.
	MaxBytes int64
}

// Records keeps the records of keys in this process's memory: the reference
// store, and one to ship where losing every key with the process is acceptable.
// It implements idempotency.Store, StepStore, Keeper and Settings by the pure
// functions of package idempotency.
//
// It is bounded. A new key for which there is no room first evicts what
// idempotency.Expire says may go, a bounded number of records per call; if that
// does not make room, the call returns idempotency.ErrFull. A record that must
// not be forgotten is never given up. Calls about a key that has a record are
// never refused for lack of room: its attempt has run, and what came of it must
// be kept. So the bytes may exceed MaxBytes by what the attempts under way
// bring home, at most idempotency.MaxPayload each and their steps; all of it
// is counted, and no new key enters until the sum is below the bound again.
//
// The bytes of a record are counted as a constant for its structure plus the
// lengths of its strings, fingerprints, steps and payload.
//
// Its methods are safe for concurrent use and run no goroutine. A context that
// has ended is an error before anything changed; none of them waits for
// anything but a lock. Slices are copied on their way in and out.
type Records struct {
	now        func() time.Time
	maxRecords int64
	maxBytes   int64

	count, bytes atomic.Int64
	turn         atomic.Uint32 // where the next sweep begins

	shards [recordShards]shard

	mu       sync.Mutex // guards what follows
	settings map[string]setting
	audit    []idempotency.AuditEntry
}

var (
	_ idempotency.Store     = (*Records)(nil)
	_ idempotency.StepStore = (*Records)(nil)
	_ idempotency.Keeper    = (*Records)(nil)
	_ idempotency.Settings  = (*Records)(nil)
)

// NewRecords returns an empty store. The error names every faulty option.
func NewRecords(o RecordsOptions) (*Records, error) {
	var errs []error
	if o.MaxRecords < 0 {
		errs = append(errs, fmt.Errorf("memstore: MaxRecords is %d: want at least 1, or 0 for %d", o.MaxRecords, DefaultMaxRecords))
	}
	if o.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("memstore: MaxBytes is %d: want at least 1, or 0 for %d", o.MaxBytes, DefaultMaxBytes))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	m := &Records{now: o.Now, maxRecords: int64(o.MaxRecords), maxBytes: o.MaxBytes, settings: map[string]setting{}}
	if m.now == nil {
		m.now = time.Now
	}
	if m.maxRecords == 0 {
		m.maxRecords = DefaultMaxRecords
	}
	if m.maxBytes == 0 {
		m.maxBytes = DefaultMaxBytes
	}
	for i := range m.shards {
		m.shards[i].records = map[idempotency.ID]*entry{}
	}
	return m, nil
}

// Len returns how many records the store holds, the expired ones that were not
// removed yet among them.
func (m *Records) Len() int { return int(m.count.Load()) }

// Bytes returns what the store holds, as counted.
func (m *Records) Bytes() int64 { return m.bytes.Load() }

// Reserve implements idempotency.Store. It returns the errors of
// Claim.Validate and ErrFull; after either nothing changed.
func (m *Records) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	if err := errors.Join(ctx.Err(), c.Validate()); err != nil {
		return idempotency.Answer{}, err
	}
	c.Terms = whole(c.Terms)
	var a idempotency.Answer
	err := m.change(c.Key.ID, func(prev idempotency.Record, now time.Time) (next idempotency.Record, err error) {
		next, a = idempotency.Decide(prev, c, now)
		return next, nil
	})
	if err != nil {
		return idempotency.Answer{}, err
	}
	a.Record = clone(a.Record)
	return a, nil
}

// Extend implements idempotency.Store.
func (m *Records) Extend(ctx context.Context, r idempotency.Reservation, lease time.Duration) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	lease = lease.Truncate(time.Microsecond)
	var end time.Time
	err := m.change(r.Key.ID, func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
		next, err := idempotency.Renew(prev, r, lease, now)
		end = next.LeaseEnd
		return next, err
	})
	if err != nil {
		return time.Time{}, err
	}
	return end, nil
}

// End implements idempotency.Store. It returns the errors of Ending.Validate;
// then nothing changed. It is never refused for lack of room.
func (m *Records) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	if err := errors.Join(ctx.Err(), e.Validate()); err != nil {
		return err
	}
	e.Result = kept(e.Result)
	return m.change(r.Key.ID, func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
		return idempotency.Finish(prev, r, e, now)
	})
}

// Void implements idempotency.Store. A key without a record needs room for its
// mark: ErrFull if there is none.
func (m *Records) Void(ctx context.Context, k idempotency.Key, o idempotency.Owner) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return m.change(k.ID, func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
		return idempotency.Withdraw(prev, k, o, now), nil
	})
}

// Lookup implements idempotency.Store.
func (m *Records) Lookup(ctx context.Context, k idempotency.Key) (idempotency.Record, error) {
	if err := ctx.Err(); err != nil {
		return idempotency.Record{}, err
	}
	s := m.shard(k.ID)
	s.mu.Lock()
	prev, now := s.get(k.ID), m.time()
	s.mu.Unlock()
	rec, ok := idempotency.View(prev, now)
	if !ok {
		return idempotency.Record{}, idempotency.ErrNotFound
	}
	return clone(rec), nil
}

// SaveStep implements idempotency.StepStore. It returns the errors of
// Step.Validate; then nothing changed.
func (m *Records) SaveStep(ctx context.Context, r idempotency.Reservation, st idempotency.Step) error {
	if err := errors.Join(ctx.Err(), st.Validate()); err != nil {
		return err
	}
	st.Answer = bytes.Clone(st.Answer)
	return m.change(r.Key.ID, func(prev idempotency.Record, now time.Time) (idempotency.Record, error) {
		return idempotency.PutStep(prev, r, st, now)
	})
}

// time is the store's time.
func (m *Records) time() time.Time { return m.now().UTC().Truncate(time.Microsecond) }

// maxTries bounds how many records one call evicts to make room.
const maxTries = 64

// change applies f to the record of id and stores what it returns, atomically.
// f may be called again after an eviction.
func (m *Records) change(id idempotency.ID, f func(prev idempotency.Record, now time.Time) (idempotency.Record, error)) error {
	s := m.shard(id)
	for range maxTries {
		s.mu.Lock()
		now := m.time()
		prev := s.get(id)
		next, err := f(prev, now)
		if err != nil || next.Revision == prev.Revision || m.put(s, id, next, now) {
			s.mu.Unlock()
			return err
		}
		s.mu.Unlock()
		if !m.evict(now) {
			break
		}
	}
	return idempotency.ErrFull
}

// clone returns r with slices of its own.
func clone(r idempotency.Record) idempotency.Record {
	r.Prints = append([]idempotency.Fingerprint(nil), r.Prints...)
	r.Marks = append([]idempotency.Mark(nil), r.Marks...)
	r.Result.Payload = bytes.Clone(r.Result.Payload)
	if r.Steps != nil {
		r.Steps = append([]idempotency.Step(nil), r.Steps...)
		for i := range r.Steps {
			r.Steps[i].Answer = bytes.Clone(r.Steps[i].Answer)
		}
	}
	return r
}

// kept is r as it is stored: with a payload of its own and a window of whole
// microseconds.
func kept(r idempotency.Result) idempotency.Result {
	r.Payload = bytes.Clone(r.Payload)
	r.Window = r.Window.Truncate(time.Microsecond)
	return r
}

// whole is t in whole microseconds, as it is stored.
func whole(t idempotency.Terms) idempotency.Terms {
	t.Lease = t.Lease.Truncate(time.Microsecond)
	t.Retention = t.Retention.Truncate(time.Microsecond)
	t.Remember = t.Remember.Truncate(time.Microsecond)
	t.Quiet = t.Quiet.Truncate(time.Microsecond)
	return t
}
