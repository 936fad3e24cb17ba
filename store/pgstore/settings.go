package pgstore

import (
	"context"
	"fmt"

	"github.com/escapement-dev/escapement/idempotency"
)

// maxSetting is the greatest size of a setting's value, in bytes.
const maxSetting = 64 << 10

// Get implements idempotency.Settings.
func (s *Store) Get(ctx context.Context, name string) (value []byte, version int64, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, 0, err
	}
	err = pooled{s.pool}.query(ctx, s.q.setting, func(scan func(...any) error) error {
		return scan(&value, &version)
	}, escape(name))
	if err != nil {
		return nil, 0, s.explain(s.saw(err))
	}
	if version == 0 {
		return nil, 0, idempotency.ErrNotFound
	}
	return value, version, nil
}

// PutIf implements idempotency.Settings.
func (s *Store) PutIf(ctx context.Context, name string, value []byte, version int64) error {
	if len(value) > maxSetting {
		return fmt.Errorf("pgstore: the setting %q has %d bytes: want at most %d", name, len(value), maxSetting)
	}
	if err := s.usable(ctx); err != nil {
		return err
	}
	text, args := s.q.newSetting, []any{s.now(), escape(name), value}
	if version != 0 {
		text, args = s.q.putSetting, append(args, version)
	}
	n, err := pooled{s.pool}.exec(ctx, text, args...)
	switch {
	case err != nil:
		return s.explain(s.saw(err))
	case n == 0:
		return idempotency.ErrConflict
	}
	return nil
}

// Append implements idempotency.Settings. The entry's Seq and At are not
// looked at.
func (s *Store) Append(ctx context.Context, e idempotency.AuditEntry) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	_, err := pooled{s.pool}.exec(ctx, s.q.addAudit, s.now(), escape(e.Who), escape(e.What), escape(e.On), escape(e.Before), escape(e.After), escape(e.Why))
	return s.explain(s.saw(err))
}

// Audit implements idempotency.Settings. An entry whose transaction commits
// late may appear behind one with a greater Seq.
func (s *Store) Audit(ctx context.Context, after int64, limit int) ([]idempotency.AuditEntry, error) {
	if limit == 0 {
		limit = 100
	}
	if limit < 0 || limit > 1000 {
		return nil, fmt.Errorf("pgstore: the audit's limit is %d: want 1 to 1000, or 0 for 100", limit)
	}
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	var entries []idempotency.AuditEntry
	err := pooled{s.pool}.query(ctx, s.q.audit, func(scan func(...any) error) error {
		var e idempotency.AuditEntry
		var at int64
		if err := scan(&e.Seq, &at, &e.Who, &e.What, &e.On, &e.Before, &e.After, &e.Why); err != nil {
			return err
		}
		e.At = timeOf(at)
		for _, t := range []*string{&e.Who, &e.What, &e.On, &e.Before, &e.After, &e.Why} {
			*t = unescape(*t)
		}
		entries = append(entries, e)
		return nil
	}, after, limit)
	return entries, s.explain(s.saw(err))
}
