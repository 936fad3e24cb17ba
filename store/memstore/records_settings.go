package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/escapement-dev/escapement/idempotency"
)

const (
	settingBytes = 96  // counted for every setting beside its strings
	entryBytes   = 144 // counted for every audit entry beside its strings
)

type setting struct {
	value   []byte
	version int64
}

// Get implements idempotency.Settings.
func (m *Records) Get(ctx context.Context, name string) (value []byte, version int64, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.settings[name]
	if !ok {
		return nil, 0, idempotency.ErrNotFound
	}
	return bytes.Clone(s.value), s.version, nil
}

// PutIf implements idempotency.Settings. A value over idempotency.MaxSetting is
// an error; a new setting for which there is no room is ErrFull.
func (m *Records) PutIf(ctx context.Context, name string, value []byte, version int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(value) > idempotency.MaxSetting {
		return fmt.Errorf("memstore: the setting %q has %d bytes: want at most %d", name, len(value), idempotency.MaxSetting)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, ok := m.settings[name]
	if old.version != version {
		return idempotency.ErrConflict
	}
	grow := int64(len(value) - len(old.value))
	if !ok {
		grow += settingBytes + int64(len(name))
	}
	if !m.grow(grow, ok) {
		return idempotency.ErrFull
	}
	m.settings[name] = setting{value: bytes.Clone(value), version: version + 1}
	return nil
}

// Append implements idempotency.Settings. ErrFull if there is no room: entries
// are never dropped.
func (m *Records) Append(ctx context.Context, e idempotency.AuditEntry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.grow(int64(entryBytes+len(e.Who)+len(e.What)+len(e.On)+len(e.Before)+len(e.After)+len(e.Why)), false) {
		return idempotency.ErrFull
	}
	e.Seq, e.At = int64(len(m.audit)+1), m.time()
	m.audit = append(m.audit, e)
	return nil
}

// Audit implements idempotency.Settings. A faulty limit is an error.
func (m *Records) Audit(ctx context.Context, after int64, limit int) ([]idempotency.AuditEntry, error) {
	limit, err := idempotency.PageSize(limit)
	if err := errors.Join(ctx.Err(), err); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	from := min(max(after, 0), int64(len(m.audit)))
	to := min(from+int64(limit), int64(len(m.audit)))
	return slices.Clone(m.audit[from:to]), nil
}

// grow counts n more bytes, and reports false, counting nothing, if they must
// fit and do not, even after evicting.
func (m *Records) grow(n int64, always bool) bool {
	for range maxTries {
		if m.bytes.Add(n) <= m.maxBytes || always {
			return true
		}
		m.bytes.Add(-n)
		if !m.evict(m.time()) {
			break
		}
	}
	return false
}
