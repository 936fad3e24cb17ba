package storetest

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/escapement-dev/escapement/ratelimit"
)

// limitHistoryCases record what concurrent callers of one store of limits saw:
// there must be an order in which every Take was all or none, Q1.
var limitHistoryCases = []Case{
	{Name: "HistoryOfTakesHasAnOrder", needs: func(h Harness) bool { return !h.Caps.SplitTake }, Run: func(t testing.TB, h Harness) {
		t.Helper()
		for range h.times(25) {
			recordTakes(t, h, h.seed())
		}
	}},
}

// takeInput is one call: a Take of charges, or a Reset.
type takeInput struct {
	charges []ratelimit.Charge
	reset   bucketName
	now     time.Time
}

type takeOutput struct {
	allowed bool
	levels  []ratelimit.Level
	err     error
}

var takeModel = porcupine.Model{
	Init: func() any { return limitOracle{} },
	Step: func(state, input, output any) (bool, any) {
		in, out := input.(takeInput), output.(takeOutput)
		next := limitOracle{}
		for n, s := range state.(limitOracle) {
			next[n] = s
		}
		if out.err != nil {
			return false, state
		}
		if in.reset != (bucketName{}) {
			delete(next, in.reset)
			return true, next
		}
		allowed, levels, _ := next.take(in.charges, in.now)
		return allowed == out.allowed && reflect.DeepEqual(levels, out.levels), next
	},
	Equal: func(a, b any) bool { return reflect.DeepEqual(a, b) },
}

// recordTakes lets some callers charge a few buckets, on a clock that stands.
func recordTakes(t testing.TB, h Harness, seed uint64) {
	t.Helper()
	run := &scopedTB{TB: t}
	defer run.close()
	e := newLimitEnv(run, h)
	rules := []ratelimit.Rule{bucket("one", 6, time.Minute, 0), bucket("two", 4, time.Minute, 0), h.other("log", 5, time.Minute)}
	const callers, calls = 4, 6
	var order atomic.Int64
	var mu sync.Mutex
	var history []porcupine.Operation
	now := e.clock.Now()
	together(callers, func(caller int) error {
		rnd := rand.New(rand.NewPCG(seed, uint64(caller)))
		for range calls {
			in := takeInput{now: now}
			if rnd.IntN(8) == 0 {
				in.reset = bucketName{rules[rnd.IntN(3)].Name, "s"}
			} else {
				for _, i := range rnd.Perm(3)[:1+rnd.IntN(3)] {
					in.charges = append(in.charges, charge(rules[i], "s", rnd.Int64N(3)))
				}
			}
			var out takeOutput
			called := order.Add(1)
			if in.charges == nil {
				out.err = e.s.Reset(e.ctx, in.reset.rule, in.reset.subject)
			} else {
				var d ratelimit.Decision
				d, out.err = e.s.Take(e.ctx, in.charges)
				out.allowed, out.levels = d.Allowed, d.Levels
			}
			returned := order.Add(1)
			mu.Lock()
			history = append(history, porcupine.Operation{ClientId: caller, Input: in, Call: called, Output: out, Return: returned})
			mu.Unlock()
		}
		return nil
	})
	judgeHistory(t, takeModel, history, seed, func(op porcupine.Operation) string {
		in, out := op.Input.(takeInput), op.Output.(takeOutput)
		if in.charges == nil {
			return fmt.Sprintf("reset of %v: %v", in.reset, out.err)
		}
		return fmt.Sprintf("take of %s: allowed %v, %s, %v", showCharges(in.charges), out.allowed, showLevels(out.levels), out.err)
	})
}
