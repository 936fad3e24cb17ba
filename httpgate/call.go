package httpgate

import (
	"context"
	"errors"
	"net/http"
	"os"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/ratelimit"
)

// call is one request on its way.
type call struct {
	m      *Middleware
	w      http.ResponseWriter
	r      *http.Request
	echo   []string
	levels []ratelimit.Level // of what was asked so far
	read   bool              // the body was read as far as it will be
}

// unkeyed lets a request without a key pass.
func (c *call) unkeyed(charges []ratelimit.Charge, next http.Handler) {
	if !c.limited(charges) {
		return
	}
	if c.r.ContentLength < 0 && c.r.Body != nil && c.r.Body != http.NoBody {
		r := *c.r
		r.Body = http.MaxBytesReader(c.w, c.r.Body, c.m.c.MaxRequest)
		c.r = &r
	}
	if len(c.levels) == 0 && len(c.echo) == 0 {
		next.ServeHTTP(c.w, c.r)
		return
	}
	p := &passing{ResponseWriter: c.w, echo: c.echo, levels: c.levels}
	next.ServeHTTP(p, c.r)
	p.say() // for a handler that has said nothing
}

// limited asks the limits, and answers if they do not let the request pass.
func (c *call) limited(charges []ratelimit.Charge) bool {
	if len(charges) == 0 {
		return true
	}
	d, err := c.m.c.Gate.Limit(c.r.Context(), charges)
	c.levels = d.Levels
	switch {
	case err != nil:
		c.failed(err)
		return false
	case !d.Allowed:
		c.refuse(problemLimited(d))
		return false
	}
	return true
}

// charged refuses a request that is at fault, after charging it for the asking.
func (c *call) charged(charges []ratelimit.Charge, p Problem) {
	requests, _ := ratelimit.Split(charges)
	if c.limited(requests) {
		c.refuse(p)
	}
}

// refuse answers with a problem. A large body that was not read must not hold
// up the answer: net/http would read on before it sends, unless the connection
// is to be closed.
func (c *call) refuse(p Problem) {
	ours(c.w.Header(), c.echo, c.levels)
	if r := c.r; !c.read && r.ProtoMajor == 1 && (r.ContentLength < 0 || r.ContentLength > earlyBody) {
		c.w.Header().Set("Connection", "close")
	}
	c.m.Refuse(c.w, c.r, p)
}

// failed answers when no decision was made.
func (c *call) failed(err error) {
	switch {
	case errors.Is(err, escapement.ErrRecords):
		c.refuse(problemStoreUnavailable())
	case errors.Is(err, escapement.ErrLimits):
		c.refuse(problemLimiterUnavailable())
	case errors.Is(err, escapement.ErrBusy):
		c.refuse(problemReducedCapacity("Too many operations are running. Nothing was executed. Send the request again later."))
	case errors.Is(err, escapement.ErrClosed):
		c.refuse(problemReducedCapacity("The service is shutting down. Nothing was executed. Send the request again later."))
	default:
		c.m.log.ErrorContext(c.r.Context(), "a request could not be judged", "err", err)
		c.refuse(problemInternal())
	}
}

// bodyProblem says why a body was not received.
func (c *call) bodyProblem(err error) Problem {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return problemTooLarge(c.m.c.MaxRequest)
	case errors.Is(err, errSpoolFile):
		c.m.log.ErrorContext(c.r.Context(), "a request's body could not be held", "err", err)
		return problemReducedCapacity("The request's body cannot be held at the moment. Nothing was executed. Send the request again later.")
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return problemIncomplete(http.StatusRequestTimeout)
	}
	return problemIncomplete(http.StatusBadRequest)
}
