// Package steps has an operation with two external effects, and a test that runs
// it on every store of records: an attempt that dies in the second effect leaves
// the first to be returned, and the second to be found out.
package steps

import (
	"context"
	"fmt"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// Provider is where the effects are.
type Provider interface {
	// Do performs the effect, with the step's own key.
	Do(ctx context.Context, what, key string) (id string, err error)
	// Options say how it is found out what became of a call.
	Options(what string) escapement.StepOptions
}

// Trip books a flight and then a room. It is the function of escapement.Gate.Do.
func Trip(p Provider) func(context.Context, *escapement.Run) idempotency.Ending {
	return func(ctx context.Context, run *escapement.Run) idempotency.Ending {
		ids := make([]string, 0, 2)
		for _, what := range []string{"flight", "room"} {
			s, err := run.Step(ctx, what, func(ctx context.Context, key string) (escapement.StepResult, error) {
				id, err := p.Do(ctx, what, key)
				return escapement.StepResult{ID: id}, err
			}, p.Options(what))
			if err != nil {
				return escapement.EndingOf(err)
			}
			ids = append(ids, s.ProviderID)
		}
		return idempotency.Done(idempotency.Result{
			Class: idempotency.Succeeded, Status: 201, Payload: fmt.Appendf(nil, "flight %s, room %s", ids[0], ids[1]),
		})
	}
}
