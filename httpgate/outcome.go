package httpgate

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// Finding is what a handler knows of its operation beside the status.
type Finding uint8

const (
	// ByStatus: the answer's status says it; see [Report]. It is the zero
	// value.
	ByStatus Finding = iota
	// NotExecuted: nothing had an effect; the key is as it was found.
	NotExecuted
	// Unknown: nobody knows whether there was an effect.
	Unknown
	// Retryable: a temporary failure without effect, which answers repeats for
	// KeyPolicy.RetryableWindow.
	Retryable
	// Final: the answer is the operation's last word.
	Final
)

// String returns the finding in lower case.
func (f Finding) String() string {
	names := [...]string{"by_status", "not_executed", "unknown", "retryable", "final"}
	if int(f) < len(names) {
		return names[f]
	}
	return "invalid"
}

type exchangeKey struct{}

func exchangeFrom(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// Report says how the operation that ctx belongs to came out; the last call
// before the handler returns counts. It reports whether ctx belongs to one: a
// request without a key has no record.
//
// Without a report the status decides: 2xx and 3xx succeeded; 401 and 403 are
// not recorded, and 425 and 429 not executed, so that the key is as it was
// found; 408, and 503 with Retry-After, are retryable; other 4xx and 5xx are
// final, but for 502, 504 and other 503, which are unknown. A handler that
// panics, is out of time, or writes less than its Content-Length, is unknown
// whatever it reports.
func Report(ctx context.Context, f Finding) bool {
	x := exchangeFrom(ctx)
	if x == nil {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.finding = f
	return true
}

// classify says what an answer means.
func classify(status int, header http.Header, f Finding) Finding {
	if f != ByStatus {
		return f
	}
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooEarly, http.StatusTooManyRequests:
		return NotExecuted
	case http.StatusRequestTimeout:
		return Retryable
	case http.StatusServiceUnavailable:
		if header.Get("Retry-After") != "" {
			return Retryable
		}
		return Unknown
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return Unknown
	}
	return Final
}

// ending says how the handler ended that gave the answer a.
func (x *exchange) ending(a *answer) idempotency.Ending {
	if a.broken || a.declared >= 0 && a.written < a.declared {
		a.broken = true
		return idempotency.UnknownEnding()
	}
	switch classify(a.status, a.snapshot, x.finding) {
	case NotExecuted:
		return idempotency.NotRun()
	case Unknown:
		return idempotency.UnknownEnding()
	}
	return idempotency.Done(x.result(a))
}

// result is what is recorded of an answer that is the operation's.
func (x *exchange) result(a *answer) idempotency.Result {
	res := idempotency.Result{Status: a.status, NotKept: a.notKept}
	switch {
	case classify(a.status, a.snapshot, x.finding) == Retryable:
		res.Class, res.Window = idempotency.FailedRetryable, x.policy.window
	case a.status < 400:
		res.Class = idempotency.Succeeded
	default:
		res.Class = idempotency.FailedFinal
	}
	if a.notKept {
		return res
	}
	trailers := a.trailers()
	maps.DeleteFunc(trailers, func(name string, _ []string) bool { return x.m.neverReplayed(name) })
	payload, err := Answer{Header: x.kept(a.snapshot), Trailer: trailers, Body: a.kept, Origin: x.origin}.Encode()
	if err != nil { // fields without bound
		res.NotKept = true
		return res
	}
	res.Payload = payload
	return res
}

// kept returns the fields of an answer that a replay may give: not those that
// somebody in front of us had set, which sets them on each answer, and not
// those that are never replayed.
func (x *exchange) kept(h http.Header) http.Header {
	out := make(http.Header, len(h))
	for name, lines := range h {
		if base, ok := x.base[name]; ok && slices.Equal(base, lines) {
			continue
		}
		if strings.HasPrefix(name, http.TrailerPrefix) || x.m.neverReplayed(name) {
			continue
		}
		out[name] = lines
	}
	for name := range fieldNames(h["Connection"]) { // hop-by-hop too (RFC 9110, 7.6.1)
		delete(out, name)
	}
	return out
}

// FenceIn begins same-transaction mode: the first statement of the handler's
// transaction, of which tx is the store, makes sure that no other attempt can
// take the key over before the transaction is over. From here on all of the
// answer is held back; it must not be larger than KeyPolicy.MaxAnswer.
//
// The error wraps idempotency.ErrFenced if the attempt owns its key no longer:
// roll back. It is an error if a part of the answer has gone out already. For
// a request without a key FenceIn does nothing and returns nil.
func FenceIn(ctx context.Context, tx idempotency.Store) error {
	x, run := exchangeFrom(ctx), escapement.RunFrom(ctx)
	if x == nil || run == nil {
		return nil
	}
	x.mu.Lock()
	late := x.sent
	x.whole = !late
	x.mu.Unlock()
	if late {
		return errors.New("httpgate: a part of the answer has gone out already: call FenceIn before the handler writes or flushes it")
	}
	return run.FenceIn(ctx, tx)
}

// EndIn records the answer that the handler has written so far, inside the
// handler's transaction, of which tx is the store. Commit next: the client then
// gets this answer.
//
// What the handler writes after EndIn is another answer, given only if the
// transaction did not commit: an error, most likely. Without one the client
// gets a 500 that says that nothing was executed. Header and status start anew
// for it.
//
// It is an error, and nothing changed, if FenceIn was not called, if the
// handler has written no answer, or one that has no result (see [Report]): roll
// back then. The error wraps idempotency.ErrFenced if the attempt owns its key
// no longer: roll back. For a request without a key EndIn does nothing and
// returns nil.
func EndIn(ctx context.Context, tx idempotency.Store) error {
	x, run := exchangeFrom(ctx), escapement.RunFrom(ctx)
	if x == nil || run == nil {
		return nil
	}
	x.mu.Lock()
	if !x.whole {
		x.mu.Unlock()
		return errors.New("httpgate: EndIn without FenceIn, which must come first in the transaction")
	}
	if x.answer.status == 0 {
		x.mu.Unlock()
		return errors.New("httpgate: EndIn before the handler has written its answer")
	}
	e := x.ending(&x.answer)
	if e.Kind != idempotency.EndedDone {
		x.mu.Unlock()
		return errors.New("httpgate: EndIn with an answer that says that the operation has no result: roll back instead")
	}
	frozen := x.answer
	frozen.header = maps.Clone(frozen.header) // the handler may still hold the map
	x.frozen = &frozen
	x.reset()
	x.finding = ByStatus
	x.mu.Unlock()
	return run.EndIn(ctx, tx, e.Result)
}
