//go:build !linux

package e2e

import "syscall"

// dieTogether is for systems where a process cannot be told to die with the
// one that made it.
func dieTogether() *syscall.SysProcAttr { return nil }
