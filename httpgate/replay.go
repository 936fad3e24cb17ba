package httpgate

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// ReplayedField and ExpiresField mark a replay: "true", and the HTTP date at
// which its record expires.
const (
	ReplayedField = "Idempotent-Replayed"
	ExpiresField  = "Idempotency-Expires"
)

// dropped are the fields that are never replayed: hop-by-hop ones (RFC 9110,
// 7.6.1), those that belong to one moment or one connection, and our own.
// Content-Length is computed anew.
var dropped = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true,
	"Transfer-Encoding": true, "Upgrade": true, "Content-Length": true,
	"Set-Cookie": true, "Set-Cookie2": true, "Date": true, "Age": true,
	"Www-Authenticate": true, "Proxy-Authenticate": true, "Proxy-Authentication-Info": true,
	"Server-Timing": true, "Traceparent": true, "Tracestate": true, "Traceresponse": true,
	"B3": true, "X-Request-Id": true, "X-Correlation-Id": true, "X-Amzn-Trace-Id": true, "X-Cloud-Trace-Context": true,
	"Uber-Trace-Id": true, KeyField: true, ReplayedField: true, ExpiresField: true,
}

// droppedPrefixes likewise: RateLimit*, X-RateLimit-*, and trace fields.
var droppedPrefixes = []string{"Ratelimit", "X-Ratelimit-", "X-B3-", "X-Datadog-"}

// neverReplayed reports whether the field, in canonical form, is not replayed.
func (m *Middleware) neverReplayed(name string) bool {
	if dropped[name] || m.drop[name] {
		return true
	}
	for _, p := range droppedPrefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// replay answers with the result of rec, or says why it cannot. The fields of
// ours are in w's header already.
func (m *Middleware) replay(w http.ResponseWriter, r *http.Request, rec idempotency.Record) {
	res := rec.Result
	if res.By == idempotency.FromPolicy && len(res.Payload) == 0 {
		m.Refuse(w, r, problemFailedByPolicy())
		return
	}
	if res.NotKept {
		m.Refuse(w, r, problemNotKept(res.Status))
		return
	}
	a, err := DecodeAnswer(res.Payload)
	if err == nil && (res.Status < 200 || res.Status > 999) {
		err = errPayload
	}
	if err != nil {
		m.log.ErrorContext(r.Context(), "a recorded answer cannot be read", "key", rec.Key.ID, "err", err)
		m.Refuse(w, r, problemNotKept(res.Status))
		return
	}
	h := w.Header()
	sameOrigin := a.Origin == fieldValue(r.Header, "Origin")
	for name, lines := range a.Header {
		if m.neverReplayed(name) || name == "Retry-After" {
			continue
		}
		if strings.HasPrefix(name, "Access-Control-") && !sameOrigin {
			continue
		}
		h[name] = lines
	}
	if v, ok := retryAfter(a.Header, rec); ok {
		h["Retry-After"] = []string{v}
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // net/http must not guess one that the first answer did not have
	}
	h[ReplayedField] = []string{"true"}
	h[ExpiresField] = []string{rec.Expires.UTC().Format(http.TimeFormat)}
	body := hasBody(res.Status)
	if body && len(a.Trailer) == 0 {
		h["Content-Length"] = []string{strconv.Itoa(len(a.Body))}
	}
	w.WriteHeader(res.Status)
	if body && len(a.Body) > 0 {
		w.Write(a.Body)
	}
	setTrailers(h, a.Header, a.Trailer)
}

// retryAfter makes Retry-After afresh: of a temporary failure, the time until
// the operation may run again; else what is left of what the answer said. A
// date stays as it is.
func retryAfter(h http.Header, rec idempotency.Record) (string, bool) {
	if rec.Result.Class == idempotency.FailedRetryable {
		return strconv.FormatInt(max(seconds(rec.WindowEnd.Sub(rec.AsOf)), 1), 10), true
	}
	v := textproto.TrimString(h.Get("Retry-After"))
	if v == "" {
		return "", false
	}
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil {
		return v, true
	}
	left := time.Duration(n)*time.Second - rec.AsOf.Sub(rec.Updated)
	return strconv.FormatInt(seconds(left), 10), true
}
