package bench

import (
	"syscall"
	"time"
)

// dieWithParent makes the kernel kill a server if this process dies before it
// could.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// processorTime is what this process has used of the processors. It is of
// more use than the clock where others use them too.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // the arguments are right
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
