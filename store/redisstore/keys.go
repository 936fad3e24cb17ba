package redisstore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/escapement-dev/escapement/idempotency"
)

// maxPart is the greatest length, in bytes, of an escaped part of a key's name.
const maxPart = 96

// plain reports whether c stands for itself in a key's name.
func plain(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_' || c == '@' || c == '='
}

// escape makes a part of a key's name of any text: what is not plain becomes
// % and two digits, so no part has a colon or a brace, and no two texts give
// the same. A long text is ~ and the beginning of its SHA-256.
func escape(text string) string {
	n := 0
	for i := range len(text) {
		if !plain(text[i]) {
			n++
		}
	}
	if len(text)+2*n > maxPart {
		sum := sha256.Sum256([]byte(text))
		return "~" + hex.EncodeToString(sum[:20])
	}
	if n == 0 {
		return text
	}
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(text) + 2*n)
	for i := range len(text) {
		if c := text[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
	return b.String()
}

// validPrefix reports why p cannot stand in front of all keys. A brace would
// move the hash tag.
func validPrefix(p string) error {
	for i := range len(p) {
		if c := p[i]; !plain(c) && c != ':' && c != '/' {
			return fmt.Errorf("redisstore: prefix %q: want only a-z, A-Z, 0-9, '-', '.', '_', '@', '=', ':' and '/'", p)
		}
	}
	return nil
}

const recordMark = ":idem:"

// recordKey is the name of a key's record.
func (s *Store) recordKey(k idempotency.Key) string {
	b := append(append(make([]byte, 0, 192), s.prefix...), "tenant:"...)
	if s.spread {
		b = append(append(append(b, escape(k.Tenant)...), recordMark...), '{')
		return string(append(hex.AppendEncode(b, k.ID[:]), '}'))
	}
	b = append(append(append(b, '{'), escape(k.Tenant)...), '}')
	return string(hex.AppendEncode(append(b, recordMark...), k.ID[:]))
}

// recordPattern matches the names of the records of a tenant, or of all, as
// SCAN's MATCH reads it. Nothing in a prefix or an escaped tenant is special
// there.
func (s *Store) recordPattern(tenant string) string {
	t := "*"
	if tenant != "" {
		t = escape(tenant)
	}
	if s.spread {
		return s.prefix + "tenant:" + t + recordMark + "{*}"
	}
	return s.prefix + "tenant:{" + t + "}" + recordMark + "*"
}

// recordID is the ID in the name of a record.
func recordID(name string) (idempotency.ID, bool) {
	i := strings.LastIndex(name, recordMark)
	if i < 0 {
		return idempotency.ID{}, false
	}
	id, err := idempotency.ParseID(strings.Trim(name[i+len(recordMark):], "{}"))
	return id, err == nil
}

// limitKey is the name of what a rule holds about a subject, and whether it
// stands under its tenant's tag.
func (s *Store) limitKey(rule, subject string) (name string, ofTenant bool) {
	b, ofTenant := s.appendLimitKey(make([]byte, 0, 128), rule, subject)
	return string(b), ofTenant
}

func (s *Store) appendLimitKey(b []byte, rule, subject string) (name []byte, ofTenant bool) {
	b = append(b, s.prefix...)
	if s.tenantOf != nil {
		if t := s.tenantOf(rule, subject); t != "" {
			b = append(append(append(b, "tenant:{"...), escape(t)...), "}:rate:"...)
			b = append(append(b, rule...), ':')
			return append(b, escape(subject)...), true
		}
	}
	b = append(append(append(b, "rate:{"...), rule...), ':')
	return append(append(b, escape(subject)...), '}'), false
}

func (s *Store) settingKey(name string) string { return s.prefix + "setting:{" + escape(name) + "}" }

func (s *Store) auditKey() string { return s.prefix + "audit" }
