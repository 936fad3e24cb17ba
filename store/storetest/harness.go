package storetest

import (
	"testing"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

// Harness says how the suite gets at a store. New or NewLimits must be set.
type Harness struct {
	// New returns a fresh and empty store of records, which shares nothing
	// with any other, takes its time from clock alone, removes nothing by
	// itself in the background, and is closed by t.Cleanup. Nil: the suite
	// tests no records.
	New func(t testing.TB, clock *Clock) idempotency.Store
	// NewLimits returns such a store of limits. Nil: the suite tests none.
	NewLimits func(t testing.TB, clock *Clock) ratelimit.Store
	// Caps says what the store has beyond idempotency.Store.
	Caps Capabilities
	// Faults are ways to hurt the store.
	Faults Faults
	// Soak makes the random parts some fifty times longer. It is also set by
	// the environment variable ESCAPEMENT_SOAK=1.
	Soak bool
}

// Capabilities says how a store differs from others. The suite asks this and
// never which store it is.
type Capabilities struct {
	// Steps: the store is an idempotency.StepStore.
	Steps bool
	// Keeper: the store is an idempotency.Keeper.
	Keeper bool
	// Settings: the store is an idempotency.Settings.
	Settings bool
	// MaxPayload is the largest payload that the store keeps, in bytes. 0:
	// idempotency.MaxPayload, which every store that is part of Escapement
	// keeps.
	MaxPayload int
	// SplitTake: charges of one Take may lie on different servers. Take is
	// then all or none once it has returned, but not for others meanwhile (Q1).
	SplitTake bool
	// BucketsOnly: the store of limits keeps token buckets alone, and says
	// ratelimit.ErrCharge to a rule of another algorithm.
	BucketsOnly bool
	// Reopen is set for a durable store: it lets go of s without closing it
	// in an orderly way, as if its process had been killed, and returns a
	// store on the same data. The old one is not used again.
	Reopen func(t testing.TB, s idempotency.Store, clock *Clock) idempotency.Store
	// ReopenLimits is the same for limits.
	ReopenLimits func(t testing.TB, s ratelimit.Store, clock *Clock) ratelimit.Store
	// EndInTx is set for a store on which a user's transaction can hold a
	// record without that others wait for it (F7). It ends the reservation
	// inside a transaction that stays open until finish is called, which
	// commits it, or rolls it back.
	EndInTx func(t testing.TB, s idempotency.Store, r idempotency.Reservation, e idempotency.Ending) (finish func(commit bool))
}

// Faults are optional ways to hurt a store. Each applies to the store that it
// is given and to no other.
type Faults struct {
	// Stall makes the store's calls wait, as an unreachable server or a locked
	// file would, until resume is called.
	Stall func(t testing.TB, s idempotency.Store) (resume func())
	// LoseReply makes the next Reserve of s take effect and return an error.
	LoseReply func(t testing.TB, s idempotency.Store)
	// Restart stops the server behind s and starts it again, on the same data.
	// Calls may fail meanwhile, and must succeed some time after it.
	Restart func(t testing.TB, s idempotency.Store)
}

// Case is one test of the suite. Its name begins with the clause that it tests.
type Case struct {
	Name string
	// Run tests a store of the harness. It ends the goroutine when it fails,
	// as testing.TB's FailNow does.
	Run func(t testing.TB, h Harness)

	needs func(h Harness) bool
}

// Run runs every case that the harness can: see [Cases].
func Run(t *testing.T, h Harness) {
	t.Helper()
	cases := Cases(h)
	if len(cases) == 0 {
		t.Fatal("storetest: the harness has neither New nor NewLimits")
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, h) })
	}
}

// RunLimits runs the cases of limits only.
func RunLimits(t *testing.T, h Harness) {
	t.Helper()
	h.New = nil
	Run(t, h)
}

// Cases returns the tests that apply to a store with the harness's
// capabilities and faults, in a fixed order. Most users call [Run].
func Cases(h Harness) []Case {
	var cases []Case
	add := func(list []Case) {
		for _, c := range list {
			if c.needs == nil || c.needs(h) {
				cases = append(cases, c)
			}
		}
	}
	if h.New != nil {
		for _, list := range [][]Case{
			capabilityCases, reserveCases, unknownCases, notRunCases, withdrawCases,
			fenceCases, batchCases, expiryCases, stepCases, listCases, settleCases,
			settingCases, payloadCases, propertyCases, faultCases, reopenCases,
			historyCases, machineCases,
		} {
			add(list)
		}
	}
	if h.NewLimits != nil {
		for _, list := range [][]Case{limitCases, limitPropertyCases, limitHistoryCases, limitMachineCases} {
			add(list)
		}
	}
	return cases
}

func needsSteps(h Harness) bool    { return h.Caps.Steps }
func needsKeeper(h Harness) bool   { return h.Caps.Keeper }
func needsSettings(h Harness) bool { return h.Caps.Settings }

// recordCase is a case with a fresh store of records.
func recordCase(name string, needs func(Harness) bool, run func(e *env)) Case {
	return Case{Name: name, needs: needs, Run: func(t testing.TB, h Harness) {
		t.Helper()
		run(newEnv(t, h))
	}}
}
