package sqlitestore

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
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
	if r.Prints, err = readPrints(text(v[3])); err != nil {
		return r, err
	}
	copy(r.Owner[:], bytesOf(v[4]))
	r.Origin = idempotency.Origin{Method: text(v[5]), Route: text(v[6]), Trace: text(v[7])}
	copy(r.Released[:], bytesOf(v[8]))
	if r.Marks, err = readMarks(text(v[9])); err != nil {
		return r, err
	}
	r.Result.Payload = bytesOf(v[10])
	r.Steps, err = readSteps(text(v[11]))
	return r, err
}

// readNumbers reads the concatenated columns of integers.
func (r *row) readNumbers(s string) error {
	p := parser{s: s}
	r.seq = p.int()
	r.State = idempotency.State(p.small(3))
	r.Token = idempotency.Token(p.int())
	r.Terms.Lease = p.duration()
	r.Terms.Retention = p.duration()
	r.Terms.Remember = p.duration()
	r.Terms.Quiet = p.duration()
	r.Terms.OnUnknown = idempotency.OnUnknown(p.small(3))
	r.Attempt = int(p.int())
	r.Takeover = p.small(1) == 1
	r.LeaseEnd = p.time()
	r.Found = idempotency.Found(p.small(2))
	r.FoundLease = p.time()
	r.FoundSteps = int(p.int())
	r.Result.Class = idempotency.Class(p.small(3))
	r.Result.Status = int(p.int())
	r.Result.NotKept = p.small(1) == 1
	r.Result.Window = p.duration()
	r.Result.By = idempotency.Source(p.small(3))
	r.WindowEnd = p.time()
	r.Expires = p.time()
	r.Created = p.time()
	r.Updated = p.time()
	r.Revision = idempotency.Revision(p.int())
	return p.end()
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
		r.Key.ID[:], r.Key.Tenant, printsValue(r.Prints), ownerValue(&r.Owner),
		r.Origin.Method, r.Origin.Route, r.Origin.Trace, ownerValue(&r.Released), marksValue(r.Marks),
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

// printsValue writes fingerprints as "hash tag hash tag", tags escaped so that
// they hold no space.
func printsValue(ps []idempotency.Fingerprint) any {
	if len(ps) == 0 {
		return nil
	}
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

func readPrints(s string) ([]idempotency.Fingerprint, error) {
	if s == "" {
		return nil, nil
	}
	p := parser{s: s}
	ps := make([]idempotency.Fingerprint, 0, 1)
	for p.more() {
		var f idempotency.Fingerprint
		p.hexInto(f.Sum[:])
		tag, err := url.PathUnescape(p.next())
		if err != nil {
			return nil, err
		}
		f.Tag = tag
		ps = append(ps, f)
	}
	return ps, p.end()
}

// marksValue writes marks as "owner until owner until".
func marksValue(ms []idempotency.Mark) any {
	if len(ms) == 0 {
		return nil
	}
	b := make([]byte, 0, len(ms)*50)
	for i, m := range ms {
		if i > 0 {
			b = append(b, ' ')
		}
		b = hex.AppendEncode(b, m.Owner[:])
		b = append(b, ' ')
		b = strconv.AppendInt(b, micros(m.Until), 10)
	}
	return string(b)
}

func readMarks(s string) ([]idempotency.Mark, error) {
	if s == "" {
		return nil, nil
	}
	p := parser{s: s}
	var ms []idempotency.Mark
	for p.more() {
		var m idempotency.Mark
		p.hexInto(m.Owner[:])
		m.Until = p.time()
		ms = append(ms, m)
	}
	return ms, p.end()
}

// readSteps reads what the query for the steps concatenates.
func readSteps(s string) ([]idempotency.Step, error) {
	if s == "" {
		return nil, nil
	}
	p := parser{s: s}
	var steps []idempotency.Step
	for p.more() {
		steps = append(steps, idempotency.Step{
			Name: string(p.hex()), Done: p.small(1) == 1,
			ProviderKey: string(p.hex()), ProviderID: string(p.hex()), Answer: p.hex(),
			Started: p.time(), Ended: p.time(),
		})
	}
	return steps, p.end()
}

// parser reads fields that one space separates. The first fault stays.
type parser struct {
	s    string
	done bool
	err  error
}

func (p *parser) more() bool { return !p.done && p.err == nil }

func (p *parser) next() string {
	if p.done {
		p.fail("too few fields")
		return ""
	}
	f, rest, found := strings.Cut(p.s, " ")
	p.s, p.done = rest, !found
	return f
}

func (p *parser) fail(what string) {
	if p.err == nil {
		p.err = errors.New(what)
	}
}

func (p *parser) end() error {
	if p.err == nil && !p.done {
		p.fail("too many fields")
	}
	return p.err
}

func (p *parser) int() int64 {
	f := p.next()
	n, err := strconv.ParseInt(f, 10, 64)
	if err != nil {
		p.fail(fmt.Sprintf("%q is not an integer", f))
	}
	return n
}

// small reads an integer from 0 to limit.
func (p *parser) small(limit int64) uint8 {
	n := p.int()
	if n < 0 || n > limit {
		p.fail(fmt.Sprintf("%d is not one of 0 to %d", n, limit))
		return 0
	}
	return uint8(n)
}

func (p *parser) duration() time.Duration {
	n := p.int()
	if n < 0 || n > math.MaxInt64/int64(time.Microsecond) {
		p.fail(fmt.Sprintf("%d is not a duration in microseconds", n))
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

// time reads microseconds, or nothing for no time.
func (p *parser) time() time.Time {
	if strings.HasPrefix(p.s, " ") || p.s == "" && !p.done {
		p.next()
		return time.Time{}
	}
	n := p.int()
	if p.err != nil {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

func (p *parser) hex() []byte {
	f := p.next()
	if f == "" {
		return nil
	}
	b, err := hex.DecodeString(f)
	if err != nil {
		p.fail("not hexadecimal")
	}
	return b
}

func (p *parser) hexInto(dst []byte) {
	f := p.next()
	if len(f) != 2*len(dst) {
		p.fail(fmt.Sprintf("want %d hexadecimal digits, have %d", 2*len(dst), len(f)))
		return
	}
	if _, err := hex.Decode(dst, []byte(f)); err != nil {
		p.fail("not hexadecimal")
	}
}
