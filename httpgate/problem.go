package httpgate

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/escapement-dev/escapement/ratelimit"
)

// Problem is a refusal (RFC 9457). It is sent as application/problem+json with
// the members type, title, status, detail, code and retryable, and those of
// More.
type Problem struct {
	// Code is the slug, such as "store-unavailable". It makes the type.
	Code string
	// Status is the status code of the answer.
	Status int
	// Title and Detail are for people. They never repeat what a caller sent.
	Title, Detail string
	// Retryable says whether the same request may succeed later.
	Retryable bool
	// RetryAfter, where positive, is sent in whole seconds, rounded up.
	RetryAfter time.Duration
	// More holds further members, which must not have the names of the above.
	More map[string]any
}

// The two types that draft-ietf-httpapi-ratelimit-headers registers (section
// "Problem Types").
const ianaProblem = "https://iana.org/assignments/http-problem-types#"

func (m *Middleware) problemType(code string) string {
	switch code {
	case "quota-exceeded", "temporary-reduced-capacity":
		return ianaProblem + code
	}
	if m.c.ProblemBase != "" {
		return m.c.ProblemBase + "/" + code
	}
	return "urn:problem-type:escapement:" + code
}

// body returns p as JSON.
func (m *Middleware) body(p Problem) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.Encode(struct {
		Type      string `json:"type"`
		Title     string `json:"title"`
		Status    int    `json:"status"`
		Detail    string `json:"detail"`
		Code      string `json:"code"`
		Retryable bool   `json:"retryable"`
	}{m.problemType(p.Code), p.Title, p.Status, p.Detail, p.Code, p.Retryable})
	for _, name := range slices.Sorted(maps.Keys(p.More)) {
		v, err := json.Marshal(p.More[name])
		if err != nil {
			continue // the caller's value has no JSON form: the rest still says enough
		}
		n, _ := json.Marshal(name)
		b.Truncate(b.Len() - 2) // the brace and the newline
		b.WriteByte(',')
		b.Write(n)
		b.WriteByte(':')
		b.Write(v)
		b.WriteString("}\n")
	}
	return b.Bytes()
}

// Refuse answers a request with p, in the form of the Middleware's own
// refusals. A field that was set before stays, but for the content's.
func (m *Middleware) Refuse(w http.ResponseWriter, r *http.Request, p Problem) {
	body := m.body(p)
	h := w.Header()
	for name := range h {
		if strings.HasPrefix(name, "Content-") {
			h.Del(name)
		}
	}
	h.Del("Etag")
	h.Del("Last-Modified")
	h.Del("Trailer")
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(seconds(p.RetryAfter), 10))
	}
	w.WriteHeader(p.Status)
	w.Write(body)
}

func problemKeyMissing() Problem {
	return Problem{
		Code: "idempotency-key-missing", Status: http.StatusBadRequest,
		Title:  "This request needs an idempotency key",
		Detail: "Send the field Idempotency-Key with a fresh value for each operation, and the same value with each repeat of it.",
	}
}

func problemKeyMalformed(err error) Problem {
	return Problem{
		Code: "idempotency-key-malformed", Status: http.StatusBadRequest,
		Title:  "The idempotency key is malformed",
		Detail: "In Idempotency-Key, " + err.Error() + ".",
	}
}

func problemCallerUnknown(what string) Problem {
	return Problem{
		Code: "caller-unknown", Status: http.StatusBadRequest,
		Title:  "The request does not say who is calling",
		Detail: what,
	}
}

// problemInProgress is for a repeat, or for a request that was run and lost its
// key meanwhile.
func problemInProgress(ran bool) Problem {
	p := Problem{
		Code: "idempotency-request-in-progress", Status: http.StatusConflict, Retryable: true, RetryAfter: time.Second,
		Title:  "A request with this idempotency key is under way",
		Detail: "Nothing was executed by this repeat. Send it again later, with the same key, for the answer.",
	}
	if ran {
		p.Detail = "This request took longer than its hold on the key, and another one has the key now. Send it again later, with the same key, for the answer."
	}
	return p
}

func problemKeyReused() Problem {
	return Problem{
		Code: "idempotency-key-reused", Status: http.StatusUnprocessableEntity,
		Title:  "This idempotency key was used for another request",
		Detail: "Nothing was executed. Method, path, query, content type and body of a repeat must mean the same as those of the first request; a new operation needs a new key.",
	}
}

func problemOutcomeUnknown() Problem {
	return Problem{
		Code: "idempotency-outcome-unknown", Status: http.StatusConflict,
		Title:  "Nobody knows how the operation with this idempotency key ended",
		Detail: "An earlier request with this key ended without an answer, and may or may not have had its effect. It is not executed again until that is settled.",
	}
}

func problemFailedByPolicy() Problem {
	p := problemOutcomeUnknown()
	p.Status = http.StatusInternalServerError
	p.Detail = "An earlier request with this key ended without an answer, and may or may not have had its effect. It counts as failed and is not executed again."
	return p
}

func problemNotKept(status int) Problem {
	return Problem{
		Code: "idempotency-response-not-kept", Status: http.StatusConflict,
		Title:  "The operation was executed, and its answer was not kept",
		Detail: "The answer was too large to be kept, or cannot be read any more. The operation is not executed again; original_status is the status that it was answered with.",
		More:   map[string]any{"original_status": status},
	}
}

func problemKeyExpired() Problem {
	return Problem{
		Code: "idempotency-key-expired", Status: http.StatusConflict,
		Title:  "The operation with this idempotency key was executed long ago",
		Detail: "Its answer is not kept any more, and it is not executed again. A new operation needs a new key.",
	}
}

func problemLimited(d ratelimit.Decision) Problem {
	wait, possible := d.RetryAfter()
	var violated []string
	for _, l := range d.Levels {
		if !l.Allowed && !slices.Contains(violated, l.Rule.Name) {
			violated = append(violated, l.Rule.Name)
		}
	}
	p := Problem{
		Code: "quota-exceeded", Status: http.StatusTooManyRequests, Retryable: possible,
		Title:  "The request exceeds a quota",
		Detail: "Nothing was executed. Send the request again after Retry-After.",
		More:   map[string]any{"violated-policies": violated},
	}
	if possible {
		p.RetryAfter = max(wait, 1)
	} else {
		p.Detail = "Nothing was executed. The request costs more than the quota ever has: sending it again does not help."
	}
	return p
}

func problemTooLarge(limit int64) Problem {
	return Problem{
		Code: "request-too-large", Status: http.StatusRequestEntityTooLarge,
		Title:  "The request's body is too large",
		Detail: "Nothing was executed. A body may have at most " + strconv.FormatInt(limit, 10) + " bytes.",
	}
}

func problemIncomplete(status int) Problem {
	return Problem{
		Code: "request-incomplete", Status: status,
		Title:  "The request's body ended too early",
		Detail: "The body was not received as a whole. Nothing was executed.",
	}
}

// problemLater is a 503 that may have passed in a second.
func problemLater(code, title, detail string) Problem {
	return Problem{
		Code: code, Status: http.StatusServiceUnavailable, Retryable: true, RetryAfter: time.Second,
		Title: title, Detail: detail,
	}
}

func problemReducedCapacity(detail string) Problem {
	return problemLater("temporary-reduced-capacity",
		"The service cannot take this request now",
		detail)
}

func problemStoreUnavailable() Problem {
	return problemLater("store-unavailable",
		"The store of idempotency keys cannot be reached",
		"Nothing was executed. Send the request again later, with the same key.")
}

func problemLimiterUnavailable() Problem {
	return problemLater("limiter-unavailable",
		"The limiter cannot be reached",
		"Nothing was executed. Send the request again later.")
}

func problemNotRecorded() Problem {
	return problemLater("idempotency-result-not-recorded",
		"The operation was executed, and its answer is not recorded yet",
		"The operation was executed. Recording its answer is being retried: send the request again later, with the same key, for the answer.")
}

func problemUnreachable(executed string) Problem {
	p := Problem{
		Code: "upstream-unreachable", Status: http.StatusBadGateway,
		Title: "The service behind this address gave no answer",
		More:  map[string]any{"executed": executed},
	}
	if executed == "no" {
		p.Detail = "It could not be reached. Nothing was executed."
	} else {
		p.Detail = "The connection broke after the request was sent. Nobody knows whether it was executed."
	}
	return p
}

func problemTimeout() Problem {
	return Problem{
		Code: "upstream-timeout", Status: http.StatusGatewayTimeout,
		Title:  "The service behind this address did not answer in time",
		Detail: "Nobody knows whether the request was executed.",
		More:   map[string]any{"executed": "unknown"},
	}
}

func problemInternal() Problem {
	return Problem{
		Code: "internal-error", Status: http.StatusInternalServerError,
		Title:  "The request could not be judged",
		Detail: "Nothing was executed.",
	}
}
