package storetest

import (
	"github.com/escapement-dev/escapement/idempotency"
)

// capabilityCases test that a store is what its harness says.
var capabilityCases = []Case{
	recordCase("CapabilitiesAreDeclared", nil, func(e *env) {
		_, steps := e.s.(idempotency.StepStore)
		_, keeper := e.s.(idempotency.Keeper)
		_, settings := e.s.(idempotency.Settings)
		for _, x := range []struct {
			name      string
			has, said bool
		}{
			{"StepStore", steps, e.h.Caps.Steps},
			{"Keeper", keeper, e.h.Caps.Keeper},
			{"Settings", settings, e.h.Caps.Settings},
		} {
			if x.has != x.said {
				e.Errorf("the store is an idempotency.%s: %v; its harness says %v: what is there is tested", x.name, x.has, x.said)
			}
		}
	}),
}
