package sqlitestore

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// find returns the record of id as it is stored; seq 0 if it is not.
func find(ctx context.Context, ss session, id idempotency.ID) (row, error) {
	var r row
	err := ss.query(ctx, selectRecord, func(v []any) (_ bool, err error) {
		if r, err = readRow(v); err != nil {
			return false, damaged(id, err)
		}
		return false, nil
	}, id[:])
	return r, err
}

func damaged(id idempotency.ID, err error) error {
	return fmt.Errorf("sqlitestore: the record of %v cannot be read: %w: correct or delete its row in escapement_records", id, err)
}

// save writes what became of prev.
func save(ctx context.Context, ss session, prev row, next idempotency.Record) error {
	if next.Revision == prev.Revision {
		return nil
	}
	if next.State == idempotency.Free && len(next.Marks) == 0 {
		return remove(ctx, ss, prev)
	}
	r := row{prev.seq, next}
	if r.seq == 0 {
		return ss.exec(ctx, insertRecord, r.values(make([]any, 0, len(written)))...)
	}
	if err := saveSteps(ctx, ss, prev, next.Steps); err != nil {
		return err
	}
	args := append(r.values(make([]any, 0, len(written)+1)), r.seq)
	return ss.exec(ctx, updateRecord, args[1:]...)
}

func remove(ctx context.Context, ss session, r row) error {
	if r.seq == 0 {
		return nil
	}
	if err := saveSteps(ctx, ss, r, nil); err != nil {
		return err
	}
	return ss.exec(ctx, deleteRecord, r.seq)
}

// saveSteps writes the steps that differ. The rule replaces and adds steps,
// or drops them all.
func saveSteps(ctx context.Context, ss session, prev row, next []idempotency.Step) error {
	old := prev.Steps
	if len(next) < len(old) {
		if err := ss.exec(ctx, deleteSteps, prev.seq); err != nil {
			return err
		}
		old = nil
	}
	for i, s := range next {
		if i < len(old) && same(old[i], s) {
			continue
		}
		err := ss.exec(ctx, putStep, prev.seq, int64(i), s.Name, boolValue(s.Done), s.ProviderKey, s.ProviderID,
			timeValue(s.Started), timeValue(s.Ended), bytesValue(s.Answer))
		if err != nil {
			return err
		}
	}
	return nil
}

func same(a, b idempotency.Step) bool {
	return a.Name == b.Name && a.Done == b.Done && a.ProviderKey == b.ProviderKey && a.ProviderID == b.ProviderID &&
		a.Started.Equal(b.Started) && a.Ended.Equal(b.Ended) && bytes.Equal(a.Answer, b.Answer)
}

// The operations on one record: read, apply the rule, write.

func reserve(ctx context.Context, ss session, c idempotency.Claim, now time.Time) (idempotency.Answer, error) {
	prev, err := find(ctx, ss, c.Key.ID)
	if err != nil {
		return idempotency.Answer{}, err
	}
	next, a := idempotency.Decide(prev.Record, c, now)
	if err := save(ctx, ss, prev, next); err != nil {
		return idempotency.Answer{}, err
	}
	return a, nil
}

func extend(ctx context.Context, ss session, r idempotency.Reservation, lease time.Duration, now time.Time) (time.Time, error) {
	var end time.Time
	err := change(ctx, ss, r.Key.ID, func(prev idempotency.Record) (idempotency.Record, error) {
		next, err := idempotency.Renew(prev, r, lease, now)
		end = next.LeaseEnd
		return next, err
	})
	if err != nil {
		return time.Time{}, err
	}
	return end, nil
}

// change applies a rule that needs a record.
func change(ctx context.Context, ss session, id idempotency.ID, rule func(idempotency.Record) (idempotency.Record, error)) error {
	prev, err := find(ctx, ss, id)
	if err != nil {
		return err
	}
	next, err := rule(prev.Record)
	if err != nil {
		return err
	}
	return save(ctx, ss, prev, next)
}

func lookup(ctx context.Context, ss session, id idempotency.ID, now time.Time) (idempotency.Record, error) {
	r, err := find(ctx, ss, id)
	if err != nil {
		return idempotency.Record{}, err
	}
	rec, ok := idempotency.View(r.Record, now)
	if !ok {
		return idempotency.Record{}, idempotency.ErrNotFound
	}
	return rec, nil
}
