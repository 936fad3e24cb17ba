package redisstore

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/escapement-dev/escapement/idempotency"
)

//go:embed lua/put.lua
var putLua string

//go:embed lua/append.lua
var appendLua string

var (
	putScript    = newScript("put a setting", putLua)
	appendScript = newScript("append to the audit log", nowLua, appendLua)
)

// Get implements idempotency.Settings.
func (s *Store) Get(ctx context.Context, name string) (value []byte, version int64, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	got, err := s.do(ctx, func() rueidis.Completed { return s.client.B().Hmget().Key(s.settingKey(name)).Field("v", "n").Build() }).ToArray()
	if err != nil {
		return nil, 0, explain("get a setting", err)
	}
	if len(got) != 2 || got[1].IsNil() {
		return nil, 0, idempotency.ErrNotFound
	}
	version, err = got[1].AsInt64()
	if err != nil {
		return nil, 0, errForm
	}
	return []byte(text(got[0])), version, nil
}

// PutIf implements idempotency.Settings. It is sent once: after an error that
// is ErrUnavailable, Get says whether the value was written.
func (s *Store) PutIf(ctx context.Context, name string, value []byte, version int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(value) > idempotency.MaxSetting {
		return fmt.Errorf("redisstore: the setting %q has %d bytes: want at most %d", name, len(value), idempotency.MaxSetting)
	}
	msg, err := s.once(ctx, putScript, []string{s.settingKey(name)}, []string{"", strconv.FormatInt(version, 10), string(value)})
	if err != nil {
		return explain(putScript.name, err)
	}
	if n, err := msg.AsInt64(); err != nil {
		return errForm
	} else if n == 0 {
		return idempotency.ErrConflict
	}
	return nil
}

// Append implements idempotency.Settings. It is sent once: after an error that
// is ErrUnavailable, Audit says whether the entry was written.
func (s *Store) Append(ctx context.Context, e idempotency.AuditEntry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var b []byte
	for _, p := range [...]string{e.Who, e.What, e.On, e.Before, e.After, e.Why} {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	_, err := s.once(ctx, appendScript, []string{s.auditKey()}, []string{"", string(b)})
	return explain(appendScript.name, err)
}

// Audit implements idempotency.Settings. A faulty limit is an error.
func (s *Store) Audit(ctx context.Context, after int64, limit int) ([]idempotency.AuditEntry, error) {
	limit, err := idempotency.PageSize(limit)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	after = max(after, 0)
	got, err := s.do(ctx, func() rueidis.Completed {
		return s.client.B().Lrange().Key(s.auditKey()).Start(after).Stop(after + int64(limit) - 1).Build()
	}).AsStrSlice()
	if err != nil {
		return nil, explain("read the audit log", err)
	}
	entries := make([]idempotency.AuditEntry, 0, len(got))
	for i, text := range got {
		r := reader{b: text}
		e := idempotency.AuditEntry{Seq: after + int64(i) + 1, At: fromMicros(r.int())}
		for _, p := range [...]*string{&e.Who, &e.What, &e.On, &e.Before, &e.After, &e.Why} {
			*p = r.text()
		}
		if r.bad {
			return nil, errForm
		}
		entries = append(entries, e)
	}
	return entries, nil
}
