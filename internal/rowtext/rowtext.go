// Package rowtext is the text in which the SQL stores keep the lists of a
// record in one column each, and read them back: fields that one space
// separates. The formats are stored: they do not change.
package rowtext

import (
	"encoding/hex"
	"net/url"
	"strconv"

	"github.com/escapement-dev/escapement/idempotency"
)

// Prints writes fingerprints as "hash tag hash tag", tags escaped so that they
// hold no space.
func Prints(ps []idempotency.Fingerprint) string {
	b := make([]byte, 0, len(ps)*96)
	for i, p := range ps {
		if i > 0 {
			b = append(b, ' ')
		}
		b = hex.AppendEncode(b, p.Sum[:])
		b = append(b, ' ')
		b = append(b, url.PathEscape(p.Tag)...)
	}
	return string(b)
}

// ReadPrints reads what [Prints] writes.
func ReadPrints(s string) ([]idempotency.Fingerprint, error) {
	if s == "" {
		return nil, nil
	}
	p := NewParser(s)
	ps := make([]idempotency.Fingerprint, 0, 1)
	for p.More() {
		var f idempotency.Fingerprint
		p.HexInto(f.Sum[:])
		tag, err := url.PathUnescape(p.Text())
		if err != nil {
			return nil, err
		}
		f.Tag = tag
		ps = append(ps, f)
	}
	return ps, p.End()
}

// Marks writes marks as "owner until owner until", in microseconds.
func Marks(ms []idempotency.Mark) string {
	b := make([]byte, 0, len(ms)*50)
	for i, m := range ms {
		if i > 0 {
			b = append(b, ' ')
		}
		b = hex.AppendEncode(b, m.Owner[:])
		b = append(b, ' ')
		b = strconv.AppendInt(b, m.Until.UnixMicro(), 10)
	}
	return string(b)
}

// ReadMarks reads what [Marks] writes.
func ReadMarks(s string) ([]idempotency.Mark, error) {
	if s == "" {
		return nil, nil
	}
	p := NewParser(s)
	var ms []idempotency.Mark
	for p.More() {
		var m idempotency.Mark
		p.HexInto(m.Owner[:])
		m.Until = p.Time()
		ms = append(ms, m)
	}
	return ms, p.End()
}

// ReadSteps reads what a query concatenates of the rows of steps: name, 1 or 0
// for done, provider's key, provider's id, answer, started, ended; names, keys,
// ids and answers as hexadecimal digits. Texts are given to text, which undoes
// what the store did to them.
func ReadSteps(s string, text func(string) string) ([]idempotency.Step, error) {
	if s == "" {
		return nil, nil
	}
	p := NewParser(s)
	var steps []idempotency.Step
	for p.More() {
		steps = append(steps, idempotency.Step{
			Name: text(string(p.Hex())), Done: p.Small(1) == 1,
			ProviderKey: text(string(p.Hex())), ProviderID: text(string(p.Hex())), Answer: p.Hex(),
			Started: p.Time(), Ended: p.Time(),
		})
	}
	return steps, p.End()
}
