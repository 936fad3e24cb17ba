package storetest

import (
	"bytes"
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// settingCases test Settings.
var settingCases = []Case{
	recordCase("SettingsAreWrittenByVersion", needsSettings, func(e *env) {
		s := e.settings()
		if _, _, err := s.Get(e.ctx(), "secret"); err == nil {
			e.Fatal("Get of a setting that is not there returns nil")
		} else {
			e.isErr("Get", err, idempotency.ErrNotFound)
		}
		e.isErr("PutIf of version 3", s.PutIf(e.ctx(), "secret", []byte("a"), 3), idempotency.ErrConflict)
		value := []byte("a\x00\xff")
		e.put("secret", value, 0)
		clear(value) // the store has its own copy
		got, version := e.get("secret")
		if string(got) != "a\x00\xff" || version < 1 {
			e.Fatalf("Get is %q, version %d", got, version)
		}
		clear(got)
		if got, _ := e.get("secret"); string(got) != "a\x00\xff" {
			e.Fatalf("Get is %q after a caller wrote to what an earlier Get returned", got)
		}
		e.isErr("PutIf of version 0", s.PutIf(e.ctx(), "secret", []byte("b"), 0), idempotency.ErrConflict)
		e.put("secret", []byte("b"), version)
		got, next := e.get("secret")
		if string(got) != "b" || next <= version {
			e.Fatalf("Get is %q, version %d, after version %d", got, next, version)
		}
		e.isErr("PutIf of an old version", s.PutIf(e.ctx(), "secret", []byte("c"), version), idempotency.ErrConflict)
		if got, _ := e.get("secret"); string(got) != "b" {
			e.Fatalf("Get is %q after a conflict", got)
		}
		e.put("other", nil, 0)
		if got, _ := e.get("other"); len(got) != 0 {
			e.Fatalf("the empty value is %q", got)
		}
	}),
	recordCase("SettingsHoldSixtyFourKibibytes", needsSettings, func(e *env) {
		big := bytes.Repeat([]byte{0, 255, '\n', 7}, 16<<10)
		e.put("big", big, 0)
		if got, _ := e.get("big"); !bytes.Equal(got, big) {
			e.Fatalf("a value of %d bytes came back with %d", len(big), len(got))
		}
		if err := e.settings().PutIf(e.ctx(), "bigger", append(big, 0), 0); err == nil {
			e.Fatal("PutIf of 64 KiB and one byte returns nil")
		}
	}),
	recordCase("SettingsOneOfManyWins", needsSettings, func(e *env) {
		for round := range 5 {
			name := fmt.Sprint("first ", round)
			errs := together(12, func(i int) error { return e.settings().PutIf(e.ctx(), name, fmt.Append(nil, i), 0) })
			won := 0
			for i, err := range errs {
				if err == nil {
					won++
					if got, _ := e.get(name); string(got) != fmt.Sprint(i) {
						e.Fatalf("writer %d won and the value is %q", i, got)
					}
				} else {
					e.isErr("PutIf", err, idempotency.ErrConflict)
				}
			}
			if won != 1 {
				e.Fatalf("%d of 12 writers won", won)
			}
		}
	}),
	recordCase("AuditIsInOrder", needsSettings, func(e *env) {
		s := e.settings()
		if got, err := s.Audit(e.ctx(), 0, 0); err != nil || len(got) != 0 {
			e.Fatalf("the empty audit log is %v, %v", got, err)
		}
		const n = 120
		for i := range n {
			err := s.Append(e.ctx(), idempotency.AuditEntry{
				Seq: 7, At: time.Unix(1, 0), // the store gives these itself
				Who: "ana", What: "settle", On: fmt.Sprint("key ", i), Before: "unknown", After: "succeeded", Why: "asked the bank: \"paid\"\n",
			})
			if err != nil {
				e.Fatalf("Append: %v", err)
			}
			e.clock.Advance(time.Second)
		}
		begin := e.clock.Now().Add(-n * time.Second)
		var after int64
		var all []idempotency.AuditEntry
		for {
			page, err := s.Audit(e.ctx(), after, 50)
			if err != nil || len(page) > 50 {
				e.Fatalf("Audit: %d entries, %v", len(page), err)
			}
			if len(page) == 0 {
				break
			}
			all = append(all, page...)
			after = page[len(page)-1].Seq
		}
		if len(all) != n {
			e.Fatalf("the audit log has %d entries, want %d", len(all), n)
		}
		for i, x := range all {
			if i > 0 && x.Seq <= all[i-1].Seq || x.Seq < 1 {
				e.Fatalf("entry %d has the number %d", i, x.Seq)
			}
			e.at("the entry's time", x.At, begin.Add(time.Duration(i)*time.Second))
			x.Seq, x.At = 0, time.Time{}
			want := idempotency.AuditEntry{Who: "ana", What: "settle", On: fmt.Sprint("key ", i), Before: "unknown", After: "succeeded", Why: "asked the bank: \"paid\"\n"}
			if x != want {
				e.Fatalf("entry %d is %+v, want %+v", i, x, want)
			}
		}
		if got, err := s.Audit(e.ctx(), 0, 0); err != nil || len(got) != 100 || got[0].Seq != all[0].Seq {
			e.Fatalf("Audit without a limit has %d entries (%v), want the first 100", len(got), err)
		}
		for _, limit := range []int{-1, idempotency.MaxPage + 1} {
			if _, err := s.Audit(e.ctx(), 0, limit); err == nil {
				e.Fatalf("Audit with a limit of %d returns nil", limit)
			}
		}
	}),
	recordCase("AuditLosesNothingToConcurrency", needsSettings, func(e *env) {
		for _, err := range together(20, func(i int) error {
			return e.settings().Append(e.ctx(), idempotency.AuditEntry{On: fmt.Sprint(i)})
		}) {
			if err != nil {
				e.Fatalf("Append: %v", err)
			}
		}
		got, err := e.settings().Audit(e.ctx(), 0, 1000)
		if err != nil {
			e.Fatalf("Audit: %v", err)
		}
		seen := map[string]bool{}
		for _, x := range got {
			seen[x.On] = true
		}
		if len(got) != 20 || len(seen) != 20 {
			e.Fatalf("20 concurrent entries became %d, %d of them different", len(got), len(seen))
		}
	}),
}

func (e *env) get(name string) ([]byte, int64) {
	e.Helper()
	v, n, err := e.settings().Get(e.ctx(), name)
	if err != nil {
		e.Fatalf("Get(%q): %v", name, err)
	}
	return v, n
}

func (e *env) put(name string, value []byte, version int64) {
	e.Helper()
	if err := e.settings().PutIf(e.ctx(), name, value, version); err != nil {
		e.Fatalf("PutIf(%q, version %d): %v", name, version, err)
	}
}
