package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a server may take to do what is waited for.
const patience = 60 * time.Second

// Server is one redis-server, or one sentinel. Its methods are not for
// concurrent use, except Wait and Log.
type Server struct {
	// Addr is where it listens: 127.0.0.1 and a port.
	Addr string
	// Dir holds its data; it survives Kill and Restart.
	Dir string

	port int
	tls  *Certificates // nil without TLS
	args []string
	cmd  *exec.Cmd
	done chan struct{} // closed once the process is gone

	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed, and replaced, whenever a line comes
}

// Start starts a server alone, which writes each command to its append-only
// file before it answers, so that a killed one finds its data again. Further
// arguments are added to its command line. It is killed at the end of the test.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s, err := New(t.TempDir(), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

// New is Start without a test: the caller kills the server and removes the
// directory.
func New(dir string, args ...string) (*Server, error) { return newServer(dir, nil, false, args...) }

func newServer(dir string, tls *Certificates, clients bool, args ...string) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &Server{Dir: dir, port: port, tls: tls, Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), more: make(chan struct{})}
	s.args = append([]string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--loglevel", "notice", "--logfile", "",
		"--enable-debug-command", "local", "--repl-diskless-sync-delay", "0", "--shutdown-timeout", "0",
	}, args...)
	if tls != nil {
		s.args = append(s.args, tls.args(strconv.Itoa(port), clients)...)
	}
	if err := s.start("Ready to accept connections"); err != nil {
		return nil, err
	}
	return s, nil
}

// start runs the process and waits for a line of its log.
func (s *Server) start(ready string) error {
	from := s.Log()
	cmd := exec.Command("redis-server", s.args...)
	cmd.SysProcAttr = dieWithParent()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("redistest: %w (is the Debian package redis-server installed?)", err)
	}
	s.cmd, s.done = cmd, make(chan struct{})
	go func(done chan struct{}) {
		s.read(out)
		_ = cmd.Wait() // the reason is in the log
		close(done)
	}(s.done)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Wait(ctx, from, ready); err != nil {
		s.Kill()
		return err
	}
	return nil
}

// read keeps the process's log.
func (s *Server) read(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		s.mu.Lock()
		s.lines = append(s.lines, lines.Text())
		close(s.more)
		s.more = make(chan struct{})
		s.mu.Unlock()
	}
}

// Log is how many lines the server has written so far.
func (s *Server) Log() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lines)
}

// Wait waits until the log has the text in a line after the first from lines.
// It fails if the process ends or the context does.
func (s *Server) Wait(ctx context.Context, from int, text string) error {
	for {
		s.mu.Lock()
		more := s.more
		for _, line := range s.lines[min(from, len(s.lines)):] {
			if strings.Contains(line, text) {
				s.mu.Unlock()
				return nil
			}
		}
		s.mu.Unlock()
		select {
		case <-more:
		case <-s.done:
			return fmt.Errorf("redistest: the server at %s ended before it said %q; its log:\n%s", s.Addr, text, s.text())
		case <-ctx.Done():
			return fmt.Errorf("redistest: the server at %s has not said %q: %w; its log:\n%s", s.Addr, text, ctx.Err(), s.text())
		}
	}
}

func (s *Server) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "\n")
}

// Expect is Wait for tests, with this package's patience.
func (s *Server) Expect(t testing.TB, from int, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Wait(ctx, from, text); err != nil {
		t.Fatal(err)
	}
}

// Kill ends the process with SIGKILL, as a crash would, and waits for its end.
func (s *Server) Kill() {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(err) // not our process, or not permitted: nothing that a test could go on with
	}
	<-s.done
}

// Restart kills the process and starts it again on the same data and port.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill()
	s.Revive(t)
}

// Revive starts a server that was killed on the same data and port.
func (s *Server) Revive(t testing.TB) {
	t.Helper()
	if err := s.start("Ready to accept connections"); err != nil {
		t.Fatal(err)
	}
}

// Pause stops the process with SIGSTOP: its connections stay, and nothing
// answers.
func (s *Server) Pause(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (s *Server) Resume(t testing.TB) { s.signal(t, syscall.SIGCONT) }

func (s *Server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("redistest: %v to the server at %s: %v", sig, s.Addr, err)
	}
}

// Cli runs redis-cli against the server and returns what it prints.
func (s *Server) Cli(t testing.TB, args ...string) string {
	t.Helper()
	first := []string{"-p", strconv.Itoa(s.port)}
	if s.tls != nil {
		first = append(first, s.tls.cli()...)
	}
	out, err := exec.Command("redis-cli", append(first, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("redistest: redis-cli %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// freePort is a port of the loopback interface that was free just now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// subdir makes a directory in the test's own.
func subdir(t testing.TB, top, name string) string {
	t.Helper()
	dir := filepath.Join(top, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Dial is a bare connection to the server, closed at the end of the test.
func Dial(t testing.TB, s *Server) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
