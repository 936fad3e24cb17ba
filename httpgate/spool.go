package httpgate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
)

// spool holds a request's body: the beginning in memory, the rest in a
// temporary file that has no name any more.
type spool struct {
	mem  []byte
	file *os.File // nil if all is in memory
	name string   // of the file, where it could not be unlinked while open
	size int64
	refs atomic.Int32 // who else still needs it; see hold
}

// errSpoolFile is wrapped by a readSpool that could not write its file.
var errSpoolFile = errors.New("httpgate: the temporary file of a request's body cannot be used")

// readSpool reads all of body. An error that does not wrap errSpoolFile is the
// body's own; the spool is then closed. expect is the body's length where it is
// known, else -1.
func readSpool(body io.Reader, expect, memory int64, dir string) (_ *spool, err error) {
	s := &spool{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if expect >= 0 {
		s.mem = make([]byte, 0, min(expect, memory)+1)
	}
	for int64(len(s.mem)) < memory {
		if len(s.mem) == cap(s.mem) {
			s.mem = append(s.mem, 0)[:len(s.mem)]
		}
		room := s.mem[len(s.mem):min(int64(cap(s.mem)), memory)]
		n, err := body.Read(room)
		s.mem = s.mem[:len(s.mem)+n]
		s.size += int64(n)
		if err == io.EOF {
			return s, nil
		}
		if err != nil {
			return nil, err
		}
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if s.file == nil {
				if err := s.create(dir); err != nil {
					return nil, err
				}
			}
			if _, err := s.file.Write(buf[:n]); err != nil {
				return nil, fmt.Errorf("%w: %w", errSpoolFile, err)
			}
			s.size += int64(n)
		}
		if err == io.EOF {
			return s, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (s *spool) create(dir string) error {
	f, err := os.CreateTemp(dir, "escapement-body-*")
	if err != nil {
		return fmt.Errorf("%w: %w", errSpoolFile, err)
	}
	s.file = f
	if err := os.Remove(f.Name()); err != nil {
		s.name = f.Name() // some systems keep the name of an open file
	}
	return nil
}

// copyTo writes the whole body to w, which does not fail. The body is hashed
// from here and not while it arrives: a fingerprint of JSON needs up to
// idempotency.PrintLimit bytes at once, and a client must not hold so much for
// as long as it likes to send.
func (s *spool) copyTo(w io.Writer) error {
	if _, err := io.Copy(w, s.body()); err != nil {
		return fmt.Errorf("%w: %w", errSpoolFile, err)
	}
	return nil
}

// body returns a reader from the beginning. Closing it does nothing.
func (s *spool) body() io.ReadCloser {
	if s.size == 0 {
		return http.NoBody
	}
	if s.file == nil {
		return io.NopCloser(bytes.NewReader(s.mem))
	}
	rest := io.NewSectionReader(s.file, 0, s.size-int64(len(s.mem)))
	return io.NopCloser(io.MultiReader(bytes.NewReader(s.mem), rest))
}

// hold keeps the file open for one more close: a handler that was left behind
// after its time-out reads on.
func (s *spool) hold() { s.refs.Add(1) }

// close frees the file, if nobody else holds it.
func (s *spool) close() {
	if s.refs.Add(-1) >= 0 || s.file == nil {
		return
	}
	s.file.Close()
	if s.name != "" {
		os.Remove(s.name)
	}
}
