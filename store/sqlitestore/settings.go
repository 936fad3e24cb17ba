package sqlitestore

import (
	"context"
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// Get implements idempotency.Settings. It fails where writing would because the
// file is not in its place any more.
func (s *Store) Get(ctx context.Context, name string) (value []byte, version int64, err error) {
	err = s.read(ctx, func(ss session, _ time.Time) (err error) {
		if err := s.files.check(); err != nil {
			return err
		}
		value, version, err = setting(ctx, ss, name)
		return err
	})
	if err == nil && version == 0 {
		err = idempotency.ErrNotFound
	}
	return value, version, err
}

// setting returns a setting; version 0 if there is none.
func setting(ctx context.Context, ss session, name string) (value []byte, version int64, err error) {
	err = ss.query(ctx, selectSetting, func(v []any) (bool, error) {
		value = bytesOf(v[0])
		version, _ = v[1].(int64)
		return false, nil
	}, name)
	return value, version, err
}

// PutIf implements idempotency.Settings.
func (s *Store) PutIf(ctx context.Context, name string, value []byte, version int64) error {
	if len(value) > idempotency.MaxSetting {
		return fmt.Errorf("sqlitestore: the setting %q has %d bytes: want at most %d", name, len(value), idempotency.MaxSetting)
	}
	return s.write(ctx, false, func(ss session, now time.Time) error {
		ctx := context.Background()
		_, have, err := setting(ctx, ss, name)
		switch {
		case err != nil:
			return err
		case have != version:
			return idempotency.ErrConflict
		case have == 0:
			return ss.exec(ctx, insertSetting, name, bytesValue(value), micros(now))
		}
		return ss.exec(ctx, updateSetting, bytesValue(value), micros(now), name)
	})
}

// Append implements idempotency.Settings. The entry's Seq and At are not
// looked at.
func (s *Store) Append(ctx context.Context, e idempotency.AuditEntry) error {
	return s.write(ctx, false, func(ss session, now time.Time) error {
		return ss.exec(context.Background(), insertAudit, micros(now), e.Who, e.What, e.On, e.Before, e.After, e.Why)
	})
}

// Audit implements idempotency.Settings.
func (s *Store) Audit(ctx context.Context, after int64, limit int) ([]idempotency.AuditEntry, error) {
	limit, err := idempotency.PageSize(limit)
	if err != nil {
		return nil, err
	}
	var entries []idempotency.AuditEntry
	err = s.read(ctx, func(ss session, _ time.Time) error {
		return ss.query(ctx, selectAudit, func(v []any) (bool, error) {
			seq, _ := v[0].(int64)
			at, _ := v[1].(int64)
			entries = append(entries, idempotency.AuditEntry{
				Seq: seq, At: time.UnixMicro(at).UTC(), Who: text(v[2]), What: text(v[3]), On: text(v[4]),
				Before: text(v[5]), After: text(v[6]), Why: text(v[7]),
			})
			return true, nil
		}, after, int64(limit))
	})
	return entries, err
}
