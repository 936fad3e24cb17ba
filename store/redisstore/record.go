package redisstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/escapement-dev/escapement/idempotency"
)

// The form of a record is described in lua/record.lua.

// smallBody is up to how many bytes payload and answers come with the record;
// more is read by a call of its own, so that no script handles it.
const smallBody = 64 << 10

// headSize is the length of a record's head.
const headSize = 10 + 17*8 + 2*16

// errForm is returned where what Redis holds is not what this package wrote.
var errForm = errors.New("redisstore: a record in Redis has a form that is not known: is it of another version, or is the prefix shared with other programs?")

// stored is a record as Redis holds it.
type stored struct {
	rec        idempotency.Record
	plen, alen int64 // bytes of the payload, and of all answers
}

// whole reports whether payload and answers came along.
func (d *stored) whole() bool { return d.plen+d.alen <= smallBody }

// fromMicros is the time of µs microseconds since 1970; 0 is the zero time.
func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

func fromMicrosSpan(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// reader reads what the scripts packed. After a fault it gives zeros.
type reader struct {
	b   string
	bad bool
}

func (r *reader) next(n int64) string {
	if n < 0 || n > int64(len(r.b)) {
		r.b, r.bad = "", true
		return ""
	}
	s := r.b[:n]
	r.b = r.b[n:]
	return s
}

func (r *reader) byte() byte {
	if s := r.next(1); s != "" {
		return s[0]
	}
	return 0
}

func (r *reader) int() int64 {
	s := r.next(8)
	if s == "" {
		return 0
	}
	var n uint64
	for i := range 8 {
		n |= uint64(s[i]) << (8 * i)
	}
	return int64(n)
}

func (r *reader) uint32() int64 {
	s := r.next(4)
	if s == "" {
		return 0
	}
	return int64(uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24)
}

func (r *reader) text() string { return r.next(r.uint32()) }

func (r *reader) owner() (o idempotency.Owner) {
	copy(o[:], r.next(int64(len(o))))
	return o
}

// readHead reads the numbers of a record, and how many steps it has.
func readHead(head string) (d stored, steps int, err error) {
	if len(head) != headSize {
		return d, 0, errForm
	}
	r := reader{b: head}
	rec := &d.rec
	rec.State = idempotency.State(r.byte())
	rec.Terms.OnUnknown = idempotency.OnUnknown(r.byte())
	rec.Found = idempotency.Found(r.byte())
	rec.Takeover = r.byte() != 0
	rec.Result.Class = idempotency.Class(r.byte())
	rec.Result.By = idempotency.Source(r.byte())
	rec.Result.NotKept = r.byte() != 0
	rec.FoundSteps = int(r.byte())
	steps = int(r.byte())
	r.byte() // how many steps are not done: only the scripts ask
	rec.Result.Status = int(r.int())
	rec.Attempt = int(r.int())
	rec.Token = idempotency.Token(r.int())
	rec.Revision = idempotency.Revision(r.int())
	rec.Created = fromMicros(r.int())
	rec.Updated = fromMicros(r.int())
	rec.LeaseEnd = fromMicros(r.int())
	rec.FoundLease = fromMicros(r.int())
	rec.Result.Window = fromMicrosSpan(r.int())
	rec.WindowEnd = fromMicros(r.int())
	rec.Expires = fromMicros(r.int())
	rec.Terms.Lease = fromMicrosSpan(r.int())
	rec.Terms.Retention = fromMicrosSpan(r.int())
	rec.Terms.Remember = fromMicrosSpan(r.int())
	rec.Terms.Quiet = fromMicrosSpan(r.int())
	d.plen, d.alen = r.int(), r.int()
	rec.Owner = r.owner()
	rec.Released = r.owner()
	if rec.State > idempotency.Shrunk || steps > idempotency.MaxSteps {
		return d, 0, errForm
	}
	return d, steps, nil
}

// readRecord reads a reply of record.lua's answer, after its code. Ok is false
// if there is no record.
func readRecord(id idempotency.ID, msgs []rueidis.RedisMessage) (d stored, now time.Time, ok bool, err error) {
	if len(msgs) < 2 {
		return d, now, false, errForm
	}
	us, err := msgs[0].AsInt64()
	if err != nil {
		return d, now, false, errForm
	}
	now = fromMicros(us)
	if msgs[1].IsNil() {
		return d, now, false, nil
	}
	head, err := msgs[1].ToString()
	if err != nil {
		return d, now, false, errForm
	}
	d, steps, err := readHead(head)
	if err != nil {
		return d, now, false, err
	}
	rest := msgs[2:]
	if len(rest) < 4+steps {
		return d, now, false, errForm
	}
	d.rec.Key.ID = id
	d.rec.AsOf = now
	client, prints, marks := text(rest[0]), text(rest[1]), text(rest[2])
	bad := readClient(client, &d.rec)
	r := reader{b: prints}
	for r.b != "" {
		p := idempotency.Fingerprint{Tag: r.text()}
		copy(p.Sum[:], r.next(int64(len(p.Sum))))
		d.rec.Prints = append(d.rec.Prints, p)
	}
	bad = bad || r.bad
	bad = readMarks(marks, &d.rec) || bad
	d.rec.Result.Payload = body(rest[3])
	answers := rest[4+steps:]
	for i, m := range rest[4 : 4+steps] {
		r := reader{b: text(m)}
		st := idempotency.Step{Done: r.byte() != 0}
		st.Started, st.Ended = fromMicros(r.int()), fromMicros(r.int())
		r.uint32() // the answer's length
		st.Name, st.ProviderKey, st.ProviderID = r.text(), r.text(), r.text()
		bad = bad || r.bad
		if i < len(answers) {
			st.Answer = body(answers[i])
		}
		d.rec.Steps = append(d.rec.Steps, st)
	}
	if bad {
		return d, now, false, errForm
	}
	return d, now, true, nil
}

func readMarks(marks string, rec *idempotency.Record) (bad bool) {
	r := reader{b: marks}
	for r.b != "" {
		rec.Marks = append(rec.Marks, idempotency.Mark{Owner: r.owner(), Until: fromMicros(r.int())})
	}
	return r.bad
}

func text(m rueidis.RedisMessage) string {
	s, err := m.ToString()
	if err != nil { // nil: the field is not there
		return ""
	}
	return s
}

// body is a string that is a record's own, not copied; nil if there is none.
func body(m rueidis.RedisMessage) []byte {
	b, err := m.AsBytes()
	if err != nil || len(b) == 0 {
		return nil
	}
	return b
}

// packClaim sets of the arguments of admit.lua those that are of the claim, the
// second to the fifth.
func packClaim(args []string, c *idempotency.Claim) {
	b := make([]byte, 0, 320)
	b = append(b, c.Owner[:]...)
	ends := [3]int{}
	b = appendTerms(b, &c.Terms)
	ends[0] = len(b)
	b = appendPrints(b, c.Prints)
	ends[1] = len(b)
	b = appendClient(b, c)
	all, o := string(b), len(c.Owner)
	args[1], args[2], args[3], args[4] = all[:o], all[o:ends[0]], all[ends[0]:ends[1]], all[ends[1]:]
}

// appendClient packs what the scripts do not look at: tenant and origin.
func appendClient(b []byte, c *idempotency.Claim) []byte {
	for _, p := range [...]string{c.Key.Tenant, c.Origin.Method, c.Origin.Route, c.Origin.Trace} {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return b
}

func readClient(packed string, rec *idempotency.Record) (bad bool) {
	if packed == "" {
		return false // a free record has none
	}
	r := reader{b: packed}
	rec.Key.Tenant = r.text()
	rec.Origin = idempotency.Origin{Method: r.text(), Route: r.text(), Trace: r.text()}
	return r.bad
}

func appendPrints(b []byte, prints []idempotency.Fingerprint) []byte {
	for i := range prints {
		p := &prints[i]
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p.Tag)))
		b = append(b, p.Tag...)
		b = append(b, p.Sum[:]...)
	}
	return b
}

func appendTerms(b []byte, t *idempotency.Terms) []byte {
	for _, d := range [...]time.Duration{t.Lease, t.Retention, t.Remember, t.Quiet} {
		b = binary.LittleEndian.AppendUint64(b, uint64(d.Microseconds()))
	}
	return append(b, byte(t.OnUnknown))
}

func packResult(r idempotency.Result) string {
	b := make([]byte, 0, 19)
	notKept := byte(0)
	if r.NotKept {
		notKept = 1
	}
	b = append(b, byte(r.Class), byte(r.By), notKept)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Status))
	return string(binary.LittleEndian.AppendUint64(b, uint64(r.Window.Microseconds())))
}

// MaxSpan is the longest lease, retention, quiet time, time to remember and
// window that the store accepts: with it every time stays below 2^53 µs.
const MaxSpan = 100 * 365 * 24 * time.Hour

// fitTerms cuts t to whole microseconds, as it is kept, or says what is too
// long.
func fitTerms(t *idempotency.Terms) error {
	for _, f := range [...]struct {
		name string
		d    *time.Duration
	}{{"lease", &t.Lease}, {"retention", &t.Retention}, {"remember", &t.Remember}, {"quiet", &t.Quiet}} {
		if err := fitSpan(f.name, f.d); err != nil {
			return err
		}
	}
	return nil
}

func fitSpan(name string, d *time.Duration) error {
	*d = d.Truncate(time.Microsecond)
	if *d > MaxSpan {
		return fmt.Errorf("redisstore: %s is %v: want at most %v", name, *d, MaxSpan)
	}
	return nil
}
