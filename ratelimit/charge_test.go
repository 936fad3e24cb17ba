package ratelimit_test

import (
	"slices"
	"testing"

	"github.com/escapement-dev/escapement/ratelimit"
)

func TestSplit(t *testing.T) {
	r := func(cost int64) ratelimit.Charge { return ratelimit.Charge{Cost: cost} }
	x := func(cost int64) ratelimit.Charge { return ratelimit.Charge{Cost: cost, Kind: ratelimit.Executions} }
	for _, c := range []struct{ all, requests, executions []ratelimit.Charge }{
		{nil, nil, nil},
		{[]ratelimit.Charge{r(1), r(2)}, []ratelimit.Charge{r(1), r(2)}, nil},
		{[]ratelimit.Charge{x(1), x(2)}, nil, []ratelimit.Charge{x(1), x(2)}},
		{[]ratelimit.Charge{x(1), r(2), x(3), r(4)}, []ratelimit.Charge{r(2), r(4)}, []ratelimit.Charge{x(1), x(3)}},
	} {
		requests, executions := ratelimit.Split(c.all)
		if !slices.Equal(requests, c.requests) || !slices.Equal(executions, c.executions) {
			t.Errorf("Split(%v) = %v, %v", c.all, requests, executions)
		}
	}
}
