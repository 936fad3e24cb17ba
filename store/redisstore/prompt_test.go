package redisstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// A call ends with its context also while a patient one connects to a server
// that accepts connections and says nothing.
func TestCallsEndWhileAnotherConnects(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, "redis://"+server.Addr, nil)
	charge := []ratelimit.Charge{perHour("r", "s", 1)}
	if _, err := s.Take(t.Context(), charge); err != nil {
		t.Fatal(err)
	}
	server.Pause(t)
	patient, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := s.Take(patient, charge); !errors.Is(err, redisstore.ErrUnavailable) {
		t.Fatalf("a hung server answers %v", err)
	} // its connection was given up
	done := make(chan error, 1)
	connects := make(chan struct{})
	go func() {
		close(connects)
		_, err := s.Take(patient, charge)
		done <- err
	}()
	<-connects
	for connecting := true; connecting; {
		begin := time.Now()
		hasty, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		_, err := s.Take(hasty, charge)
		cancel()
		if took := time.Since(begin); !errors.Is(err, redisstore.ErrUnavailable) || took > time.Second {
			t.Fatalf("a call of 30ms ended after %v with %v", took, err)
		}
		select {
		case err := <-done:
			if !errors.Is(err, redisstore.ErrUnavailable) {
				t.Fatalf("the patient call got %v", err)
			}
			connecting = false
		default:
		}
	}
	server.Resume(t)
	if _, err := s.Take(patient, charge); err != nil {
		t.Fatal(err)
	}
}
