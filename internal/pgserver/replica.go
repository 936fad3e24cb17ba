package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// StartReplica starts a server that follows this one by streaming. To the
// primary it is known by the name: synchronous_standby_names can have it.
func (s *Server) StartReplica(name string) (_ *Server, err error) {
	dir, err := os.MkdirTemp("/tmp", "pgtest-")
	if err != nil {
		return nil, err
	}
	r := &Server{dir: dir, durable: s.durable, standby: true}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Stop())
		}
	}()
	if err := r.becomeNobody(); err != nil {
		return nil, err
	}
	if r.port, err = freePort(); err != nil {
		return nil, err
	}
	if err := r.tool("pg_basebackup", "-D", r.data(), "-R", "-X", "stream", "-c", "fast", "--no-sync",
		"-d", fmt.Sprintf("host=127.0.0.1 port=%d user=postgres application_name=%s", s.port, name)); err != nil {
		return nil, err
	}
	return r, r.launch()
}

// Promote makes a primary of a replica.
func (s *Server) Promote() error {
	if err := s.tool("pg_ctl", "promote", "-w", "-D", s.data()); err != nil {
		return err
	}
	s.standby = false
	return nil
}

// tool runs one of PostgreSQL's programs as the server's user.
func (s *Server) tool(name string, args ...string) error {
	bin, err := Bin()
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgserver: %s: %w: %s", name, err, out)
	}
	return nil
}
