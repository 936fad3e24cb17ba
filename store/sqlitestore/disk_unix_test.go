//go:build unix

package sqlitestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"testing"

	"github.com/escapement-dev/escapement/idempotency"
)

func init() { children["disk"] = childDisk }

// A commit that the disk refuses fails every operation of its batch, leaves
// the records as they were, and the store works again with the disk.
func TestDiskRefuses(t *testing.T) {
	var out bytes.Buffer
	c := command(t, "disk", newFile(t), 0)
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		t.Errorf("%v: %s", err, &out)
	}
}

// childDisk bounds the size of this process's files: a write beyond fails with
// EFBIG, as one to a broken disk would with EIO.
func childDisk(s *Store, _ int) error {
	ctx := context.Background()
	signal.Ignore(syscall.SIGXFSZ)
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		return err
	}
	limited := before
	limited.Cur = 512 << 10
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limited); err != nil {
		return err
	}
	var r idempotency.Reservation
	var err error
	n := 0
	for ; err == nil && n < 10000; n++ {
		var a idempotency.Answer
		if a, err = s.Reserve(ctx, newClaim(numbered(n))); err == nil {
			r = a.Reservation
			err = s.End(ctx, r, done("small"))
		}
	}
	var e *Error
	if !errors.As(err, &e) || e.File != s.file {
		return fmt.Errorf("after %d pairs: %v: want an *Error", n, err)
	}
	if _, err := s.Reserve(ctx, newClaim(numbered(-1))); err == nil {
		return errors.New("a claim was stored on a disk that refuses")
	}
	if rec, err := s.Lookup(ctx, numbered(0)); err != nil || rec.State != idempotency.Ended {
		return fmt.Errorf("an earlier record is %v, %v", rec.State, err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		return err
	}
	if _, err := s.Lookup(ctx, numbered(-1)); !errors.Is(err, idempotency.ErrNotFound) {
		return fmt.Errorf("the failed claim left something: %v", err)
	}
	a, err := s.Reserve(ctx, newClaim(numbered(-1)))
	if err != nil || a.Outcome != idempotency.Started {
		return fmt.Errorf("a claim when the disk works again: %v, %v", a.Outcome, err)
	}
	return s.End(ctx, a.Reservation, done("small"))
}
