//go:build !linux

package bench

import (
	"syscall"
	"time"
)

func dieWithParent() *syscall.SysProcAttr { return nil }

func processorTime() time.Duration { return 0 }
