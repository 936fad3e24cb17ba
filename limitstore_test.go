package escapement_test

import (
	"context"
	"sync"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// limitStore keeps limits by the ground's own rule.
type limitStore struct {
	mu     sync.Mutex
	states map[string]ratelimit.State
}

func (s *limitStore) Take(_ context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	d := ratelimit.Decision{Allowed: true, Taken: &ratelimit.Taken{Charges: charges}}
	next := map[string]ratelimit.State{}
	for _, c := range charges {
		k := c.Rule.Name + "\x00" + c.Subject
		st, l := c.Rule.Take(s.states[k], c.Cost, now)
		l.Rule, l.Subject = c.Rule, c.Subject
		d.Levels, d.Allowed = append(d.Levels, l), d.Allowed && l.Allowed
		next[k] = st
		d.Taken.Receipts = append(d.Taken.Receipts, st.Receipt(ratelimit.Micros(now)))
	}
	if !d.Allowed {
		d.Taken = nil
		return d, nil
	}
	for k, st := range next {
		s.states[k] = st
	}
	return d, nil
}

func (s *limitStore) Return(_ context.Context, t *ratelimit.Taken) error {
	if !t.Once() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range t.Charges {
		k := c.Rule.Name + "\x00" + c.Subject
		s.states[k] = c.Rule.Return(s.states[k], c.Cost, t.Receipts[i], time.Now())
	}
	return nil
}

func (s *limitStore) Reset(_ context.Context, rule, subject string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.states, rule+"\x00"+subject)
	return nil
}
