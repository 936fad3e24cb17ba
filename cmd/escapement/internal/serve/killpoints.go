//go:build killpoints

package serve

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/escapement-dev/escapement/idempotency"
)

// ESCAPEMENT_KILL_AT=POINT or POINT:N kills the process by SIGKILL when it
// comes to the point for the first, or the Nth, time. The points:
//
//	before-claim                  a keyed request is about to be claimed
//	after-claim                   its claim has won and is in the store
//	after-effect-before-record    the upstream has answered, the store does not know
//	after-record-before-answer    the store knows, the client does not
//	mid-answer                    half of an answer's first piece is out
const killVariable = "ESCAPEMENT_KILL_AT"

const (
	killBeforeClaim  = "before-claim"
	killAfterClaim   = "after-claim"
	killBeforeRecord = "after-effect-before-record"
	killAfterRecord  = "after-record-before-answer"
	killMidAnswer    = "mid-answer"
)

// killPoint counts down to its kill.
type killPoint struct {
	name string
	left atomic.Int64
}

var kill = readKillPoint(os.Getenv(killVariable))

func readKillPoint(s string) *killPoint {
	name, times, counted := strings.Cut(s, ":")
	k := &killPoint{name: name}
	k.left.Store(1)
	if counted {
		n, err := strconv.ParseInt(times, 10, 64)
		if err != nil || n < 1 {
			k.name = "" // killRecords reports it
			return k
		}
		k.left.Store(n)
	}
	return k
}

// at kills the process if this is the point, for the last time to be counted.
func (k *killPoint) at(name string) {
	if k.here(name) {
		die()
	}
}

func (k *killPoint) here(name string) bool { return k.name == name && k.left.Add(-1) == 0 }

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}

// killRecords puts the points around the store's calls.
func killRecords(r records) (records, error) {
	s := os.Getenv(killVariable)
	switch kill.name {
	case killBeforeClaim, killAfterClaim, killBeforeRecord, killAfterRecord, killMidAnswer:
	default:
		if s != "" {
			return nil, fmt.Errorf("serve: %s is %q: want a point, or point:N", killVariable, s)
		}
	}
	return killing{r}, nil
}

type killing struct{ records }

func (k killing) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	kill.at(killBeforeClaim)
	a, err := k.records.Reserve(ctx, c)
	if err == nil && a.Outcome == idempotency.Started {
		kill.at(killAfterClaim)
	}
	return a, err
}

func (k killing) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	if e.Kind != idempotency.EndedDone {
		return k.records.End(ctx, r, e)
	}
	kill.at(killBeforeRecord)
	err := k.records.End(ctx, r, e)
	if err == nil {
		kill.at(killAfterRecord)
	}
	return err
}

// killAnswers puts a point into the answers to requests with a key.
func killAnswers(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "" {
			w = &killedWriter{w}
		}
		h.ServeHTTP(w, r)
	})
}

type killedWriter struct{ http.ResponseWriter }

func (w *killedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *killedWriter) Write(p []byte) (int, error) {
	if len(p) > 0 && kill.here(killMidAnswer) {
		_, _ = w.ResponseWriter.Write(p[:len(p)/2])
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		die()
	}
	return w.ResponseWriter.Write(p)
}
