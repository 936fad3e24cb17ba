package httpgate

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// earlyBody is the size of a body, in bytes, above which the limits on
// requests are asked before it is read.
const earlyBody = 64 << 10

// keyed runs a request with a key, or answers it.
func (c *call) keyed(policy *keyPolicy, charges []ratelimit.Charge, next http.Handler) {
	m, r := c.m, c.r
	client, err := parseKey(c.echo)
	if err != nil {
		c.charged(charges, problemKeyMalformed(err))
		return
	}
	key, lacks, err := m.key(r, policy, client)
	switch {
	case lacks != "":
		c.charged(charges, problemCallerUnknown("The request does not say who its "+lacks+" is, and its key belongs to one. Nothing was executed."))
		return
	case err != nil:
		c.failed(err)
		return
	}
	if r.ContentLength > m.c.MaxRequest {
		c.charged(charges, problemTooLarge(m.c.MaxRequest))
		return
	}
	if r.ContentLength < 0 || r.ContentLength > earlyBody || r.Header["Expect"] != nil {
		var requests []ratelimit.Charge
		requests, charges = ratelimit.Split(charges)
		if !c.limited(requests) {
			return
		}
	}
	early := c.levels

	body, print, err := c.receive(policy.printer)
	if err != nil {
		c.refuse(c.bodyProblem(err))
		return
	}
	defer body.close()

	x := &exchange{
		m: m, w: c.w, rc: http.NewResponseController(c.w), policy: policy,
		r: withBody(r, body), base: c.w.Header().Clone(), echo: c.echo,
		origin: fieldValue(r.Header, "Origin"), levels: early,
	}
	x.reset()
	req := escapement.Request{
		Charges: charges,
		Key:     key,
		Prints:  []idempotency.Fingerprint{print},
		Policy:  policy.gate,
		Origin:  idempotency.Origin{Method: r.Method, Route: policy.pattern, Trace: traceID(r)},
		ID:      requestID(r),
	}
	v, err := m.c.Gate.Do(r.Context(), req, func(ctx context.Context, run *escapement.Run) idempotency.Ending {
		body.hold()
		defer body.close()
		x.mu.Lock()
		x.levels = slices.Concat(early, run.Decision().Levels)
		x.mu.Unlock()
		return x.run(ctx, next)
	})
	c.levels = slices.Concat(early, v.Decision.Levels)
	switch {
	case err != nil:
		c.failed(err)
	case v.Ran:
		c.tellUnknown(x, req, v)
		c.ran(x, v)
	default:
		c.answered(v)
	}
}

// receive reads the whole body, and makes the request's fingerprint. The caller
// closes the spool; after an error there is none.
func (c *call) receive(printer *idempotency.Printer) (*spool, idempotency.Fingerprint, error) {
	m, r := c.m, c.r
	asSent := r.Body
	if asSent == nil { // possible only without a server
		asSent = http.NoBody
	}
	body, err := readSpool(http.MaxBytesReader(c.w, asSent, m.c.MaxRequest), r.ContentLength, m.c.SpoolMemory, m.c.SpoolDir)
	if err != nil {
		return nil, idempotency.Fingerprint{}, err
	}
	c.read = true
	digest := printer.Begin(idempotency.Meaning{
		Method: r.Method, Path: r.URL.EscapedPath(), RawQuery: r.URL.RawQuery,
		ContentType: r.Header.Get("Content-Type"), Header: r.Header.Values,
	})
	if err := body.copyTo(digest); err != nil {
		body.close()
		return nil, idempotency.Fingerprint{}, err
	}
	return body, digest.Fingerprint(), nil
}

// answered gives the answer of a request that was not run, or that lost its key
// while it ran.
func (c *call) answered(v escapement.Verdict) {
	switch v.Outcome {
	case escapement.Limited:
		c.refuse(problemLimited(v.Decision))
	case escapement.Replayed:
		ours(c.w.Header(), c.echo, c.levels)
		c.m.replay(c.w, c.r, v.Record)
	case escapement.InProgress:
		c.refuse(problemInProgress(v.Ran))
	case escapement.Mismatched:
		c.refuse(problemKeyReused())
	case escapement.Archived:
		c.refuse(problemKeyExpired())
	default:
		c.refuse(problemOutcomeUnknown())
	}
}

// ran gives the answer of a request that was run: its own if that is the
// record's, else the record's, else the truth about it. If some of its own
// went out that must not be finished, the connection is cut.
func (c *call) ran(x *exchange, v escapement.Verdict) {
	var over, sent bool
	if v.TimedOut { // perhaps it still runs
		over, sent = x.leave()
	} else {
		over, sent = true, x.sent
	}
	instead := func(answer func()) {
		if sent {
			panic(http.ErrAbortHandler)
		}
		answer()
	}
	unknown := v.Ending.Kind == idempotency.EndedUnknown
	switch {
	case v.Panicked != nil && unknown:
		panic(v.Panicked)
	case v.Fenced:
		instead(func() { c.answered(v) })
	case v.TimedOut && (unknown || !over):
		instead(func() { c.refuse(problemTimeout()) })
	case x.frozen != nil:
		c.committed(x, v)
	case !v.Recorded && v.Ending.Kind == idempotency.EndedDone:
		instead(func() { c.refuse(problemNotRecorded()) })
	default:
		x.deliver(&x.answer)
	}
}

// committed gives the answer of a request that was recorded inside a
// transaction: what EndIn recorded if it committed, what the handler has said
// since if it did not.
func (c *call) committed(x *exchange, v escapement.Verdict) {
	switch {
	case v.Ending.Kind == idempotency.EndedDone && v.Recorded:
		x.deliver(x.frozen)
	case v.Ending.Kind == idempotency.EndedNotRun && x.answer.status != 0:
		x.deliver(&x.answer)
	case v.Ending.Kind == idempotency.EndedNotRun:
		p := problemInternal()
		p.Title = "The operation was rolled back"
		c.refuse(p)
	default:
		p := problemNotRecorded()
		p.Title = "Whether the operation was executed is not known yet"
		p.Detail = "The operation's transaction is over, and its record cannot be read at the moment: send the request again later, with the same key, for the answer."
		c.refuse(p)
	}
}

// withBody returns r with the spooled body. A body with trailers keeps an
// unknown length, since only then they are sent on.
func withBody(r *http.Request, body *spool) *http.Request {
	out := *r
	out.Body, out.GetBody = body.body(), nil
	if len(r.Trailer) == 0 {
		out.ContentLength, out.TransferEncoding = body.size, nil
	}
	// An upgrade would take the connection, and with it the answer.
	if r.Header["Upgrade"] != nil || r.Header["Expect"] != nil {
		out.Header = r.Header.Clone()
		delete(out.Header, "Upgrade")
		delete(out.Header, "Expect")
	}
	u := new(url.URL)
	*u = *r.URL
	out.URL = u
	return &out
}

// traceID returns the trace id of the field traceparent (W3C Trace Context),
// or "".
func traceID(r *http.Request) string {
	v := r.Header.Get("Traceparent")
	if len(v) < 55 || v[2] != '-' || v[35] != '-' {
		return ""
	}
	id := v[3:35]
	if strings.Trim(id, "0123456789abcdef") != "" || strings.Trim(id, "0") == "" {
		return ""
	}
	return id
}

// requestID returns the field X-Request-Id if it is fit for a log line.
func requestID(r *http.Request) string {
	v := r.Header.Get("X-Request-Id")
	if len(v) > 128 {
		return ""
	}
	for i := range len(v) {
		if v[i] < 0x21 || v[i] > 0x7e {
			return ""
		}
	}
	return v
}
