package httpgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// sqlError is an error as drivers of databases have it.
type sqlError string

func (e sqlError) Error() string    { return "ERROR for Jane Doe" }
func (e sqlError) SQLState() string { return string(e) }

// I14: what an error of a handler means for the key. The error's text goes
// nowhere.
func TestI14FailedHandlers(t *testing.T) {
	for name, c := range map[string]struct {
		err      error
		status   int
		executed string
		after    string // Retry-After
		found    idempotency.Status
		runs     bool // the repeat, at once
	}{
		"serialization failure": {fmt.Errorf("order: %w", sqlError("40001")), 503, "no", "2", idempotency.StatusFailedRetryable, false},
		"deadlock":              {errors.Join(errAway, sqlError("40P01")), 503, "no", "2", idempotency.StatusFailedRetryable, false},
		"another SQLSTATE":      {sqlError("23505"), 502, "unknown", "", idempotency.StatusUnknown, false},
		"not executed":          {fmt.Errorf("bank: %w", escapement.ErrNotExecuted), 503, "no", "1", idempotency.StatusFree, true},
		"not sent":              {fmt.Errorf("bank: %w", ErrNotSent), 503, "no", "1", idempotency.StatusFree, true},
		"unknown step":          {fmt.Errorf("bank: %w", escapement.ErrStepUnknown), 502, "unknown", "", idempotency.StatusUnknown, false},
		"anything else":         {errors.New("the file of Jane Doe"), 502, "unknown", "", idempotency.StatusUnknown, false},
	} {
		for _, wrote := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/wrote %v", name, wrote), func(t *testing.T) {
				var calls atomic.Int32
				fails := true
				var r *rig
				r = newRig(t, func(w http.ResponseWriter, req *http.Request) {
					r.m.Handler(func(w http.ResponseWriter, req *http.Request) error {
						calls.Add(1)
						if fails {
							if wrote {
								w.Header().Set("Location", "/7")
								w.WriteHeader(201)
								io.WriteString(w, "made")
							}
							return c.err
						}
						w.WriteHeader(201)
						return nil
					}).ServeHTTP(w, req)
				}, nil)
				first := r.post("/x", "k", "{}")
				p := first.problem(t, c.status, "operation-failed")
				if p["executed"] != c.executed || first.header.Get("Retry-After") != c.after || first.header.Get("Location") != "" {
					t.Errorf("%v, %v", p, first.header)
				}
				if strings.Contains(first.body+r.logs.String(), "Jane") {
					t.Errorf("the error's text: %s\n%s", first.body, r.logs.String())
				}
				if n := r.recordCount(); (n == 0) != (c.found == idempotency.StatusFree) {
					t.Errorf("%d records", n)
				} else if n > 0 && r.record().Status() != c.found {
					t.Errorf("the record is %s, want %s", r.record().Status(), c.found)
				}
				fails = false
				again := r.post("/x", "k", "{}")
				if ran := calls.Load() == 2; ran != c.runs {
					t.Errorf("the repeat ran: %v; %+v", ran, again)
				}
				if c.found == idempotency.StatusFailedRetryable {
					again.replayed(t, first)
					r.clock.move(2 * time.Second)
					r.post("/x", "k", "{}").want(t, 201, "")
				}
			})
		}
	}
}

// Without a key there is nothing to record, and the answer is the same; what has
// been written cannot be taken back.
func TestFailedWithoutAKey(t *testing.T) {
	var r *rig
	r = newRig(t, func(w http.ResponseWriter, req *http.Request) {
		r.m.Handler(func(w http.ResponseWriter, req *http.Request) error {
			switch req.URL.Path {
			case "/wrote":
				io.WriteString(w, "half")
				http.NewResponseController(w).Flush()
			case "/fine":
				io.WriteString(w, "all")
				return nil
			}
			return sqlError("40001")
		}).ServeHTTP(w, req)
	}, nil)
	rep := r.do("GET", "/x", "")
	if p := rep.problem(t, 503, "operation-failed"); p["executed"] != "no" || rep.header.Get("Retry-After") != "1" {
		t.Errorf("%v, %v", p, rep.header)
	}
	r.do("GET", "/fine", "").want(t, 200, "all")
	if rep, err := r.try("GET", "/wrote", nil); err == nil && rep.err == nil {
		t.Errorf("a broken answer came as a whole: %+v", rep)
	}
}

// An answer of which a part has gone out is cut, and the outcome is unknown.
func TestFailedAfterAFlush(t *testing.T) {
	var r *rig
	r = newRig(t, func(w http.ResponseWriter, req *http.Request) {
		r.m.Handler(func(w http.ResponseWriter, req *http.Request) error {
			io.WriteString(w, "half")
			http.NewResponseController(w).Flush()
			return fmt.Errorf("too late: %w", escapement.ErrNotExecuted)
		}).ServeHTTP(w, req)
	}, nil)
	if rep, err := r.try("POST", "/x", strings.NewReader("{}"), KeyField, "k"); err == nil && rep.err == nil {
		t.Errorf("a broken answer came as a whole: %+v", rep)
	}
	r.post("/x", "k", "{}").problem(t, 409, "idempotency-outcome-unknown")
}

// A serialization failure of a transaction that was to record the answer: what
// was rendered is dropped, and nothing was executed.
func TestFailedInTransaction(t *testing.T) {
	for _, ended := range []bool{false, true} {
		var r *rig
		fails := true
		r = newRig(t, func(w http.ResponseWriter, req *http.Request) {
			r.m.Handler(func(w http.ResponseWriter, req *http.Request) error {
				if err := FenceIn(req.Context(), rolledBack{r.memory}); err != nil {
					return err
				}
				w.WriteHeader(201)
				io.WriteString(w, "made")
				if !fails {
					return EndIn(req.Context(), r.memory)
				}
				if ended {
					if err := EndIn(req.Context(), rolledBack{r.memory}); err != nil {
						return err
					}
				}
				return sqlError("40001")
			}).ServeHTTP(w, req)
		}, nil)
		r.post("/x", "k", "{}").problem(t, 503, "operation-failed")
		fails = false
		r.clock.move(2 * time.Second)
		first := r.post("/x", "k", "{}")
		first.want(t, 201, "made")
		r.post("/x", "k", "{}").replayed(t, first)
	}
}

// A handler's context carries the attempt, so steps work in handlers; a provider
// that cannot be reached is an error that says that nothing was executed.
func TestStepInAHandler(t *testing.T) {
	var calls atomic.Int32
	var r *rig
	provider := &http.Client{Transport: NewTransport(nil)}
	r = newRig(t, func(w http.ResponseWriter, req *http.Request) {
		r.m.Handler(func(w http.ResponseWriter, req *http.Request) error {
			s, err := escapement.Step(req.Context(), "pay", func(ctx context.Context, key string) (escapement.StepResult, error) {
				calls.Add(1)
				if req.URL.Path == "/away" {
					out, err := http.NewRequestWithContext(ctx, "POST", "http://127.0.0.1:1/", nil)
					if err != nil {
						return escapement.StepResult{}, err
					}
					resp, err := provider.Do(out)
					if err == nil {
						resp.Body.Close()
					}
					return escapement.StepResult{}, err
				}
				return escapement.StepResult{ID: "ch_1"}, nil
			}, escapement.StepOptions{KeysFor: time.Hour})
			if err != nil {
				return err
			}
			w.WriteHeader(201)
			io.WriteString(w, s.ProviderID)
			return nil
		}).ServeHTTP(w, req)
	}, func(_ *Config, o *escapement.Options) {
		if f, ok := o.Records.(*faulty); ok {
			o.Records = f.Store // which keeps steps
		}
	})
	first := r.post("/x", "k", "{}")
	first.want(t, 201, "ch_1")
	r.post("/x", "k", "{}").replayed(t, first)
	if p := r.post("/away", "k", "{}").problem(t, 503, "operation-failed"); p["executed"] != "no" {
		t.Error(p)
	}
	if calls.Load() != 2 {
		t.Errorf("%d calls", calls.Load())
	}
	if rep := r.do("POST", "/x", "{}"); rep.status != 502 { // no key, no record
		t.Errorf("%+v", rep)
	}
}

// An operation that has called a step is not said to have done nothing.
func TestFailedAfterAStep(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		status int
		found  idempotency.Status
	}{
		"not executed":          {fmt.Errorf("bank: %w", escapement.ErrNotExecuted), 502, idempotency.StatusUnknown},
		"serialization failure": {sqlError("40001"), 503, idempotency.StatusFailedRetryable},
	} {
		t.Run(name, func(t *testing.T) {
			var r *rig
			r = newRig(t, func(w http.ResponseWriter, req *http.Request) {
				r.m.Handler(func(w http.ResponseWriter, req *http.Request) error {
					paid := func(context.Context, string) (escapement.StepResult, error) {
						return escapement.StepResult{ID: "1"}, nil
					}
					if _, err := escapement.Step(req.Context(), "pay", paid, escapement.StepOptions{}); err != nil {
						t.Error(err)
					}
					return c.err
				}).ServeHTTP(w, req)
			}, nil)
			p := r.post("/x", "k", "{}").problem(t, c.status, "operation-failed")
			if p["executed"] != "unknown" {
				t.Errorf("%v", p)
			}
			if got := r.record().Status(); got != c.found {
				t.Errorf("the record is %s, want %s", got, c.found)
			}
		})
	}
}
