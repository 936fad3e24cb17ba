package idempotency

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"
)

// Bounds of the steps of one record.
const (
	MaxSteps      = 64
	MaxStepName   = 128      // bytes
	MaxStepAnswer = 64 << 10 // bytes
	MaxStepID     = 255      // bytes of a provider's key and of its id
)

// Step is one external effect inside an operation. It is saved as started
// before the call and as done after it.
type Step struct {
	// Name is unique within the operation: 1 to MaxStepName bytes.
	Name string
	// Done is false for a step that was started and whose outcome nobody has
	// recorded.
	Done bool
	// ProviderKey is the step's own stable key, as sent to the provider.
	ProviderKey string
	// ProviderID is the provider's name for the effect; set when done.
	ProviderID string
	// Answer is what the provider said, in the caller's encoding; set when
	// done. Nil and empty are the same.
	Answer []byte
	// Started and Ended are the store's times, set by the store.
	Started, Ended time.Time
}

// Validate reports every fault of s at once.
func (s Step) Validate() error {
	var errs []error
	if s.Name == "" || len(s.Name) > MaxStepName {
		errs = append(errs, fmt.Errorf("idempotency: step with a name of %d bytes: want 1 to %d", len(s.Name), MaxStepName))
	}
	if len(s.ProviderKey) > MaxStepID || len(s.ProviderID) > MaxStepID {
		errs = append(errs, fmt.Errorf("idempotency: step %q: the provider's key has %d bytes and its id %d: want at most %d each", s.Name, len(s.ProviderKey), len(s.ProviderID), MaxStepID))
	}
	if len(s.Answer) > MaxStepAnswer {
		errs = append(errs, fmt.Errorf("idempotency: step %q: the answer has %d bytes: want at most %d", s.Name, len(s.Answer), MaxStepAnswer))
	}
	if !s.Done && (s.ProviderID != "" || len(s.Answer) > 0) {
		errs = append(errs, fmt.Errorf("idempotency: step %q has an answer and is not done", s.Name))
	}
	return errors.Join(errs...)
}

// same reports whether s and o say the same, whatever their times.
func (s Step) same(o Step) bool {
	return s.Name == o.Name && s.Done == o.Done && s.ProviderKey == o.ProviderKey &&
		s.ProviderID == o.ProviderID && bytes.Equal(s.Answer, o.Answer)
}

// StepKey is the key of a step's own, as a provider gets it: the same for every
// attempt of the operation k, and another one for every other operation and
// step. It is a UUID of version 8 (RFC 9562), 36 characters, so that providers
// which bound the length of a key, or ask for a UUID, take it. Neither the
// client's key nor the tenant can be read from it.
func StepKey(k Key, step string) string {
	h := sha256.New()
	h.Write([]byte("escapement step 1"))
	h.Write(k.ID[:])
	h.Write([]byte(step))
	b := h.Sum(nil)[:16]
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
