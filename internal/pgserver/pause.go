package pgserver

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Pause stops all processes of the server: its connections stay, new ones are
// accepted by the system alone, and nothing answers. It needs /proc.
func (s *Server) Pause() error {
	// First the one that makes the others.
	main := s.process().cmd.Process.Pid
	if err := syscall.Kill(main, syscall.SIGSTOP); err != nil {
		return err
	}
	return s.signal(syscall.SIGSTOP)
}

// Resume lets the processes that Pause has stopped go on.
func (s *Server) Resume() error {
	err := s.signal(syscall.SIGCONT)
	return errors.Join(err, syscall.Kill(s.process().cmd.Process.Pid, syscall.SIGCONT))
}

// signal signals the server's children.
func (s *Server) signal(sig syscall.Signal) error {
	list, err := children(s.process().cmd.Process.Pid)
	if err != nil {
		return err
	}
	for _, pid := range list {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) { // it has ended
			return err
		}
	}
	return nil
}

// children are the processes that a process has made.
func children(parent int) ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, errors.New("pgserver: there is no /proc to find the server's processes in")
	}
	var list []int
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		// PID (NAME) STATE PARENT …; the name may have anything in it.
		after := string(text[bytes.LastIndexByte(text, ')')+1:])
		if fields := strings.Fields(after); len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			return nil, err
		}
		list = append(list, pid)
	}
	return list, nil
}
