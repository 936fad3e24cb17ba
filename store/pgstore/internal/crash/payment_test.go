package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/httpgate"
)

// payment is what is answered to a payment: the ids of both charges.
type payment struct {
	Name  string `json:"name"`
	Keyed string `json:"keyed"`
	Asked string `json:"asked"`
}

// pay charges at both providers, each in a step.
func (s *service) pay(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	var o order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.strike.at(called)
	keyed, err := escapement.Step(ctx, "keyed", s.call("keyed", o.Name), escapement.StepOptions{KeysFor: time.Hour})
	if err == nil {
		asked, askedErr := escapement.Step(ctx, "asked", s.call("asked", o.Name), escapement.StepOptions{Status: s.status})
		if err = askedErr; err == nil {
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(payment{o.Name, keyed.ProviderID, asked.ProviderID}) // fails if the client is gone
			return
		}
	}
	httpgate.Report(ctx, httpgate.Unknown)
	http.Error(w, err.Error(), http.StatusBadGateway)
}

func (s *service) call(provider, name string) func(context.Context, string) (escapement.StepResult, error) {
	return func(ctx context.Context, key string) (escapement.StepResult, error) {
		body, err := json.Marshal(charge{Name: name})
		if err != nil {
			return escapement.StepResult{}, err
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.provider+"/"+provider, bytes.NewReader(body))
		if err != nil {
			return escapement.StepResult{}, err
		}
		r.Header.Set("Idempotency-Key", key)
		c, err := s.ask(r)
		return escapement.StepResult{ID: c.ID}, err
	}
}

func (s *service) status(ctx context.Context, key string) (escapement.StepResult, escapement.StepStatus, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.provider+"/asked/"+key, nil)
	if err != nil {
		return escapement.StepResult{}, escapement.StepUnclear, err
	}
	c, err := s.ask(r)
	switch {
	case errors.Is(err, errNone):
		return escapement.StepResult{}, escapement.StepAbsent, nil
	case err != nil:
		return escapement.StepResult{}, escapement.StepUnclear, err
	}
	return escapement.StepResult{ID: c.ID}, escapement.StepFound, nil
}

var errNone = errors.New("there is no such charge")

func (s *service) ask(r *http.Request) (c charge, err error) {
	res, err := s.client.Do(r)
	if err != nil {
		return c, err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
		return c, json.NewDecoder(res.Body).Decode(&c)
	case http.StatusNotFound:
		return c, errNone
	}
	return c, fmt.Errorf("the provider says %s", res.Status)
}

// Programs are killed at every point of their steps, over and over, while
// another one repeats their keys: each provider makes one charge for each key.
func TestPaymentsSurviveKills(t *testing.T) {
	points := []string{stepNew, stepStarted, stepSent, stepReplied, stepDone, answering, afterClaim, storeSent}
	c := newCampaign(t, seed(t))
	p := newProviders(t)
	c.path, c.provider = "/payments", p.url
	c.start(&strike{})
	known, found := 0, 0
	for round := range length(25, 1000) {
		s := &strike{At: points[round%len(points)], How: byKill, Times: int64(1 + c.random.IntN(each))}
		victim := c.start(s)
		c.send(victim)
		if err := victim.struck(); err != nil {
			c.check()
			t.Fatalf("round %d, %s: %v", round, s.At, err)
		}
		c.gone(victim)
		c.check()
	}
	c.start(&strike{})
	c.judge(func() map[string][]string { return p.of(t, "asked") })
	c.compare(p.of(t, "keyed"))
	// A campaign that never meets a case proves nothing about it.
	for _, k := range c.keys {
		if p.called("keyed", k.name) > 1 {
			known++
		}
		if p.asked(k.name) {
			found++
		}
	}
	taken := c.takeovers()
	t.Logf("%d keys: %d takeovers, %d calls were made again with their keys, %d were found by asking", len(c.keys), taken, known, found)
	if !t.Failed() && (taken == 0 || known == 0 || found == 0 && soak()) { // the last is rare in 25 rounds
		t.Error("a case was never met")
	}
}
