package pgserver

import (
	"runtime"
	"syscall"
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
