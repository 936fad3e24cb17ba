package demo

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// steering is what a request's X-Demo fields ask for.
type steering struct {
	delay  time.Duration
	status int
	fault  fault
}

type fault string

const (
	faultBefore fault = "crash-before-effect"
	faultAfter  fault = "crash-after-effect"
	faultSlow   fault = "slow-body"
)

const (
	maxDelay = 10 * time.Minute
	// A slow body goes out in this many pieces, one per slowPause.
	slowPieces = 20
	slowPause  = 100 * time.Millisecond
)

func steeringOf(r *http.Request) (steering, error) {
	var s steering
	if v := r.Header.Get("X-Demo-Delay"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 || d > maxDelay {
			return s, fmt.Errorf("X-Demo-Delay is %q: want a duration from 0s to %v, such as 2s", v, maxDelay)
		}
		s.delay = d
	}
	if v := r.Header.Get("X-Demo-Status"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 200 || n > 599 {
			return s, fmt.Errorf("X-Demo-Status is %q: want a number from 200 to 599", v)
		}
		s.status = n
	}
	if v := r.Header.Get("X-Demo-Fault"); v != "" {
		s.fault = fault(v)
		switch s.fault {
		case faultBefore, faultAfter, faultSlow:
		default:
			return s, fmt.Errorf("X-Demo-Fault is %q: want %s, %s or %s", v, faultBefore, faultAfter, faultSlow)
		}
	}
	return s, nil
}

// answer writes v, slowly if the request asked for it.
func (a *API) answer(w http.ResponseWriter, s steering, status int, v any) {
	if s.fault != faultSlow {
		writeJSON(w, status, v)
		return
	}
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	b = append(b, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	c := http.NewResponseController(w)
	piece := (len(b) + slowPieces - 1) / slowPieces
	for len(b) > 0 {
		n := min(piece, len(b))
		if _, err := w.Write(b[:n]); err != nil {
			return
		}
		b = b[n:]
		if c.Flush() != nil {
			return
		}
		a.pause(slowPause)
	}
}

// hangUp closes the connection without an answer.
func hangUp(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
		return
	}
	panic(http.ErrAbortHandler) // HTTP/2: the stream is reset
}
