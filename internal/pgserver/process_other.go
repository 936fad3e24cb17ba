//go:build unix && !linux

package pgserver

import (
	"errors"
	"syscall"
	"time"
)

// ProcessorTime is known on Linux alone.
func (s *Server) ProcessorTime() (time.Duration, error) { return 0, errors.ErrUnsupported }

func attributes(cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: cred, Setpgid: true}
}

func run(p *process) error {
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return nil
}
