package storetest

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/escapement-dev/escapement/idempotency"
)

// historyCases record what concurrent callers saw, and look for an order of
// their calls in which the rule would have said the same (linearizability, by
// Wing and Gong's search). Calls about different keys are judged apart.
var historyCases = []Case{
	{Name: "HistoryHasAnOrder", Run: func(t testing.TB, h Harness) {
		t.Helper()
		for range h.times(25) {
			recordHistory(t, h, h.seed())
		}
	}},
}

// callInput is one call of a history; the token in its reservation is the
// store's.
type callInput struct {
	kind   string
	key    idempotency.Key
	claim  idempotency.Claim
	res    idempotency.Reservation
	ending idempotency.Ending
	step   idempotency.Step
	now    time.Time
}

type callOutput struct {
	answer idempotency.Answer
	record idempotency.Record
	end    time.Time
	err    error
}

// judge says whether the store may give the output for the input where the
// key's record is rec, and what the record is then.
func (in callInput) judge(rec idempotency.Record, out callOutput) (bool, idempotency.Record) {
	before, _ := idempotency.View(rec, in.now)
	var next idempotency.Record
	var want error
	switch in.kind {
	case "reserve":
		var a idempotency.Answer
		next, a = idempotency.Decide(rec, in.claim, in.now)
		if out.err != nil || out.answer.Outcome != a.Outcome || out.answer.NotComparable != a.NotComparable {
			return false, rec
		}
		token := out.answer.Record.Token
		if a.Outcome == idempotency.Started {
			token = out.answer.Reservation.Token
			r := out.answer.Reservation
			if r.Takeover != a.Reservation.Takeover || r.Repeated != a.Reservation.Repeated || !r.LeaseEnd.Equal(a.Reservation.LeaseEnd) {
				return false, rec
			}
		}
		if a.Outcome != idempotency.Refused {
			if next.Token == before.Token && token != before.Token || next.Token > before.Token && token <= before.Token {
				return false, rec
			}
			next.Token, a.Record.Token = token, token
			if a.Outcome != idempotency.Mismatched && diff(out.answer.Record, a.Record) != "" {
				return false, rec
			}
		}
	case "lookup":
		next = rec
		view, visible := idempotency.View(rec, in.now)
		if !visible {
			want = idempotency.ErrNotFound
		} else if out.err == nil && diff(out.record, view) != "" {
			return false, rec
		}
	case "extend":
		next, want = idempotency.Renew(rec, in.res, time.Minute, in.now)
		if want == nil && !next.LeaseEnd.Equal(out.end) {
			return false, rec
		}
	case "end":
		next, want = idempotency.Finish(rec, in.res, in.ending, in.now)
	case "void":
		next = idempotency.Withdraw(rec, in.key, in.claim.Owner, in.now)
	case "step":
		next, want = idempotency.PutStep(rec, in.res, in.step, in.now)
	}
	if want == nil && out.err != nil || want != nil && !isAny(out.err, want) {
		return false, rec
	}
	next.Revision = 0 // no call here looks at it
	return true, next
}

var recordModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[idempotency.ID][]porcupine.Operation{}
		for _, op := range history {
			id := op.Input.(callInput).key.ID
			byKey[id] = append(byKey[id], op)
		}
		var parts [][]porcupine.Operation
		for _, p := range byKey {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return idempotency.Record{} },
	Step: func(state, input, output any) (bool, any) {
		fits, next := input.(callInput).judge(state.(idempotency.Record), output.(callOutput))
		return fits, next
	},
	Equal: func(a, b any) bool { return reflect.DeepEqual(a, b) },
}

// recordHistory lets some callers do as they like on a few keys.
func recordHistory(t testing.TB, h Harness, seed uint64) {
	t.Helper()
	run := &scopedTB{TB: t}
	defer run.close()
	e := newEnv(run, h)
	const callers, calls, keys = 5, 12, 3
	var order atomic.Int64
	var mu sync.Mutex
	var history []porcupine.Operation
	given := map[idempotency.ID][]idempotency.Reservation{}
	claims := map[idempotency.ID][]idempotency.Claim{}
	ctx := e.ctx()
	now := e.clock.Now() // stands still: the order of the calls is all that matters
	kinds := []string{"reserve", "reserve", "reserve", "end", "end", "end", "extend", "void", "lookup"}
	if h.Caps.Steps {
		kinds = append(kinds, "step")
	}
	together(callers, func(caller int) error {
		rnd := rand.New(rand.NewPCG(seed, uint64(caller)))
		for range calls {
			k := testKey(rnd.IntN(keys))
			in := callInput{kind: kinds[rnd.IntN(len(kinds))], key: k, now: now}
			mu.Lock()
			if list := given[k.ID]; len(list) > 0 {
				in.res = list[max(0, len(list)-1-rnd.IntN(2))]
			} else {
				in.res = idempotency.Reservation{Key: k, Owner: idempotency.Owner{1}, Token: 1}
			}
			if list := claims[k.ID]; len(list) > 0 && rnd.IntN(3) == 0 {
				in.claim = list[rnd.IntN(len(list))]
			} else {
				in.claim = claim(k, idempotency.OnUnknown(rnd.IntN(4)))
				in.claim.Terms.Quiet = 0
				if rnd.IntN(8) == 0 {
					in.claim.Prints = []idempotency.Fingerprint{printOf("v1", "another request")}
				}
				claims[k.ID] = append(claims[k.ID], in.claim)
			}
			mu.Unlock()
			in.ending = []idempotency.Ending{
				idempotency.UnknownEnding(), idempotency.UnknownEnding(), idempotency.NotRun(), idempotency.NotRun(),
				idempotency.Done(later("busy", 0)), idempotency.Done(later("busy", 0)), idempotency.Done(ok(fmt.Sprint(caller))),
			}[rnd.IntN(7)]
			in.step = idempotency.Step{Name: []string{"a", "b"}[rnd.IntN(2)], Done: rnd.IntN(2) == 0}
			var out callOutput
			called := order.Add(1)
			switch in.kind {
			case "reserve":
				out.answer, out.err = e.s.Reserve(ctx, in.claim)
			case "lookup":
				out.record, out.err = e.s.Lookup(ctx, k)
			case "extend":
				out.end, out.err = e.s.Extend(ctx, in.res, time.Minute)
			case "end":
				out.err = e.s.End(ctx, in.res, in.ending)
			case "void":
				out.err = e.s.Void(ctx, k, in.claim.Owner)
			case "step":
				out.err = e.steps().SaveStep(ctx, in.res, in.step)
			}
			returned := order.Add(1)
			mu.Lock()
			history = append(history, porcupine.Operation{ClientId: caller, Input: in, Call: called, Output: out, Return: returned})
			if out.answer.Outcome == idempotency.Started {
				given[k.ID] = append(given[k.ID], out.answer.Reservation)
			}
			mu.Unlock()
		}
		return nil
	})
	judgeHistory(t, recordModel, history, seed, func(op porcupine.Operation) string {
		in, out := op.Input.(callInput), op.Output.(callOutput)
		said := fmt.Sprint(out.err)
		switch {
		case out.err != nil:
		case in.kind == "reserve":
			said = fmt.Sprintf("%v, token %d, repeated %v", out.answer.Outcome, out.answer.Record.Token, out.answer.Reservation.Repeated)
		case in.kind == "lookup":
			said = show(out.record)
		}
		return fmt.Sprintf("%s of %x… by %v, reservation of %v with token %d, ending %v: %s",
			in.kind, in.key.ID[:3], in.claim.Owner, in.res.Owner, in.res.Token, in.ending.Kind, said)
	})
}

// judgeHistory fails the test if no order of the history fits the model.
func judgeHistory(t testing.TB, m porcupine.Model, history []porcupine.Operation, seed uint64, describe func(porcupine.Operation) string) {
	t.Helper()
	verdict := porcupine.CheckOperationsTimeout(m, history, patience)
	if verdict == porcupine.Ok {
		return
	}
	var b strings.Builder
	for _, op := range history {
		fmt.Fprintf(&b, "%4d to %4d, caller %d: %s\n", op.Call, op.Return, op.ClientId, describe(op))
	}
	t.Fatalf("no order of these calls is one that the rule allows (seed %d, verdict %s):\n%s", seed, verdict, b.String())
}
