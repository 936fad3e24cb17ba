package idempotency

import (
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"
)

func TestPutStep(t *testing.T) {
	started := Step{Name: "charge", ProviderKey: "pk"}
	done := Step{Name: "charge", Done: true, ProviderKey: "pk", ProviderID: "ch_1", Answer: []byte("ok")}
	later := noon.Add(time.Second)
	for _, c := range []struct {
		name string
		old  []Step // saved at noon
		s    Step   // saved later
		err  error
		want Step // the last step after it; unset: the record does not change
	}{
		{"a new one starts", nil, started, nil, Step{Name: "charge", ProviderKey: "pk", Started: later}},
		{"done at once", nil, done, nil, Step{Name: "charge", Done: true, ProviderKey: "pk", ProviderID: "ch_1", Answer: []byte("ok"), Started: later, Ended: later}},
		{"started, then done", []Step{started}, done, nil, Step{Name: "charge", Done: true, ProviderKey: "pk", ProviderID: "ch_1", Answer: []byte("ok"), Started: noon, Ended: later}},
		{"done keeps the provider key", []Step{started}, Step{Name: "charge", Done: true}, nil, Step{Name: "charge", Done: true, ProviderKey: "pk", Started: noon, Ended: later}},
		{"another name", []Step{done}, Step{Name: "mail"}, nil, Step{Name: "mail", Started: later}},
		{"started twice", []Step{started}, started, nil, Step{}},
		{"done twice", []Step{started, done}, done, nil, Step{}},
		{"done twice, without the provider key", []Step{done}, Step{Name: "charge", Done: true, ProviderID: "ch_1", Answer: []byte("ok")}, nil, Step{}},
		{"another provider key", []Step{started}, Step{Name: "charge", ProviderKey: "pk2"}, ErrStep, Step{}},
		{"done with another provider key", []Step{started}, Step{Name: "charge", Done: true, ProviderKey: "pk2"}, ErrStep, Step{}},
		{"no provider key any more", []Step{started}, Step{Name: "charge"}, ErrStep, Step{}},
		{"started after done", []Step{done}, started, ErrStep, Step{}},
		{"done with another answer", []Step{done}, Step{Name: "charge", Done: true, ProviderKey: "pk", ProviderID: "ch_1", Answer: []byte("no")}, ErrStep, Step{}},
		{"done with another id", []Step{done}, Step{Name: "charge", Done: true, ProviderKey: "pk", ProviderID: "ch_2", Answer: []byte("ok")}, ErrStep, Step{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, v := begun(t, 1, Hold, noon)
			for _, s := range c.old {
				var err error
				if r, err = PutStep(r, v, s, noon); err != nil {
					t.Fatal(err)
				}
			}
			next, err := PutStep(r, v, c.s, later)
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if c.want.Name == "" {
				unchanged(t, r, next)
				return
			}
			got := next.Steps[len(next.Steps)-1]
			if !got.same(c.want) || !got.Started.Equal(c.want.Started) || !got.Ended.Equal(c.want.Ended) || next.Revision <= r.Revision {
				t.Fatalf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func TestPutStepBound(t *testing.T) {
	r, v := begun(t, 1, Hold, noon)
	for i := range MaxSteps {
		var err error
		if r, err = PutStep(r, v, Step{Name: fmt.Sprint(i)}, noon); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	next, err := PutStep(r, v, Step{Name: "one too many"}, noon)
	if !errors.Is(err, ErrStep) {
		t.Fatalf("error %v", err)
	}
	unchanged(t, r, next)
	if _, err := PutStep(r, v, Step{Name: "63", Done: true}, noon); err != nil {
		t.Fatalf("the last one, done: %v", err)
	}
}

// TestStepsGoOn: a takeover and a run after a temporary answer find the steps;
// a new life does not.
func TestStepsGoOn(t *testing.T) {
	r, v := begun(t, 1, Probe, noon)
	r, err := PutStep(r, v, Step{Name: "s", Done: true, ProviderID: "x"}, noon)
	if err != nil {
		t.Fatal(err)
	}
	took, _ := taken(t, r, claimOf(2, Probe), noon.Add(lease+quiet))
	again, _ := taken(t, finishedWith(t, r, v, tryAgain(), noon), claimOf(2, Probe), noon.Add(window))
	fresh, _ := taken(t, finishedWith(t, r, v, success("x"), noon), claimOf(2, Probe), noon.Add(retention))
	for i, r := range []Record{took, again} {
		if len(r.Steps) != 1 || r.Steps[0].ProviderID != "x" || r.FoundSteps != 1 {
			t.Fatalf("%d: %+v", i, r.Steps)
		}
	}
	if fresh.Steps != nil {
		t.Fatalf("a new life with old steps: %+v", fresh.Steps)
	}
}

// A step's key is the same for every attempt, another one for every other step
// and operation, and a UUID that any header can carry.
func TestStepKey(t *testing.T) {
	a, b := Key{ID: ID{1}, Tenant: "a"}, Key{ID: ID{2}, Tenant: "a"}
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for _, k := range []Key{a, b} {
		for _, name := range []string{"pay", "pay ", "ship", ""} {
			s := StepKey(k, name)
			if !form.MatchString(s) || seen[s] {
				t.Errorf("%q", s)
			}
			seen[s] = true
		}
	}
	if got, want := StepKey(a, "pay"), "f49c11e6-8e03-8b9b-bfac-dfebd4da0bfc"; got != want { // records and providers remember it
		t.Errorf("%s, want %s", got, want)
	}
}
