package pgserver

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// attributes make the program end with this process, however that ends.
func attributes(cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: cred, Pdeathsig: syscall.SIGQUIT, Setpgid: true}
}

// run starts the program. The signal of Pdeathsig comes when the thread ends
// that started it, so that thread stays.
func run(p *process) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return <-started
}

// ProcessorTime is what the server's processes have used of the processors
// since they started. It is of more use than the clock where other programs use
// the same ones. A process that has ended no longer counts.
func (s *Server) ProcessorTime() (time.Duration, error) {
	s.mu.Lock()
	parent := strconv.Itoa(s.cmd.cmd.Process.Pid)
	s.mu.Unlock()
	list, err := os.ReadFile("/proc/" + parent + "/task/" + parent + "/children")
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, pid := range append(strings.Fields(string(list)), parent) {
		b, err := os.ReadFile("/proc/" + pid + "/schedstat")
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n)
	}
	return sum, nil
}
