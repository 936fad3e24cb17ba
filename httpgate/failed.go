package httpgate

import (
	"net/http"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// Handler returns a handler that calls f and, if that returns an error, answers
// with [Middleware.Failed] in place of whatever f has written. Put it behind
// [Middleware.Wrap].
func (m *Middleware) Handler(f func(w http.ResponseWriter, r *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if exchangeFrom(r.Context()) != nil {
			if err := f(w, r); err != nil {
				m.Failed(w, r, err)
			}
			return
		}
		p := &passing{ResponseWriter: w}
		err := f(p, r)
		switch {
		case err != nil && p.said:
			panic(http.ErrAbortHandler)
		case err != nil:
			m.Failed(w, r, err)
		}
	})
}

// Failed answers a request whose operation failed with err, and reports what
// that says of the operation, as escapement.EndingOf does:
//
//   - Nothing was executed (escapement.ErrNotExecuted): 503, and the key is as
//     it was found.
//   - The database has rolled back because of others (SQLSTATE 40001 and 40P01):
//     503 with Retry-After, a temporary failure that answers repeats for
//     KeyPolicy.RetryableWindow.
//   - Either of them where the operation has called a step (escapement.Step):
//     that may have had an effect, so the first counts as the next line, and the
//     second says so and stays temporary.
//   - Anything else: 502, and nobody knows whether there was an effect. So a
//     refusal that is the operation's answer, such as a 404, is written, and is
//     no error.
//
// The answer has the code operation-failed and the member executed, "no" or
// "unknown". It does not say what err says, nor does the log, since it may hold
// what must not stand there: log it where that is known.
//
// What a handler of a keyed request has written before is dropped, unless a part
// has gone out: then the connection is cut (http.ErrAbortHandler), and the
// outcome is unknown. A handler of another request must not have written
// anything; [Middleware.Handler] sees to that. After [EndIn] the transaction's
// fate is the ending, and this answer is given if it did not commit.
func (m *Middleware) Failed(w http.ResponseWriter, r *http.Request, err error) {
	p := Problem{
		Code: "operation-failed", Status: http.StatusServiceUnavailable, Retryable: true, RetryAfter: time.Second,
		Title: "The operation failed", Detail: "Nothing was executed. Send the request again later.",
		More: map[string]any{"executed": "no"},
	}
	x := exchangeFrom(r.Context())
	if x != nil && !x.restart() {
		panic(http.ErrAbortHandler)
	}
	finding := Unknown
	stepped := escapement.RunFrom(r.Context()).Stepped()
	switch kind := escapement.EndingOf(err).Kind; {
	case kind == idempotency.EndedNotRun && !stepped:
		finding = NotExecuted
	case kind == idempotency.EndedDone:
		finding = Retryable
		if stepped {
			p.Detail = "A part of it may have been executed, and will not be repeated. Send the request again later."
			p.More["executed"] = "unknown"
		}
		if x != nil {
			p.RetryAfter = max(x.policy.window, time.Second)
		}
	default:
		p.Status, p.Retryable, p.RetryAfter = http.StatusBadGateway, false, 0
		p.Detail = "Nobody knows whether it was executed."
		p.More["executed"] = "unknown"
	}
	Report(r.Context(), finding)
	m.Refuse(w, r, p)
}

// restart drops what the handler has written, and reports false if a part of it
// has gone out.
func (x *exchange) restart() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sent {
		return false
	}
	x.reset()
	return true
}
