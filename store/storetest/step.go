package storetest

import (
	"bytes"
	"fmt"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// stepCases test SaveStep.
var stepCases = []Case{
	recordCase("StepsAreKeptInOrder", needsSteps, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		t0 := e.clock.Now()
		e.saveStep(r, idempotency.Step{Name: "pay", ProviderKey: "pk"})
		e.clock.Advance(time.Second)
		e.saveStep(r, idempotency.Step{Name: "mail", ProviderKey: "mk"})
		e.clock.Advance(time.Second)
		answer := []byte("paid \x00\xff")
		e.saveStep(r, idempotency.Step{Name: "pay", Done: true, ProviderID: "ch_1", Answer: answer})
		clear(answer) // the store has its own copy
		t2 := e.clock.Now()
		e.done(r, ok("all"))
		a := e.reserve(again(c), idempotency.Replayed)
		want := e.lookup(c.Key)
		want.Steps = []idempotency.Step{
			{Name: "pay", Done: true, ProviderKey: "pk", ProviderID: "ch_1", Answer: []byte("paid \x00\xff"), Started: t0, Ended: t2},
			{Name: "mail", ProviderKey: "mk", Started: t0.Add(time.Second)},
		}
		e.same("with steps", a.Record, want)
		e.same("looked up with steps", e.lookup(c.Key), want)
	}),
	recordCase("StepsRepeatedSaveIsFine", needsSteps, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		started := idempotency.Step{Name: "pay", ProviderKey: "pk"}
		done := idempotency.Step{Name: "pay", ProviderKey: "pk", Done: true, ProviderID: "ch_1", Answer: []byte("paid")}
		for _, s := range []idempotency.Step{started, started, done, done} {
			e.saveStep(r, s)
			e.clock.Advance(time.Millisecond)
		}
		short := done
		short.ProviderKey = "" // means the one that is known
		e.saveStep(r, short)
		if rec := e.lookup(c.Key); len(rec.Steps) != 1 || rec.Steps[0].ProviderKey != "pk" {
			e.Fatalf("the steps are %+v, want one", rec.Steps)
		}
	}),
	recordCase("StepsMayBeDoneAtOnce", needsSteps, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.saveStep(r, idempotency.Step{Name: "pay", Done: true, ProviderID: "ch_1"})
		s := e.lookup(c.Key).Steps[0]
		e.at("Started", s.Started, e.clock.Now())
		e.at("Ended", s.Ended, e.clock.Now())
	}),
	recordCase("StepsThatContradictAreRefused", needsSteps, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.saveStep(r, idempotency.Step{Name: "pay", ProviderKey: "pk", Done: true, ProviderID: "ch_1", Answer: []byte("paid")})
		e.saveStep(r, idempotency.Step{Name: "mail", ProviderKey: "mk"})
		before := e.lookup(c.Key)
		for name, s := range map[string]idempotency.Step{
			"a done step, started":              {Name: "pay", ProviderKey: "pk"},
			"a done step with another answer":   {Name: "pay", ProviderKey: "pk", Done: true, ProviderID: "ch_1", Answer: []byte("no")},
			"a done step with another id":       {Name: "pay", ProviderKey: "pk", Done: true, ProviderID: "ch_2", Answer: []byte("paid")},
			"a started step with another key":   {Name: "mail", ProviderKey: "other"},
			"a started step, done by other key": {Name: "mail", ProviderKey: "other", Done: true},
		} {
			e.isErr("SaveStep of "+name, e.steps().SaveStep(e.ctx(), r, s), idempotency.ErrStep)
		}
		e.same("after refused steps", e.lookup(c.Key), before)
	}),
	recordCase("StepsHaveBounds", needsSteps, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		big := bytes.Repeat([]byte{0, 255, 10}, idempotency.MaxStepAnswer/3+1)[:idempotency.MaxStepAnswer]
		for i := range idempotency.MaxSteps {
			e.saveStep(r, idempotency.Step{Name: fmt.Sprint("step ", i)})
		}
		e.isErr("SaveStep of one too many", e.steps().SaveStep(e.ctx(), r, idempotency.Step{Name: "one more"}), idempotency.ErrStep)
		e.saveStep(r, idempotency.Step{Name: "step 5", Done: true, Answer: big})
		for name, s := range map[string]idempotency.Step{
			"no name":           {},
			"a name too long":   {Name: string(bytes.Repeat([]byte("n"), idempotency.MaxStepName+1))},
			"an answer, undone": {Name: "step 6", Answer: []byte("x")},
			"an answer too big": {Name: "step 6", Done: true, Answer: append(bytes.Clone(big), 0)},
		} {
			if err := e.steps().SaveStep(e.ctx(), r, s); err == nil {
				e.Fatalf("SaveStep with %s returns nil, want an error", name)
			}
		}
		rec := e.lookup(c.Key)
		if len(rec.Steps) != idempotency.MaxSteps || !bytes.Equal(rec.Steps[5].Answer, big) || rec.Steps[6].Done {
			e.Fatalf("the record has %d steps, and the answer of step 5 has %d bytes", len(rec.Steps), len(rec.Steps[5].Answer))
		}
	}),
	recordCase("StepsDoNotOutliveTheRetention", needsSteps, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		c.Terms.Remember = time.Hour
		r := e.start(c)
		e.saveStep(r, idempotency.Step{Name: "pay", Done: true, Answer: []byte("private")})
		e.done(r, ok("x"))
		e.clock.Advance(retention)
		if a := e.reserve(again(c), idempotency.Archived); len(a.Record.Steps) != 0 {
			e.Fatalf("the archived record has the steps %+v", a.Record.Steps)
		}
	}),
	recordCase("StepsStayAcrossARetryableResult", needsSteps, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		e.saveStep(r, idempotency.Step{Name: "pay", Done: true, ProviderID: "ch_1"})
		e.done(r, later("busy", 0))
		if a := e.reserve(again(c), idempotency.Started); len(a.Record.Steps) != 1 || a.Record.Steps[0].ProviderID != "ch_1" {
			e.Fatalf("the next attempt sees the steps %+v, want the one that is done", a.Record.Steps)
		}
	}),
}
