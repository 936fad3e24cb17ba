package redistest

import "syscall"

// dieWithParent makes the kernel kill the server if the test's process dies
// before it could.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
