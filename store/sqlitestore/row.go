package sqlitestore

import (
	"strings"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/rowtext"
)

// row is a record and where it is stored; seq 0 is a record that is not.
type row struct {
	seq int64
	idempotency.Record
}

// numbers are the columns of integers, in the order of row.readNumbers and
// row.numbers. A query concatenates them into one text: with every column on
// its own the driver makes three times the allocations.
var numbers = strings.Fields(`seq state token lease retention remember quiet on_unknown attempt takeover
	lease_end found found_lease found_steps class status not_kept retry_window source window_end expires
	created updated revision`)

// texts are the other columns but payload and steps.
var texts = strings.Fields("id tenant prints owner method route trace released marks")

// columns returns the result columns of a query for rows, for readRow.
func columns(payload bool) string {
	answer, pay := "''", "NULL"
	if payload {
		answer, pay = "hex(answer)", "payload"
	}
	return "concat(" + strings.Join(numbers, ",' ',") + ")," + strings.Join(texts, ",") + "," + pay +
		`, CASE WHEN steps > 0 THEN (SELECT group_concat(concat(hex(name),' ',done,' ',hex(provider_key),' ',hex(provider_id),' ',` +
		answer + `,' ',started,' ',ended), ' ' ORDER BY n) FROM escapement_steps WHERE record = seq) END`
}

// resultColumns is how many result columns columns gives.
const resultColumns = 12

// readRow makes a row of the values of one result row.
func readRow(v []any) (row, error) {
	var r row
	copy(r.Key.ID[:], bytesOf(v[1]))
	if err := r.readNumbers(text(v[0])); err != nil {
		return r, err
	}
	r.Key.Tenant = text(v[2])
	var err error
	if r.Prints, err = rowtext.ReadPrints(text(v[3])); err != nil {
		return r, err
	}
	copy(r.Owner[:], bytesOf(v[4]))
	r.Origin = idempotency.Origin{Method: text(v[5]), Route: text(v[6]), Trace: text(v[7])}
	copy(r.Released[:], bytesOf(v[8]))
	if r.Marks, err = rowtext.ReadMarks(text(v[9])); err != nil {
		return r, err
	}
	r.Result.Payload = bytesOf(v[10])
	r.Steps, err = rowtext.ReadSteps(text(v[11]), asIs)
	return r, err
}

// readNumbers reads the concatenated columns of integers.
func (r *row) readNumbers(s string) error {
	p := rowtext.NewParser(s)
	r.seq = p.Int()
	r.State = idempotency.State(p.Small(3))
	r.Token = idempotency.Token(p.Int())
	r.Terms.Lease = p.Duration()
	r.Terms.Retention = p.Duration()
	r.Terms.Remember = p.Duration()
	r.Terms.Quiet = p.Duration()
	r.Terms.OnUnknown = idempotency.OnUnknown(p.Small(3))
	r.Attempt = int(p.Int())
	r.Takeover = p.Small(1) == 1
	r.LeaseEnd = p.Time()
	r.Found = idempotency.Found(p.Small(2))
	r.FoundLease = p.Time()
	r.FoundSteps = int(p.Int())
	r.Result.Class = idempotency.Class(p.Small(3))
	r.Result.Status = int(p.Int())
	r.Result.NotKept = p.Small(1) == 1
	r.Result.Window = p.Duration()
	r.Result.By = idempotency.Source(p.Small(3))
	r.WindowEnd = p.Time()
	r.Expires = p.Time()
	r.Created = p.Time()
	r.Updated = p.Time()
	r.Revision = idempotency.Revision(p.Int())
	return p.End()
}

// written are the columns that an insert and an update write, in the order of
// row.values.
var written = strings.Fields(`id tenant prints owner method route trace released marks payload
	state token lease retention remember quiet on_unknown attempt takeover
	lease_end found found_lease found_steps class status not_kept retry_window source window_end expires
	created updated revision steps keep_until`)

// values appends the values of the columns written to dst.
func (r *row) values(dst []any) []any {
	dst = append(
		dst,
		r.Key.ID[:], r.Key.Tenant, textValue(rowtext.Prints(r.Prints)), ownerValue(&r.Owner),
		r.Origin.Method, r.Origin.Route, r.Origin.Trace, ownerValue(&r.Released), textValue(rowtext.Marks(r.Marks)),
		bytesValue(r.Result.Payload),
		int64(r.State), int64(r.Token), r.Terms.Lease.Microseconds(), r.Terms.Retention.Microseconds(),
		r.Terms.Remember.Microseconds(), r.Terms.Quiet.Microseconds(), int64(r.Terms.OnUnknown),
		int64(r.Attempt), boolValue(r.Takeover),
		timeValue(r.LeaseEnd), int64(r.Found), timeValue(r.FoundLease), int64(r.FoundSteps),
		int64(r.Result.Class), int64(r.Result.Status), boolValue(r.Result.NotKept),
		r.Result.Window.Microseconds(), int64(r.Result.By), timeValue(r.WindowEnd), timeValue(r.Expires),
		micros(r.Created), micros(r.Updated), int64(r.Revision), int64(len(r.Steps)),
	)
	keep, ok := r.Keep()
	if !ok {
		return append(dst, nil)
	}
	return append(dst, micros(keep))
}

func micros(t time.Time) int64 { return t.UnixMicro() }

func timeValue(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return micros(t)
}

func boolValue(b bool) any {
	if b {
		return int64(1)
	}
	return int64(0)
}

func bytesValue(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}

func ownerValue(o *idempotency.Owner) any {
	if o.IsZero() {
		return nil
	}
	return o[:]
}

// text and bytesOf read a value of either kind: what SQLite gives depends on
// what was stored, and people may edit a row.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	return ""
}

func bytesOf(v any) []byte {
	switch v := v.(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	}
	return nil
}

// textValue is a text that is not there where it is empty.
func textValue(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// asIs is what rowtext does to the texts of steps here.
func asIs(s string) string { return s }
