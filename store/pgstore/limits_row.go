package pgstore

import (
	"encoding/binary"
	"fmt"

	"github.com/escapement-dev/escapement/ratelimit"
)

// A stored state is its form's number and seven integers.
const (
	limitForm = 1
	limitSize = 1 + 7*8
)

// fullState is the state of a bucket of which nothing is known.
var fullState = packLimit(&ratelimit.State{})

func packLimit(s *ratelimit.State) []byte {
	b := make([]byte, 1, limitSize)
	b[0] = limitForm
	for _, n := range [...]int64{s.Arrival, s.Rem, s.Window, s.Quota, s.Burst, s.Since, s.Returned} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return b
}

func readLimit(b []byte) (s ratelimit.State, err error) {
	if len(b) != limitSize || b[0] != limitForm {
		return s, fmt.Errorf("a state of %d bytes is of no known form", len(b))
	}
	for i, n := range [...]*int64{&s.Arrival, &s.Rem, &s.Window, &s.Quota, &s.Burst, &s.Since, &s.Returned} {
		*n = int64(binary.BigEndian.Uint64(b[1+8*i:]))
	}
	return s, nil
}

// limitRow is a bucket in a batch.
type limitRow struct {
	id    string
	old   []byte // as it is stored; nil if it is not
	keep  int64  // keep_until, as it is stored
	state ratelimit.State
	moved bool  // by an operation of the batch
	held  bool  // an operation that changes something was decided by it
	err   error // it cannot be read
}

// found takes what is stored.
func (r *limitRow) found(state []byte, keep int64) {
	r.old, r.keep = state, keep
	if r.state, r.err = readLimit(state); r.err != nil {
		r.err = fmt.Errorf("pgstore: the limit %q cannot be read: %w: delete its row in escapement_limits", r.id, r.err)
	}
}

// first is the state as it was read.
func (r *limitRow) first() ratelimit.State {
	var s ratelimit.State
	if r.old != nil {
		s, _ = readLimit(r.old) // it was read once
	}
	return s
}
