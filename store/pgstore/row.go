package pgstore

import (
	"bytes"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/rowtext"
)

// stored is one result row of a query for records.
type stored struct {
	id                                          []byte
	n                                           []int64
	tenant, prints, method, route, trace, marks string
	owner, released, payload                    []byte
	steps                                       string
}

// into are the places for the result columns of a query.
func (v *stored) into() []any {
	return []any{&v.id, &v.n, &v.tenant, &v.prints, &v.method, &v.route, &v.trace, &v.marks, &v.owner, &v.released, &v.payload, &v.steps}
}

// record makes a record of v; the zero Record if there was none.
func (v *stored) record() (idempotency.Record, error) {
	var r idempotency.Record
	if len(v.n) == 0 {
		return r, nil
	}
	copy(r.Key.ID[:], v.id)
	steps, err := v.numbers(&r)
	if err != nil {
		return r, v.damaged(err)
	}
	r.Key.Tenant = unescape(v.tenant)
	if r.Prints, err = rowtext.ReadPrints(v.prints); err != nil {
		return r, v.damaged(err)
	}
	copy(r.Owner[:], v.owner)
	copy(r.Released[:], v.released)
	r.Origin = idempotency.Origin{Method: unescape(v.method), Route: unescape(v.route), Trace: unescape(v.trace)}
	if r.Marks, err = rowtext.ReadMarks(v.marks); err != nil {
		return r, v.damaged(err)
	}
	if len(v.payload) > 0 {
		r.Result.Payload = v.payload
	}
	if r.Steps, err = readSteps(v.steps); err != nil {
		return r, v.damaged(err)
	}
	if v.steps == "" && steps > 0 { // they are read apart
		r.Steps = make([]idempotency.Step, steps)
	}
	return r, nil
}

func (v *stored) damaged(err error) error {
	return fmt.Errorf("pgstore: the record of %x cannot be read: %w: correct or delete its row in escapement_records", v.id, err)
}

// numbers reads the columns of integers into r, and returns how many steps
// there are.
func (v *stored) numbers(r *idempotency.Record) (steps int, err error) {
	if len(v.n) != len(numbers) {
		return 0, fmt.Errorf("it has %d numbers, want %d", len(v.n), len(numbers))
	}
	p := &reader{n: v.n}
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
	steps = int(p.small(idempotency.MaxSteps))
	r.Created = p.time()
	r.Updated = p.time()
	r.Revision = idempotency.Revision(p.int())
	return steps, p.err
}

// reader reads integers. The first fault stays.
type reader struct {
	n   []int64
	err error
}

func (p *reader) int() int64 {
	n := p.n[0]
	p.n = p.n[1:]
	return n
}

func (p *reader) small(limit int64) uint8 {
	n := p.int()
	if n < 0 || n > limit {
		p.fail("%d is not one of 0 to %d", n, limit)
		return 0
	}
	return uint8(n)
}

func (p *reader) duration() time.Duration {
	n := p.int()
	if n < 0 || n > math.MaxInt64/int64(time.Microsecond) {
		p.fail("%d is not a duration in microseconds", n)
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

func (p *reader) time() time.Time {
	n := p.int()
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

func (p *reader) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

// columns are the arguments of an insert or an update of several records.
type columns struct {
	id    [][]byte
	text  [6][]string // tenant, prints, method, route, trace, marks
	bytes [3][][]byte // owner, released, payload
	n     [][]int64   // numbers, keep_until
	same  []int64     // 1: the payload stays as it is
}

func newColumns(size int) *columns {
	c := &columns{id: make([][]byte, 0, size), n: make([][]int64, len(numbers)+1)}
	for i := range c.text {
		c.text[i] = make([]string, 0, size)
	}
	for i := range c.bytes {
		c.bytes[i] = make([][]byte, 0, size)
	}
	for i := range c.n {
		c.n[i] = make([]int64, 0, size)
	}
	return c
}

func (c *columns) len() int { return len(c.id) }

// add appends a record. Where keep is set, the payload in the table stays.
func (c *columns) add(r *idempotency.Record, keep bool) {
	c.id = append(c.id, bytes.Clone(r.Key.ID[:]))
	for i, s := range [...]string{
		escape(r.Key.Tenant), rowtext.Prints(r.Prints), escape(r.Origin.Method),
		escape(r.Origin.Route), escape(r.Origin.Trace), rowtext.Marks(r.Marks),
	} {
		c.text[i] = append(c.text[i], s)
	}
	payload := r.Result.Payload
	if keep || len(payload) == 0 {
		payload = nil
	}
	for i, b := range [...][]byte{ownerValue(r.Owner), ownerValue(r.Released), payload} {
		c.bytes[i] = append(c.bytes[i], b)
	}
	until := int64(0)
	if t, ok := r.Keep(); ok {
		until = max(micros(t), 1) // a free record without marks may go at once
	}
	for i, n := range [...]int64{
		int64(r.State), int64(r.Token), r.Terms.Lease.Microseconds(), r.Terms.Retention.Microseconds(),
		r.Terms.Remember.Microseconds(), r.Terms.Quiet.Microseconds(), int64(r.Terms.OnUnknown),
		int64(r.Attempt), number(r.Takeover), micros(r.LeaseEnd), int64(r.Found), micros(r.FoundLease),
		int64(r.FoundSteps), int64(r.Result.Class), int64(r.Result.Status), number(r.Result.NotKept),
		r.Result.Window.Microseconds(), int64(r.Result.By), micros(r.WindowEnd), micros(r.Expires),
		int64(len(r.Steps)), micros(r.Created), micros(r.Updated), int64(r.Revision), until,
	} {
		c.n[i] = append(c.n[i], n)
	}
	c.same = append(c.same, number(keep))
}

// args appends the arguments of insertColumns.
func (c *columns) args(dst []any) []any {
	dst = append(dst, c.id)
	for _, t := range c.text {
		dst = append(dst, t)
	}
	for _, b := range c.bytes {
		dst = append(dst, b)
	}
	for _, n := range c.n {
		dst = append(dst, n)
	}
	return dst
}

// micros is t as a column holds it; 0 for no time.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func ownerValue(o idempotency.Owner) []byte {
	if o.IsZero() {
		return nil
	}
	return o[:]
}

// escape makes a text of s that PostgreSQL can hold: valid UTF-8 without NUL.
// All but strange texts stay as they are.
func escape(s string) string {
	if !strings.HasPrefix(s, escaped) && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	return escaped + url.PathEscape(s)
}

// escaped begins a text that was escaped.
const escaped = "\\x:"

func unescape(s string) string {
	rest, ok := strings.CutPrefix(s, escaped)
	if !ok {
		return s
	}
	if t, err := url.PathUnescape(rest); err == nil {
		return t
	}
	return s
}

// readSteps reads what the query for the steps concatenates.
func readSteps(s string) ([]idempotency.Step, error) { return rowtext.ReadSteps(s, unescape) }
