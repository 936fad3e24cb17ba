package escapement

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A bound is a context like any other: whoever asks first.
func TestBound(t *testing.T) {
	type name struct{}
	synctest.Test(t, func(t *testing.T) {
		parent, stop := context.WithCancel(context.WithValue(t.Context(), name{}, "value"))
		defer stop()

		b := within(parent, time.Second)
		if d, ok := b.Deadline(); !ok || time.Until(d) != time.Second || b.Err() != nil || b.Value(name{}) != "value" {
			t.Errorf("fresh: %v, %v, %v", d, ok, b.Err())
		}
		child, cancel := context.WithCancel(b)
		defer cancel()
		<-child.Done()
		if !errors.Is(child.Err(), context.DeadlineExceeded) || !errors.Is(b.Err(), context.DeadlineExceeded) || b.Value(name{}) != "value" {
			t.Errorf("after its time: %v, %v", child.Err(), b.Err())
		}
		b.end()
		if !errors.Is(b.Err(), context.DeadlineExceeded) {
			t.Errorf("it changed its mind: %v", b.Err())
		}

		b = within(parent, time.Second) // nobody asks for Done
		<-time.After(time.Second)
		if !errors.Is(b.Err(), context.DeadlineExceeded) {
			t.Errorf("after its time: %v", b.Err())
		}
		b.end()

		b = within(parent, time.Hour)
		b.end()
		<-b.Done() // at once: nobody waits for an hour
		if !errors.Is(b.Err(), context.Canceled) {
			t.Errorf("ended: %v", b.Err())
		}

		short, cancelShort := context.WithTimeout(parent, time.Minute)
		defer cancelShort()
		b = within(short, time.Hour)
		if d, _ := b.Deadline(); time.Until(d) != time.Minute {
			t.Errorf("later than its parent: %v", time.Until(d))
		}
		b.end()

		b = within(parent, time.Hour)
		stop()
		if !errors.Is(b.Err(), context.Canceled) {
			t.Errorf("its parent is over: %v", b.Err())
		}
		<-b.Done()
		b.end()
	})
}
