package httpgate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// holdBytes is how much of an answer is held back until the record is
// written. What is longer, and what the handler flushes, goes out as it comes,
// but for its end.
const holdBytes = 64 << 10

// exchange is one keyed request that runs, and the http.ResponseWriter of its
// handler. The handler runs on the attempt's goroutine and may be left behind
// there after a time-out; the server's ResponseWriter is used by it only under
// mu, and not at all once cut is set.
type exchange struct {
	m      *Middleware
	w      http.ResponseWriter
	rc     *http.ResponseController
	r      *http.Request
	policy *keyPolicy
	base   http.Header // what others had set on w before us
	echo   []string    // the lines of the key's field, as they came
	origin string      // the field Origin
	levels []ratelimit.Level

	// sending and cut order a write to the client against the server's
	// goroutine, which leaves: the writer sets sending and then looks at cut,
	// the leaver the other way round, so that one of them sees the other.
	sending, cut atomic.Bool

	mu      sync.Mutex
	answer  answer
	frozen  *answer // the answer that EndIn recorded
	finding Finding
	whole   bool // hold all of the answer: the record is written inside a transaction
	sent    bool // the header has gone out
	gone    bool // the client has hung up; the work goes on
	over    bool // the handler has returned
}

// answer is what the handler has said so far.
type answer struct {
	header   http.Header // the handler's map
	status   int         // 0: not said yet
	snapshot http.Header // header when status was said
	declared int64       // its Content-Length, or -1
	written  int64       // bytes of the body
	kept     []byte      // the body for the record, unless notKept
	notKept  bool
	out      int64  // bytes of the body that went to the client
	tail     []byte // with notKept: those that did not yet
	broken   bool   // a 101, or bytes beyond Content-Length
}

var (
	errOver   = fmt.Errorf("httpgate: the handler has returned: %w", http.ErrHandlerTimeout)
	errHijack = fmt.Errorf("httpgate: a request with an idempotency key cannot be hijacked, since its answer must be recorded: %w", http.ErrNotSupported)
	errWhole  = errors.New("httpgate: the answer is larger than MaxAnswer, and an answer that is recorded inside a transaction must be kept whole")
)

func (x *exchange) reset() {
	x.answer = answer{header: x.base.Clone(), declared: -1}
	if x.answer.header == nil {
		x.answer.header = make(http.Header)
	}
}

// Header implements http.ResponseWriter.
func (x *exchange) Header() http.Header {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.answer.header
}

// WriteHeader implements http.ResponseWriter. An informational answer (1xx)
// passes at once and is not recorded.
func (x *exchange) WriteHeader(status int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over || x.answer.status != 0 {
		return
	}
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		x.inform(status)
		return
	}
	x.say(status)
}

func (x *exchange) say(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("httpgate: invalid WriteHeader code %v", status)) // as net/http does
	}
	a := &x.answer
	a.status = status
	a.snapshot = a.header.Clone()
	if status == http.StatusSwitchingProtocols {
		a.broken = true
	}
	if lines := a.snapshot["Content-Length"]; len(lines) > 0 {
		n, err := strconv.ParseInt(strings.TrimSpace(lines[0]), 10, 64)
		if err != nil || n < 0 || len(lines) > 1 || !hasBody(status) {
			delete(a.snapshot, "Content-Length")
		} else {
			a.declared = n
		}
	}
}

// inform passes a 1xx on, with the fields that the handler has set for it.
func (x *exchange) inform(status int) {
	if x.whole || !x.begin() {
		return
	}
	defer x.sending.Store(false)
	h := x.w.Header()
	for name, lines := range x.answer.header {
		h[name] = lines
	}
	x.w.WriteHeader(status)
	for name := range h {
		if lines, ok := x.base[name]; ok {
			h[name] = slices.Clone(lines)
		} else {
			delete(h, name)
		}
	}
}

// Write implements http.ResponseWriter. It fails after the handler has
// returned, for a status without a body, for bytes beyond Content-Length, and,
// after FenceIn, beyond MaxAnswer. That the client has hung up, or that the
// answer comes after the time-out, is no failure: the answer is recorded.
func (x *exchange) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	a := &x.answer
	if x.over {
		return 0, errOver
	}
	if a.status == 0 {
		x.say(http.StatusOK)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if !hasBody(a.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if a.written == 0 && !x.sent {
		a.sniff(p)
	}
	if a.declared >= 0 && a.written+int64(len(p)) > a.declared {
		a.broken = true
		return 0, http.ErrContentLength
	}
	if !a.notKept && int64(len(a.kept)+len(p)) > x.policy.max {
		if x.whole {
			return 0, errWhole
		}
		a.notKept = true
		a.tail = slices.Clone(a.kept[a.out:])
		a.kept = nil
	}
	a.written += int64(len(p))
	if a.notKept {
		a.tail = append(a.tail, p...)
	} else {
		a.kept = append(a.kept, p...)
	}
	if !x.whole && (x.sent || a.written-a.out > holdBytes) {
		x.pass(1)
	}
	return len(p), nil
}

// sniff sets the content type as net/http would: a replay has it too.
func (a *answer) sniff(p []byte) {
	_, typed := a.snapshot["Content-Type"]
	if !typed && a.snapshot.Get("Content-Encoding") == "" && a.snapshot.Get("Transfer-Encoding") == "" {
		a.snapshot["Content-Type"] = []string{http.DetectContentType(p)}
	}
}

// pass sends what has been said so far, but for the last keep bytes.
func (x *exchange) pass(keep int) {
	a := &x.answer
	pending := a.tail
	if !a.notKept {
		pending = a.kept[a.out:]
	}
	n := max(len(pending)-keep, 0)
	a.out += int64(n)
	if x.begin() {
		x.sendHeader(a)
		if n > 0 {
			if _, err := x.w.Write(pending[:n]); err != nil {
				x.gone = true
			}
		}
		x.sending.Store(false)
	}
	if a.notKept {
		a.tail = append(a.tail[:0], pending[n:]...)
	}
}

// begin reports whether the client can be written to. If so, sending must be
// cleared afterwards.
func (x *exchange) begin() bool {
	if x.gone {
		return false
	}
	x.sending.Store(true)
	if x.cut.Load() {
		x.sending.Store(false)
		x.gone = true
		return false
	}
	return true
}

// Flush implements http.Flusher.
func (x *exchange) Flush() { x.FlushError() }

// FlushError sends what has been said so far, for http.ResponseController. The
// end of the answer stays back: its last byte where Content-Length says which
// it is, else the mark of its end. After FenceIn everything does.
func (x *exchange) FlushError() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return errOver
	}
	a := &x.answer
	if a.status == 0 {
		x.say(http.StatusOK)
	}
	if x.whole || !hasBody(a.status) || a.declared == 0 {
		return nil
	}
	keep := 0
	if a.written == a.declared {
		keep = 1
	}
	x.pass(keep)
	if x.begin() {
		defer x.sending.Store(false)
		if err := x.rc.Flush(); err != nil {
			if errors.Is(err, http.ErrNotSupported) {
				return err
			}
			x.gone = true
		}
	}
	return nil
}

// Hijack implements http.Hijacker: it refuses.
func (x *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errHijack }

// SetReadDeadline, SetWriteDeadline and EnableFullDuplex serve
// http.ResponseController. There is no Unwrap: what went past the exchange
// would not be recorded, and could reach the connection's next request.
func (x *exchange) SetReadDeadline(t time.Time) error {
	return x.control(func() error { return x.rc.SetReadDeadline(t) })
}

// SetWriteDeadline sets the deadline of what passes to the client.
func (x *exchange) SetWriteDeadline(t time.Time) error {
	return x.control(func() error { return x.rc.SetWriteDeadline(t) })
}

// EnableFullDuplex passes the call on.
func (x *exchange) EnableFullDuplex() error { return x.control(x.rc.EnableFullDuplex) }

func (x *exchange) control(do func() error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return errOver
	}
	if !x.begin() {
		return nil
	}
	defer x.sending.Store(false)
	return do()
}

// sendHeader sends a's header, once.
func (x *exchange) sendHeader(a *answer) {
	if x.sent {
		return
	}
	x.sent = true
	h := x.w.Header()
	for name := range h {
		if _, ok := a.snapshot[name]; !ok {
			delete(h, name)
		}
	}
	for name, lines := range a.snapshot {
		h[name] = lines
	}
	ours(h, x.echo, x.levels)
	x.w.WriteHeader(a.status)
}

// deliver sends what has not been sent yet of a, whose record is written, and
// breaks the connection if it cannot be as it should. The handler is over, or
// was never to see the connection again.
func (x *exchange) deliver(a *answer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if a.broken {
		panic(http.ErrAbortHandler)
	}
	trailers := a.trailers()
	if !x.sent && hasBody(a.status) && a.declared < 0 && len(trailers) == 0 && a.snapshot["Transfer-Encoding"] == nil {
		a.snapshot["Content-Length"] = []string{strconv.FormatInt(a.written, 10)}
	}
	if x.gone {
		return
	}
	x.sendHeader(a)
	pending := a.tail
	if !a.notKept {
		pending = a.kept[a.out:]
	}
	if len(pending) > 0 {
		x.w.Write(pending)
	}
	setTrailers(x.w.Header(), a.snapshot, trailers)
}

// leave makes sure that the handler, if it is still running, does not use the
// connection any more. It reports whether the handler has returned, and whether
// a part of its answer went out.
func (x *exchange) leave() (over, sent bool) {
	x.cut.Store(true)
	stuck := x.sending.Load()
	if stuck { // perhaps in a write to a client that does not read
		x.rc.SetWriteDeadline(time.Unix(1, 0))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if stuck && !x.sent {
		x.rc.SetWriteDeadline(time.Now().Add(leaveTime))
	}
	return x.over, x.sent
}

// leaveTime is how long the refusal after a time-out may take to be written,
// where the handler was just at work on the connection.
const leaveTime = 5 * time.Second

// run calls the handler and says how it ended. It is the function of Gate.Do.
func (x *exchange) run(ctx context.Context, next http.Handler) idempotency.Ending {
	returned := false
	defer func() {
		if !returned {
			x.mu.Lock()
			x.over = true
			x.mu.Unlock()
		}
	}()
	next.ServeHTTP(x, x.r.WithContext(context.WithValue(ctx, exchangeKey{}, x)))
	returned = true
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	if x.answer.status == 0 && x.frozen == nil {
		x.say(http.StatusOK)
	}
	if x.frozen != nil { // the transaction's fate is the ending
		return idempotency.UnknownEnding()
	}
	return x.ending(&x.answer)
}

// hasBody reports whether an answer of this status may have a body.
func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// trailers returns the trailers that the handler has set: those whose names it
// had declared in the field Trailer, and those under http.TrailerPrefix.
func (a *answer) trailers() http.Header {
	var out http.Header
	add := func(name string, lines []string) {
		if len(lines) > 0 {
			if out == nil {
				out = make(http.Header)
			}
			out[http.CanonicalHeaderKey(name)] = slices.Clone(lines)
		}
	}
	for _, line := range a.snapshot["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if !noTrailer(name) {
				add(name, a.header[name])
			}
		}
	}
	for name, lines := range a.header {
		if rest, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			add(rest, lines)
		}
	}
	return out
}

// setTrailers adds trailers to h, after the body: those that header declares
// by their names, the others as net/http wants undeclared ones.
func setTrailers(h, header, trailers http.Header) {
	for name, lines := range trailers {
		if !declares(header, name) {
			name = http.TrailerPrefix + name
		}
		h[name] = lines
	}
}

func declares(header http.Header, trailer string) bool {
	for _, line := range header["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			if http.CanonicalHeaderKey(strings.TrimSpace(name)) == trailer {
				return true
			}
		}
	}
	return false
}

// noTrailer names what may not be a trailer (RFC 9110, 6.5.1; as net/http).
func noTrailer(name string) bool {
	switch name {
	case "", "Transfer-Encoding", "Content-Length", "Trailer":
		return true
	}
	return false
}
