package httpgate

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// rolledBack is the store of a transaction that will not commit: what is ended
// in it leaves no trace.
type rolledBack struct{ idempotency.Store }

func (rolledBack) End(context.Context, idempotency.Reservation, idempotency.Ending) error { return nil }

func TestEndInCommitted(t *testing.T) {
	var r *rig
	r = newRig(t, func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		if err := FenceIn(ctx, r.memory); err != nil {
			t.Error(err)
		}
		w.Header().Set("Location", "/7")
		w.WriteHeader(201)
		io.WriteString(w, strings.Repeat("x", 200_000))
		if err := http.NewResponseController(w).Flush(); err != nil { // holds back all the same
			t.Error(err)
		}
		if err := EndIn(ctx, r.memory); err != nil {
			t.Error(err)
		}
		w.WriteHeader(500)
		io.WriteString(w, "only if it was rolled back")
	}, nil)
	first := r.post("/x", "k", "{}")
	first.want(t, 201, strings.Repeat("x", 200_000))
	again := r.post("/x", "k", "{}")
	again.replayed(t, first)
	if first.header.Get("Location") != "/7" || again.header.Get("Location") != "/7" {
		t.Error(first.header, again.header)
	}
	// A request without a key has no record: both do nothing.
	if err := errors.Join(FenceIn(t.Context(), r.memory), EndIn(t.Context(), r.memory)); err != nil {
		t.Error(err)
	}
}

func TestEndInRolledBack(t *testing.T) {
	for _, says := range []string{"something", "nothing"} {
		var calls atomic.Int32
		var r *rig
		r = newRig(t, func(w http.ResponseWriter, req *http.Request) {
			var tx idempotency.Store = r.memory
			if calls.Add(1) == 1 {
				tx = rolledBack{r.memory}
			}
			if err := FenceIn(req.Context(), tx); err != nil {
				t.Error(err)
			}
			w.Header().Set("X-First", "1")
			io.WriteString(w, "made")
			if err := EndIn(req.Context(), tx); err != nil {
				t.Error(err)
			}
			if calls.Load() == 1 && says == "something" {
				w.WriteHeader(503)
				io.WriteString(w, "sorry")
			}
		}, nil)
		rep := r.post("/x", "k", "{}")
		if says == "something" {
			rep.want(t, 503, "sorry")
		} else {
			rep.problem(t, 500, "internal-error")
		}
		if rep.header.Get("X-First") != "" {
			t.Errorf("a field of the answer that was rolled back: %v", rep.header)
		}
		first := r.post("/x", "k", "{}")
		first.want(t, 200, "made")
		r.post("/x", "k", "{}").replayed(t, first)
		if calls.Load() != 2 {
			t.Errorf("%d calls", calls.Load())
		}
	}
}

func TestEndInErrors(t *testing.T) {
	var r *rig
	r = newRig(t, func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		want := func(err error, text string) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("have %v, want %s", err, text)
			}
		}
		switch req.URL.Path {
		case "/unfenced":
			io.WriteString(w, "x")
			want(EndIn(ctx, r.memory), "without FenceIn")
		case "/late":
			http.NewResponseController(w).Flush()
			want(FenceIn(ctx, r.memory), "has gone out")
		case "/silent":
			if err := FenceIn(ctx, r.memory); err != nil {
				t.Error(err)
			}
			want(EndIn(ctx, r.memory), "before the handler has written")
		case "/no-result":
			if err := FenceIn(ctx, r.memory); err != nil {
				t.Error(err)
			}
			w.WriteHeader(429)
			want(EndIn(ctx, r.memory), "no result")
		case "/large":
			if err := FenceIn(ctx, r.memory); err != nil {
				t.Error(err)
			}
			if _, err := w.Write(make([]byte, 11)); err == nil {
				t.Error("an answer over MaxAnswer was taken")
			}
			Report(ctx, NotExecuted)
		case "/fenced":
			r.clock.move(time.Hour)
			v, err := r.gate.Do(ctx, requestOf(ctx, t), func(context.Context, *escapement.Run) idempotency.Ending {
				return idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Status: 204, Payload: emptyAnswer(t)})
			})
			if err != nil || !v.Recorded {
				t.Error(v, err)
			}
			if err := FenceIn(ctx, r.memory); !errors.Is(err, idempotency.ErrFenced) {
				t.Errorf("FenceIn: %v", err)
			}
		}
	}, func(c *Config, _ *escapement.Options) {
		c.Keys.MaxAnswer = 10
		c.Keys.Policy = policyWith(func(p *escapement.Policy) { p.Terms.OnUnknown, p.Terms.Quiet = idempotency.Retry, 0 })
	})
	r.post("/unfenced", "k", "").want(t, 200, "x")
	r.post("/late", "k", "").want(t, 200, "")
	r.post("/silent", "k", "").want(t, 200, "")
	r.post("/no-result", "k", "").want(t, 429, "")
	r.post("/large", "k", "").want(t, 200, "")
	r.post("/fenced", "k", "").want(t, 204, "")
}

// requestOf is another attempt at the key of ctx.
func requestOf(ctx context.Context, t *testing.T) escapement.Request {
	res, ok := escapement.RunFrom(ctx).Reservation()
	if !ok {
		t.Error("no reservation")
	}
	p := escapement.DefaultPolicy()
	p.Terms.OnUnknown, p.Terms.Quiet = idempotency.Retry, 0
	return escapement.Request{Key: res.Key, Policy: p}
}

func emptyAnswer(t *testing.T) []byte {
	b, err := Answer{}.Encode()
	if err != nil {
		t.Error(err)
	}
	return b
}
