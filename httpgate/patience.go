package httpgate

import (
	"sync"
	"time"
)

// pokeAgain is the pause between two attempts to end a write.
const pokeAgain = 20 * time.Millisecond

// patiently calls send, which writes to the client, for as long as the attempt
// can spare: all in all half of its time, and never more than half of what is
// left. A client that reads no faster is cut off, and the answer is recorded:
// it must not turn an operation whose outcome is known into an unknown one.
func (x *exchange) patiently(send func() error) error {
	var (
		mu          sync.Mutex
		timer       *time.Timer
		fired, over bool
	)
	left := min(x.policy.gate.Timeout/2-x.held, time.Until(x.deadline)/2)
	start := time.Now()
	mu.Lock()
	timer = time.AfterFunc(left, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		fired = true
		x.rc.SetWriteDeadline(time.Unix(1, 0))
		timer.Reset(pokeAgain) // another deadline may have been set just then
	})
	mu.Unlock()
	err := send()
	mu.Lock()
	over = true
	mu.Unlock()
	timer.Stop()
	x.held += time.Since(start)
	if fired {
		x.gone, x.slow = true, true
	}
	return err
}
