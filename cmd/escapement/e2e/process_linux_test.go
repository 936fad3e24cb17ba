package e2e

import "syscall"

// dieTogether makes a process die with the tests.
func dieTogether() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
