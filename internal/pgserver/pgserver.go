// Package pgserver runs private PostgreSQL servers for tests: never one of the
// system's. A server has its data, its socket and its log in a directory of
// its own, listens on the loopback alone, and is stopped by its own process
// id.
package pgserver

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a server may take to start or to stop.
const patience = 60 * time.Second

// Server is a running PostgreSQL server.
type Server struct {
	dir     string
	port    int
	durable bool
	standby bool // it follows another one
	cred    *syscall.Credential
	owner   string

	mu  sync.Mutex
	cmd *process
}

// Bin returns the directory of the newest PostgreSQL there is: that of the
// environment variable ESCAPEMENT_PG_BIN, or Debian's, or the one in PATH.
func Bin() (string, error) {
	if dir := os.Getenv("ESCAPEMENT_PG_BIN"); dir != "" {
		return dir, nil
	}
	best, dir := -1, ""
	all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	for _, f := range all {
		n, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(f))))
		if err == nil && n > best {
			best, dir = n, filepath.Dir(f)
		}
	}
	if dir != "" {
		return dir, nil
	}
	f, err := exec.LookPath("initdb")
	if err != nil {
		return "", errors.New("pgserver: there is no PostgreSQL server: install the package postgresql, or set ESCAPEMENT_PG_BIN to the directory of initdb")
	}
	return filepath.Dir(f), nil
}

// Start makes an empty cluster and starts it. A durable one flushes what it
// commits to the disk; others only survive a kill of their processes.
func Start(durable bool) (_ *Server, err error) {
	bin, err := Bin()
	if err != nil {
		return nil, err
	}
	// A socket's path has little room.
	dir, err := os.MkdirTemp("/tmp", "pgtest-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, durable: durable}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if err := s.becomeNobody(); err != nil {
		return nil, err
	}
	if s.port, err = freePort(); err != nil {
		return nil, err
	}
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", s.data(), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale", "C")
	initdb.Dir = dir
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pgserver: initdb: %w: %s", err, out)
	}
	return s, s.launch()
}

// becomeNobody finds a user for the server where this process is root, for
// whom PostgreSQL does not run.
func (s *Server) becomeNobody() error {
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		s.cred, s.owner = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, name
		return os.Chown(s.dir, int(uid), int(gid))
	}
	return errors.New("pgserver: this is root, and there is no user postgres or nobody to run the server")
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// launch starts the server and waits until it takes connections.
func (s *Server) launch() error {
	bin, err := Bin()
	if err != nil {
		return err
	}
	onOff := map[bool]string{true: "on", false: "off"}[s.durable]
	ready := "database system is ready to accept connections"
	if s.standby {
		ready = "database system is ready to accept read-only connections"
	}
	p, err := start(s.dir, s.cred, ready,
		filepath.Join(bin, "postgres"), "-D", s.data(), "-k", s.dir, "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "fsync="+onOff, "-c", "max_connections=400",
		"-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB", "-c", "deadlock_timeout=500ms")
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.cmd = p
	s.mu.Unlock()
	return nil
}

// Durable reports whether the server flushes what it commits.
func (s *Server) Durable() bool { return s.durable }

// URL names a database of the server through its socket.
func (s *Server) URL() string {
	return fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres sslmode=disable", s.dir, s.port)
}

// Address is the server's host and port.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Restart stops the server at once, as a crash of it would, and starts it
// again on the same data.
func (s *Server) Restart() error {
	if err := s.Crash(); err != nil {
		return err
	}
	return s.launch()
}

// Crash stops the server at once: nothing is finished, nothing written. Revive
// starts it again on the same data.
func (s *Server) Crash() error { return s.process().stop(syscall.SIGQUIT) }

// Revive starts a server that Crash has stopped.
func (s *Server) Revive() error { return s.launch() }

func (s *Server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd
}

// Stop stops the server and removes its directory.
func (s *Server) Stop() error {
	s.mu.Lock()
	p := s.cmd
	s.cmd = nil
	s.mu.Unlock()
	var err error
	if p != nil {
		err = p.stop(syscall.SIGINT)
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// Pooler is a running pgbouncer in transaction mode.
type Pooler struct {
	dir  string
	port int
	p    *process
}

// StartPooler starts a pgbouncer before the server.
func (s *Server) StartPooler() (_ *Pooler, err error) {
	exe, err := exec.LookPath("pgbouncer")
	if err != nil {
		exe = "/usr/sbin/pgbouncer"
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	b := &Pooler{dir: s.dir, port: port}
	file := filepath.Join(s.dir, fmt.Sprintf("pgbouncer-%d.ini", port))
	text := fmt.Sprintf(`[databases]
* = host=%s port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir = %s
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 500
`, s.dir, s.port, port, s.dir)
	text = strings.Replace(text, "* = host", "postgres = user=postgres host", 1)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	b.p, err = start(s.dir, s.cred, "process up", exe, file)
	return b, err
}

// Address is the pooler's host and port.
func (b *Pooler) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// URL names the server's database through the pooler.
func (b *Pooler) URL() string {
	return fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres sslmode=disable", b.dir, b.port)
}

// Stop stops the pooler.
func (b *Pooler) Stop() error { return b.p.stop(syscall.SIGTERM) }

// process is a program that was started here.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error
}

// start starts a program and waits for a line with the text ready on its
// standard error.
func start(dir string, cred *syscall.Credential, ready, exe string, args ...string) (*process, error) {
	cmd := exec.Command(exe, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = attributes(cred)
	log, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	cmd.Stdout, cmd.Stderr = w, w
	p := &process{cmd: cmd, ended: make(chan struct{})}
	if err := run(p); err != nil {
		log.Close()
		return nil, fmt.Errorf("pgserver: %s: %w", filepath.Base(exe), err)
	}
	seen := make(chan error, 1)
	go func() {
		defer log.Close()
		var said strings.Builder
		lines := bufio.NewScanner(log)
		found := false
		for !found && lines.Scan() {
			said.WriteString(lines.Text() + "\n")
			found = strings.Contains(lines.Text(), ready)
		}
		if !found {
			seen <- fmt.Errorf("pgserver: %s ended: %s", filepath.Base(exe), said.String())
			return
		}
		seen <- nil
		_, _ = io.Copy(io.Discard, log) // until the last of its processes has ended
	}()
	select {
	case err := <-seen:
		if err != nil {
			return nil, errors.Join(err, p.stop(syscall.SIGKILL))
		}
		return p, nil
	case <-time.After(patience):
		return nil, errors.Join(fmt.Errorf("pgserver: %s does not start", filepath.Base(exe)), p.stop(syscall.SIGKILL))
	}
}

// stop signals the program, and waits until it has ended.
func (p *process) stop(sig syscall.Signal) error {
	_ = p.cmd.Process.Signal(sig) // it may have ended
	select {
	case <-p.ended:
		return nil
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("pgserver: process %d had to be killed", p.cmd.Process.Pid)
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// shared are the server and the pooler of the test process.
var shared struct {
	mu     sync.Mutex
	server *Server
	pooler *Pooler
}

// Shared returns the server of this test process, and starts it when it is
// first asked for. [Stop] stops it.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		s, err := Start(false)
		if err != nil {
			t.Fatal(err)
		}
		shared.server = s
	}
	return shared.server
}

// SharedPooler returns the pooler before the server of this test process.
func SharedPooler(t testing.TB) *Pooler {
	t.Helper()
	s := Shared(t)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.pooler == nil {
		p, err := s.StartPooler()
		if err != nil {
			t.Fatal(err)
		}
		shared.pooler = p
	}
	return shared.pooler
}

// Stop stops what Shared and SharedPooler have started.
func Stop() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	var err error
	if shared.pooler != nil {
		err = shared.pooler.Stop()
		shared.pooler = nil
	}
	if shared.server != nil {
		err = errors.Join(err, shared.server.Stop())
		shared.server = nil
	}
	return err
}
