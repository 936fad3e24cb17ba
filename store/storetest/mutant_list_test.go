package storetest_test

import (
	"bytes"
	"errors"
	"runtime"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// mutants are stores that the suite must refuse. caught lists beginnings of
// the names of cases, each of which must have one that fails.
var mutants = []struct {
	name   string
	caught string
	spoil  func(m *mutant)
}{
	{"the fence ignores the token", "F1Owner Machine", func(m *mutant) {
		m.end = func(m *mutant, c ctx, r reservation, e ending) error {
			h, _ := m.holder(c, r.Key)
			if h.Token != 0 {
				r.Token = h.Token
			}
			return m.Records.End(c, r, e)
		}
	}},
	{"the fence ignores the owner", "F1Owner Machine History", func(m *mutant) {
		m.extend = func(m *mutant, c ctx, r reservation, d time.Duration) (time.Time, error) {
			h, _ := m.holder(c, r.Key)
			r.Owner = h.Owner
			return m.Records.Extend(c, r, d)
		}
	}},
	{"steps are not fenced", "F1Steps Machine", func(m *mutant) {
		m.step = func(m *mutant, c ctx, r reservation, s idempotency.Step) error {
			h, _ := m.holder(c, r.Key)
			return m.Records.SaveStep(c, h, s)
		}
	}},
	{"NotRun frees whatever was there", "R9Unknown R9Retryable Machine", func(m *mutant) {
		m.end = func(m *mutant, c ctx, r reservation, e ending) error {
			if e.Kind != idempotency.EndedNotRun {
				return m.Records.End(c, r, e)
			}
			if err := m.Records.End(c, r, idempotency.Done(idempotency.Result{Class: idempotency.FailedRetryable})); err != nil {
				return m.Records.End(c, r, e)
			}
			_, rec := m.holder(c, r.Key)
			return m.Records.Forget(c, r.Key, rec.Revision)
		}
	}},
	{"NotRun does nothing", "R9Free R9Late Machine History", func(m *mutant) {
		m.end = func(m *mutant, c ctx, r reservation, e ending) error {
			if e.Kind == idempotency.EndedNotRun {
				return nil
			}
			return m.Records.End(c, r, e)
		}
	}},
	{"R2 comes after R4", "R2Other R2Comes R2Only Machine", func(m *mutant) {
		m.reserve = func(m *mutant, c ctx, cl claim) (answer, error) {
			if _, rec := m.holder(c, cl.Key); rec.State == idempotency.Held {
				cl.Prints = nil
			}
			return m.Records.Reserve(c, cl)
		}
	}},
	{"other tags mismatch", "R2Only Machine", answers(func(m *mutant, c ctx, cl claim, a *answer) {
		if a.NotComparable {
			*a = answer{Outcome: idempotency.Mismatched, Record: a.Record, NotComparable: true}
		}
	})},
	{"fingerprints are not compared", "R2Other Machine", func(m *mutant) {
		m.reserve = func(m *mutant, c ctx, cl claim) (answer, error) {
			if _, rec := m.holder(c, cl.Key); rec.State != idempotency.Free {
				cl.Prints = nil
			}
			return m.Records.Reserve(c, cl)
		}
	}},
	{"Sweep removes unknown records", "E1SweepRemoves Machine", func(m *mutant) {
		m.sweep = func(m *mutant, c ctx, limit int) (int, error) {
			p, _ := m.Records.List(c, idempotency.Filter{Status: idempotency.StatusUnknown})
			for _, r := range p.Records {
				_ = m.Records.Forget(c, r.Key, r.Revision)
			}
			return m.Records.Sweep(c, limit)
		}
	}},
	{"Sweep ignores its limit", "E1SweepKeeps", func(m *mutant) {
		m.sweep = func(m *mutant, c ctx, limit int) (int, error) { return m.Records.Sweep(c, 1000) }
	}},
	{"Sweep removes what has a result", "E1SweepNot E1SweepRemoves Machine", func(m *mutant) {
		m.sweep = func(m *mutant, c ctx, limit int) (int, error) {
			p, _ := m.Records.List(c, idempotency.Filter{Status: idempotency.StatusSucceeded})
			for _, r := range p.Records {
				_ = m.Records.Forget(c, r.Key, r.Revision)
			}
			return m.Records.Sweep(c, limit)
		}
	}},
	{"the lease is 1µs short", "R1Free Machine", terms(func(t *idempotency.Terms) { t.Lease -= time.Microsecond })},
	{"the retention is 1µs short", "R1Expired R1Retention Machine", terms(func(t *idempotency.Terms) { t.Retention -= time.Microsecond })},
	{"nothing is quiet", "R5Retry R5Fail R11Unknown Machine", terms(func(t *idempotency.Terms) { t.Quiet = 0 })},
	{"hold retries", "R5Hold R1Unknown Machine", terms(func(t *idempotency.Terms) {
		if t.OnUnknown == idempotency.Hold {
			t.OnUnknown = idempotency.Retry
		}
	})},
	{"fail probes", "R5Fail Machine", terms(func(t *idempotency.Terms) {
		if t.OnUnknown == idempotency.Fail {
			t.OnUnknown = idempotency.Probe
		}
	})},
	{"the claim's terms count, not the record's", "R5Goes Machine", func(m *mutant) {
		m.reserve = func(m *mutant, c ctx, cl claim) (answer, error) {
			a, err := m.Records.Reserve(c, cl)
			if err == nil && a.Outcome == idempotency.Unknown && cl.Terms.OnUnknown != idempotency.Hold {
				_ = m.Records.Forget(c, cl.Key, a.Record.Revision)
				return m.Records.Reserve(c, cl)
			}
			return a, err
		}
	}},
	{"nothing is remembered", "R8Shrunk E1SweepShrinks Machine", terms(func(t *idempotency.Terms) { t.Remember = 0 })},
	{"a takeover is not marked", "R5Retry R9Unknown Machine", answers(func(m *mutant, c ctx, cl claim, a *answer) { a.Reservation.Takeover = false })},
	{"a repeat is not marked", "R3Same R12Repeated Machine", answers(func(m *mutant, c ctx, cl claim, a *answer) { a.Reservation.Repeated = false })},
	{"steps are lost at a takeover", "R5Takeover R3Repeat Machine", answers(func(m *mutant, c ctx, cl claim, a *answer) { a.Record.Steps = nil })},
	{"an owner refuses itself", "R3Same R3Holds Machine", func(m *mutant) {
		m.reserve = func(m *mutant, c ctx, cl claim) (answer, error) {
			if h, rec := m.holder(c, cl.Key); rec.State == idempotency.Held && h.Owner == cl.Owner {
				cl.Owner = idempotency.NewOwner()
			}
			return m.Records.Reserve(c, cl)
		}
	}},
	{"a repeat does not renew the lease", "R3Same Machine", func(m *mutant) {
		m.reserve = func(m *mutant, c ctx, cl claim) (answer, error) {
			if h, rec := m.holder(c, cl.Key); rec.State == idempotency.Held && h.Owner == cl.Owner {
				cl.Terms.Lease = time.Microsecond
			}
			return m.Records.Reserve(c, cl)
		}
	}},
	{"tokens begin anew", "R6 F4 Machine", answers(func(m *mutant, c ctx, cl claim, a *answer) {
		if a.Reservation.Token > 1 {
			a.Reservation.Token = 1
		}
	})},
	{"two of many start", "PropertyOneOfFiftyStarts", answers(func(m *mutant, c ctx, cl claim, a *answer) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.calls++; a.Outcome == idempotency.InProgress && m.calls == 20 {
			h, _ := m.holder(c, cl.Key)
			*a = answer{Outcome: idempotency.Started, Record: a.Record, Reservation: h}
		}
	})},
	{"claims are looked up, then made", "PropertyOneOfFiftyStarts History", func(m *mutant) {
		m.reserve = func(m *mutant, c ctx, cl claim) (answer, error) {
			_, err := m.Records.Lookup(c, cl.Key)
			free := errors.Is(err, idempotency.ErrNotFound)
			runtime.Gosched()
			a, err := m.Records.Reserve(c, cl)
			if h, rec := m.holder(c, cl.Key); free && err == nil && a.Outcome == idempotency.InProgress {
				h.Owner = cl.Owner
				a = answer{Outcome: idempotency.Started, Record: rec, Reservation: h}
			}
			return a, err
		}
	}},
	{"End minds the clock", "F3TheToken R11Owner Machine", func(m *mutant) {
		m.end = func(m *mutant, c ctx, r reservation, e ending) error {
			if h, rec := m.holder(c, r.Key); rec.State == idempotency.Held && h.Owner == r.Owner && !m.clock.Now().Before(rec.LeaseEnd) {
				return idempotency.ErrFenced
			}
			return m.Records.End(c, r, e)
		}
	}},
	{"Extend minds the clock", "F3TheToken Machine", func(m *mutant) {
		m.extend = func(m *mutant, c ctx, r reservation, d time.Duration) (time.Time, error) {
			if _, rec := m.holder(c, r.Key); !m.clock.Now().Before(rec.LeaseEnd) {
				return time.Time{}, idempotency.ErrFenced
			}
			return m.Records.Extend(c, r, d)
		}
	}},
	{"Extend returns what was asked for", "F3Extend Machine", func(m *mutant) {
		m.extend = func(m *mutant, c ctx, r reservation, d time.Duration) (time.Time, error) {
			end, err := m.Records.Extend(c, r, d)
			if err == nil {
				end = m.clock.Now().Add(d)
			}
			return end, err
		}
	}},
	{"the same End again is fenced", "F2TheSame Machine", func(m *mutant) {
		m.end = func(m *mutant, c ctx, r reservation, e ending) error {
			if _, rec := m.holder(c, r.Key); rec.State == idempotency.Ended {
				return idempotency.ErrFenced
			}
			return m.Records.End(c, r, e)
		}
	}},
	{"any End of the owner's is repeated", "F2Another Machine", func(m *mutant) {
		m.end = func(m *mutant, c ctx, r reservation, e ending) error {
			if h, rec := m.holder(c, r.Key); e.Validate() == nil && rec.State == idempotency.Ended && h.Owner == r.Owner && h.Token == r.Token {
				return nil
			}
			return m.Records.End(c, r, e)
		}
	}},
	{"the window is ignored", "R6Retryable Machine", ends(func(m *mutant, r *reservation, e *ending) { e.Result.Window = 0 })},
	{"a retryable result is final", "R6Retryable R6No Machine", ends(func(m *mutant, r *reservation, e *ending) {
		if e.Kind == idempotency.EndedDone && e.Result.Class == idempotency.FailedRetryable {
			e.Result.Class, e.Result.Window = idempotency.FailedFinal, 0
		}
	})},
	{"payloads are cut at 64 KiB", "R7Payloads", ends(func(m *mutant, r *reservation, e *ending) {
		e.Result.Payload = e.Result.Payload[:min(len(e.Result.Payload), 64<<10)]
	})},
	{"payloads are text", "R7Payloads R7Done", ends(func(m *mutant, r *reservation, e *ending) {
		e.Result.Payload = bytes.ToValidUTF8(e.Result.Payload, []byte("?"))
	})},
	{"payloads are shared with callers", "R7Callers", func(m *mutant) {
		ends(func(m *mutant, r *reservation, e *ending) {
			m.mu.Lock()
			defer m.mu.Unlock()
			if e.Kind == idempotency.EndedDone {
				m.kept[r.Key.ID] = e.Result.Payload
			}
		})(m)
		answers(func(m *mutant, c ctx, cl claim, a *answer) {
			m.mu.Lock()
			defer m.mu.Unlock()
			if a.Outcome == idempotency.Replayed && len(a.Record.Result.Payload) > 0 {
				a.Record.Result.Payload = m.kept[cl.Key.ID]
			}
		})(m)
	}},
	{"archived records keep their payload", "R8Shrunk", func(m *mutant) {
		ends(func(m *mutant, r *reservation, e *ending) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.kept[r.Key.ID] = bytes.Clone(e.Result.Payload)
		})(m)
		answers(func(m *mutant, c ctx, cl claim, a *answer) {
			m.mu.Lock()
			defer m.mu.Unlock()
			if a.Outcome == idempotency.Archived {
				a.Record.Result.Payload = m.kept[cl.Key.ID]
			}
		})(m)
	}},
	{"Unknown does nothing", "R11Unknown Machine", func(m *mutant) {
		m.end = func(m *mutant, c ctx, r reservation, e ending) error {
			if h, _ := m.holder(c, r.Key); e.Kind == idempotency.EndedUnknown && h.Owner == r.Owner && h.Token == r.Token {
				return nil
			}
			return m.Records.End(c, r, e)
		}
	}},
	{"Void leaves no mark", "R12Late R12Void R10Void Machine History", func(m *mutant) {
		m.void = func(m *mutant, c ctx, k key, o idempotency.Owner) error {
			if h, rec := m.holder(c, k); rec.State == idempotency.Held && h.Owner == o {
				return m.Records.End(c, h, idempotency.NotRun())
			}
			return nil
		}
	}},
	{"Void leaves the key held", "R10VoidFrees R10Void Machine", func(m *mutant) {
		m.void = func(m *mutant, c ctx, k key, o idempotency.Owner) error {
			if h, _ := m.holder(c, k); h.Owner == o && !o.IsZero() {
				return nil
			}
			return m.Records.Void(c, k, o)
		}
	}},
	{"Void frees another's key", "R10VoidLeaves Machine", func(m *mutant) {
		m.void = func(m *mutant, c ctx, k key, o idempotency.Owner) error {
			if h, rec := m.holder(c, k); rec.State == idempotency.Held {
				return m.Records.Void(c, k, h.Owner)
			}
			return m.Records.Void(c, k, o)
		}
	}},
	{"a repeated NotRun leaves no mark", "R12Repeated R12NotRun Machine", ends(func(m *mutant, r *reservation, e *ending) { r.Repeated = false })},
	{"a cancelled Reserve arrives after its Void", "R10Cancelled F6Cancelled", func(m *mutant) {
		m.reserve = func(m *mutant, c ctx, cl claim) (answer, error) {
			if err := c.Err(); err != nil {
				m.mu.Lock()
				m.kept[cl.Key.ID] = nil
				m.mu.Unlock()
				return answer{}, err
			}
			m.mu.Lock()
			_, late := m.kept[cl.Key.ID]
			delete(m.kept, cl.Key.ID)
			m.mu.Unlock()
			if late {
				stolen := cl
				stolen.Owner = idempotency.NewOwner()
				_, _ = m.Records.Reserve(c, stolen)
			}
			return m.Records.Reserve(c, cl)
		}
	}},
	{"one error fails its neighbours", "F6One", func(m *mutant) {
		m.reserve = func(m *mutant, c ctx, cl claim) (answer, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			a, err := m.Records.Reserve(c, cl)
			if err != nil {
				m.calls = 1
				return a, err
			}
			if m.calls == 1 {
				m.calls = 0
				return answer{}, errors.New("batch failed")
			}
			return a, nil
		}
	}},
	{"Settle ignores the revision", "F9SettleNeedsTheRevision Machine", func(m *mutant) {
		m.settle = func(m *mutant, c ctx, k key, v idempotency.Revision, r idempotency.Result) error {
			_, rec := m.holder(c, k)
			return m.Records.Settle(c, k, rec.Revision, r)
		}
	}},
	{"Settle does not wait", "F9SettleNeedsTheQuiet Machine", func(m *mutant) {
		m.settle = func(m *mutant, c ctx, k key, v idempotency.Revision, r idempotency.Result) error {
			h, rec := m.holder(c, k)
			err := m.Records.Settle(c, k, v, r)
			if errors.Is(err, idempotency.ErrLive) && !rec.Owner.IsZero() {
				r.By = idempotency.FromOperator
				return m.Records.End(c, h, idempotency.Done(r))
			}
			return err
		}
	}},
	{"Forget leaves no mark", "F9ForgetReleases Machine", func(m *mutant) {
		m.forget = func(m *mutant, c ctx, k key, v idempotency.Revision) error {
			h, rec := m.holder(c, k)
			if rec.Revision == v && rec.State == idempotency.Held && rec.Found == idempotency.FoundFree && len(rec.Steps) == 0 && rec.Status() == idempotency.StatusUnknown {
				return m.Records.End(c, h, idempotency.NotRun())
			}
			return m.Records.Forget(c, k, v)
		}
	}},
	{"lists show payloads", "ListShows", func(m *mutant) {
		m.list = func(m *mutant, c ctx, f idempotency.Filter) (idempotency.Page, error) {
			p, err := m.Records.List(c, f)
			for i, r := range p.Records {
				p.Records[i], _ = m.Records.Lookup(c, r.Key)
			}
			return p, err
		}
	}},
	{"lists ignore the tenant", "ListFilters Machine", func(m *mutant) {
		m.list = func(m *mutant, c ctx, f idempotency.Filter) (idempotency.Page, error) {
			f.Tenant = ""
			return m.Records.List(c, f)
		}
	}},
	{"pages lose their last record", "ListMany ListFilters ListCursor Machine", func(m *mutant) {
		m.list = func(m *mutant, c ctx, f idempotency.Filter) (idempotency.Page, error) {
			p, err := m.Records.List(c, f)
			if p.Next != "" && len(p.Records) > 0 {
				p.Records = p.Records[:len(p.Records)-1]
			}
			return p, err
		}
	}},
	{"only the first page is listed", "ListMany ListCursor Machine", func(m *mutant) {
		m.list = func(m *mutant, c ctx, f idempotency.Filter) (idempotency.Page, error) {
			p, err := m.Records.List(c, f)
			p.Next = ""
			return p, err
		}
	}},
	{"settings ignore the version", "SettingsAre SettingsOne", func(m *mutant) {
		m.put = func(m *mutant, c ctx, name string, value []byte, version int64) error {
			_, v, _ := m.Records.Get(c, name)
			return m.Records.PutIf(c, name, value, v)
		}
	}},
	{"every tenth audit entry is lost", "AuditIs AuditLoses", func(m *mutant) {
		m.log = func(m *mutant, c ctx, e idempotency.AuditEntry) error {
			m.mu.Lock()
			m.calls++
			lost := m.calls%10 == 0
			m.mu.Unlock()
			if lost {
				return nil
			}
			return m.Records.Append(c, e)
		}
	}},
	{"an expired record is gone once it was looked at", "E2Expiry Machine", func(m *mutant) {
		m.lookup = func(m *mutant, c ctx, k key) (idempotency.Record, error) {
			rec, err := m.Records.Lookup(c, k)
			if errors.Is(err, idempotency.ErrNotFound) {
				_, _ = m.Records.Sweep(c, 1000)
			}
			return rec, err
		}
	}},
	{"AsOf is missing", "R1Free Machine", func(m *mutant) {
		m.lookup = func(m *mutant, c ctx, k key) (idempotency.Record, error) {
			rec, err := m.Records.Lookup(c, k)
			rec.AsOf = time.Time{}
			return rec, err
		}
	}},
}
