package storetest

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// diff names the fields in which two records differ, or returns "". Fields
// that only the rule reads are left out, since a store may keep them in
// another form, and what they lead to is tested: Marks, Found, FoundLease,
// FoundSteps, Released, Revision, a Held record's Result, and when a Shrunk one
// was written.
func diff(got, want idempotency.Record) string {
	g, w := fields(got), fields(want)
	var out []string
	for i := range g {
		if g[i].value != w[i].value {
			out = append(out, fmt.Sprintf("%s is %s, want %s", g[i].name, g[i].value, w[i].value))
		}
	}
	return strings.Join(out, "; ")
}

type field struct{ name, value string }

func fields(r idempotency.Record) []field {
	f := []field{
		{"Key", r.Key.ID.String() + " of " + r.Key.Tenant},
		{"State", r.State.String()},
		{"Owner", r.Owner.String()},
		{"Token", fmt.Sprint(int64(r.Token))},
		{"Terms", fmt.Sprintf("%+v", r.Terms)},
		{"Origin", fmt.Sprintf("%+v", r.Origin)},
		{"Attempt", fmt.Sprint(r.Attempt)},
		{"Takeover", fmt.Sprint(r.Takeover)},
		{"LeaseEnd", stamp(r.LeaseEnd)},
		{"Created", stamp(r.Created)},
		{"AsOf", stamp(r.AsOf)},
	}
	if r.State != idempotency.Shrunk { // it is shrunk when read, or by a Sweep
		f = append(f, field{"Updated", stamp(r.Updated)})
	} else {
		f = append(f, field{"Updated", "none"})
	}
	prints := make([]string, 0, len(r.Prints))
	for _, p := range r.Prints {
		prints = append(prints, fmt.Sprintf("%s:%x", p.Tag, p.Sum[:4]))
	}
	f = append(f, field{"Prints", strings.Join(prints, " ")})
	result, window, expires := "", "", ""
	if r.State == idempotency.Ended || r.State == idempotency.Shrunk {
		result, window, expires = showResult(r.Result), stamp(r.WindowEnd), stamp(r.Expires)
	}
	f = append(f, field{"Result", result}, field{"WindowEnd", window}, field{"Expires", expires})
	steps := make([]string, 0, len(r.Steps))
	for _, s := range r.Steps {
		steps = append(steps, fmt.Sprintf("{%q done=%v key=%q id=%q answer=%s from %s to %s}",
			s.Name, s.Done, s.ProviderKey, s.ProviderID, showBytes(s.Answer), stamp(s.Started), stamp(s.Ended)))
	}
	return append(f, field{"Steps", strings.Join(steps, " ")})
}

func showResult(r idempotency.Result) string {
	return fmt.Sprintf("%v %d by %v, window %v, not kept %v, payload %s",
		r.Class, r.Status, r.By, r.Window, r.NotKept, showBytes(r.Payload))
}

func showBytes(b []byte) string {
	if len(b) <= 32 {
		return fmt.Sprintf("%q", b)
	}
	return fmt.Sprintf("%d bytes %x", len(b), sha256.Sum256(b))
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "none"
	}
	return t.UTC().Format("15:04:05.999999999 2006-01-02")
}

// show is a record in one line.
func show(r idempotency.Record) string {
	var b strings.Builder
	for _, f := range fields(r) {
		if f.value != "" && f.value != "none" {
			fmt.Fprintf(&b, "%s=%s ", f.name, f.value)
		}
	}
	return strings.TrimSpace(b.String())
}

// sameResult reports what differs between two results, or "".
func sameResult(got, want idempotency.Result) string {
	if got.Equal(want) {
		return ""
	}
	return fmt.Sprintf("%s, want %s", showResult(got), showResult(want))
}

// outline is r as a list shows it.
func outline(r idempotency.Record) idempotency.Record {
	r.Result.Payload = nil
	r.Steps = append([]idempotency.Step(nil), r.Steps...)
	for i := range r.Steps {
		r.Steps[i].Answer = nil
	}
	return r
}
