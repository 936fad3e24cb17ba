package httpgate

import (
	"bufio"
	"io"
	"net"
	"net/http"

	"github.com/escapement-dev/escapement/ratelimit"
)

// ours puts our fields into the header of an answer.
func ours(h http.Header, echo []string, levels []ratelimit.Level) {
	if len(echo) > 0 {
		h[KeyField] = echo
	}
	mergeRateFields(h, levels)
}

// passing is the http.ResponseWriter of a request without a key: everything
// passes at once; our fields are added to the header.
type passing struct {
	http.ResponseWriter
	echo   []string
	levels []ratelimit.Level
	said   bool
}

var _ io.ReaderFrom = (*passing)(nil)

// Unwrap serves http.ResponseController.
func (p *passing) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (p *passing) WriteHeader(status int) {
	if !p.said && (status >= 200 || status == http.StatusSwitchingProtocols) {
		p.say()
	}
	p.ResponseWriter.WriteHeader(status)
}

func (p *passing) say() {
	if !p.said {
		p.said = true
		ours(p.Header(), p.echo, p.levels)
	}
}

// Write implements http.ResponseWriter.
func (p *passing) Write(b []byte) (int, error) {
	p.say()
	return p.ResponseWriter.Write(b)
}

// WriteString implements io.StringWriter.
func (p *passing) WriteString(s string) (int, error) {
	p.say()
	return io.WriteString(p.ResponseWriter, s)
}

// ReadFrom implements io.ReaderFrom, so that files are still sent by the
// system.
func (p *passing) ReadFrom(r io.Reader) (int64, error) {
	p.say()
	return io.Copy(p.ResponseWriter, r)
}

// Flush implements http.Flusher.
func (p *passing) Flush() { p.FlushError() }

// FlushError serves http.ResponseController.
func (p *passing) FlushError() error {
	p.say()
	return http.NewResponseController(p.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker, for those who do not use
// http.ResponseController.
func (p *passing) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(p.ResponseWriter).Hijack()
}

// Push implements http.Pusher.
func (p *passing) Push(target string, opts *http.PushOptions) error {
	if pusher, ok := p.ResponseWriter.(http.Pusher); ok {
		return pusher.Push(target, opts)
	}
	return http.ErrNotSupported
}
