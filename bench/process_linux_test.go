package bench

import "syscall"

// dieWithParent makes the kernel kill a server if this process dies before it
// could.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
