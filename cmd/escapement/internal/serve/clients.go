package serve

import (
	"io"
	"net/http"
	"time"
)

// pace is how slow a client may be. A body or an answer that makes less
// progress loses its connection, so that no client holds memory for long by
// sending or reading a byte at a time.
type pace struct {
	grace time.Duration // before any progress is asked for
	stall time.Duration // the longest time without any progress
	rate  int64         // bytes per second, on average, after the grace
}

var (
	bodyPace   = pace{grace: 20 * time.Second, stall: 30 * time.Second, rate: 1 << 10}
	answerPace = pace{grace: 30 * time.Second, stall: 30 * time.Second, rate: 8 << 10}
)

// left is how long a client may still take for the next piece, when n bytes
// took it the time spent.
func (p pace) left(n int64, spent time.Duration) time.Duration {
	budget := p.grace + time.Duration(float64(n)/float64(p.rate)*float64(time.Second))
	return min(p.stall, budget-spent)
}

// clients bounds what slow clients can hold. The server's own time-outs stand
// for whole requests, which would cut streams and large uploads.
func clients(next http.Handler, body, answer pace) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect {
			w.Header().Set("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
			http.Error(w, "this is no forward proxy", http.StatusMethodNotAllowed)
			return
		}
		control := http.NewResponseController(w)
		// Over HTTP/1 a deadline matters to whoever reads or writes; over
		// HTTP/2 it ends the stream when it comes, and must not outlive its call.
		lift := r.ProtoMajor >= 2
		pw := &pacedWriter{ResponseWriter: w, control: control, pace: answer, lift: lift}
		if r.Body != nil && r.Body != http.NoBody {
			pb := &pacedBody{ReadCloser: r.Body, control: control, pace: body, lift: lift}
			if r.Header.Get("Expect") != "" {
				pb.answer = pw
			}
			r2 := *r
			r2.Body, r = pb, &r2
			// What the handler leaves unread, the server reads: not for long.
			defer pb.leave()
		}
		// The server sends the rest of the answer after the handler.
		defer pw.allow()
		next.ServeHTTP(pw, r)
	})
}

// pacedBody sets a deadline before each read.
type pacedBody struct {
	io.ReadCloser
	control *http.ResponseController
	answer  *pacedWriter // only if the first read may send 100 Continue
	pace    pace
	n       int64
	spent   time.Duration
	lift    bool
	ended   bool
}

func (b *pacedBody) Read(p []byte) (int, error) {
	if b.ended {
		return b.ReadCloser.Read(p)
	}
	if b.answer != nil && b.n == 0 {
		b.answer.took(b.answer.allow())
	}
	start := time.Now()
	_ = b.control.SetReadDeadline(start.Add(b.pace.left(b.n, b.spent)))
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	b.spent += time.Since(start)
	b.ended = err != nil
	// After the end the server listens whether the client is still there.
	if err == io.EOF || err == nil && b.lift {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (b *pacedBody) leave() {
	if !b.ended {
		_ = b.control.SetReadDeadline(time.Now().Add(b.pace.left(b.n, b.spent)))
	}
}

// pacedWriter sets a deadline before each write. Only the time inside writes
// counts: a stream may be silent for as long as it wants.
type pacedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	pace    pace
	n       int64
	spent   time.Duration
	lift    bool
	until   time.Time // the deadline that this request has set
}

// Unwrap is for http.ResponseController.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// allow sets a deadline for what is about to be written, and returns the time.
// One that was set a moment ago for this request will do, since setting one is
// not free. That of the connection's request before does not count.
func (w *pacedWriter) allow() time.Time {
	now := time.Now()
	left := w.pace.left(w.n, w.spent)
	if w.until.IsZero() || w.until.Sub(now) < left-left/4 || w.until.Sub(now) > left {
		w.until = now.Add(left)
		_ = w.control.SetWriteDeadline(w.until)
	}
	return now
}

// WriteHeader sends informational answers (1xx) at once.
func (w *pacedWriter) WriteHeader(status int) {
	start := w.allow()
	w.ResponseWriter.WriteHeader(status)
	w.took(start)
}

func (w *pacedWriter) Write(p []byte) (int, error) {
	start := w.allow()
	n, err := w.ResponseWriter.Write(p)
	w.n += int64(n)
	w.took(start)
	return n, err
}

func (w *pacedWriter) took(start time.Time) {
	w.spent += time.Since(start)
	if w.lift {
		w.until = time.Time{}
		_ = w.control.SetWriteDeadline(w.until)
	}
}

// FlushError is for http.ResponseController.
func (w *pacedWriter) FlushError() error {
	start := w.allow()
	err := w.control.Flush()
	w.took(start)
	return err
}

// Flush implements http.Flusher.
func (w *pacedWriter) Flush() { _ = w.FlushError() }
