package idempotency

import (
	"os"
	"testing"
)

// The exploration takes the real rule through every interleaving of a few
// attempts on one key: lost and late messages, crashes, pauses beyond the
// lease, refused and broken connections, effects that happen after the sender
// gave up, take-overs, probes, a truthful operator, the sweeper, expiry, and
// steps of the store's clock. Run it with -v for the number of states.
//
// ESCAPEMENT_SOAK=1 allows more attempts and more faults.

func base(p OnUnknown) scenario {
	sc := scenario{policy: p, n: 3, lease: 2, quiet: 2, flight: 2, retention: 3, window: 1, errors: 2, crashes: 1}
	switch p {
	case Hold:
		sc.flight = 0 // the effect may come at any later time
	case Retry:
		sc.flight, sc.quiet, sc.retention = 0, 0, 1 // an unknown record expires too
	}
	return sc
}

func with(name string, sc scenario, fs ...func(*scenario)) scenario {
	sc.name = name
	for _, f := range fs {
		f(&sc)
	}
	return sc
}

func two(sc *scenario)         { sc.n = 2 }
func oneError(sc *scenario)    { sc.errors = 1 }
func noError(sc *scenario)     { sc.errors = 0 }
func noCrash(sc *scenario)     { sc.crashes = 0 }
func clockBack(sc *scenario)   { sc.backs = 1 }
func clockJumps(sc *scenario)  { sc.forwards = 1 }
func noTemporary(sc *scenario) { sc.noTemporary = true }
func dedup(sc *scenario)       { sc.dedup = true }
func steps(sc *scenario)       { sc.steps = true }
func archive(sc *scenario)     { sc.remember = 2 }
func operated(sc *scenario)    { sc.operator = true }
func prints001(sc *scenario)   { sc.prints = [maxAttempts]uint8{0, 0, 1} }
func prints011(sc *scenario)   { sc.prints = [maxAttempts]uint8{0, 1, 1} }
func manyFaults(sc *scenario)  { sc.n, sc.errors, sc.crashes, sc.backs = 2, 3, 2, 1 }

func mutant(fs ...func(*rules)) func(*scenario) {
	return func(sc *scenario) { sc.mutate = append(sc.mutate, fs...) }
}

func breaks(p property) func(*scenario) { return func(sc *scenario) { sc.want = p } }

// exploreLimit stops a search that grew beyond all expectation.
const exploreLimit = 12_000_000

func runScenarios(t *testing.T, all []scenario) {
	t.Helper()
	states, edges := 0, 0
	for i := range all {
		sc := &all[i]
		t.Run(sc.name, func(t *testing.T) {
			x := explore(sc, exploreLimit)
			states, edges = states+len(x.states), edges+x.edges
			t.Logf("%d states, %d edges, %d shapes of records, %d calls of the rule; broken: %v", len(x.states), x.edges, len(x.w.book.shapes), len(x.w.book.said), x.broken)
			if missing := sc.want &^ x.broken; missing != 0 {
				t.Errorf("%d states and nothing breaks %v", len(x.states), missing)
			}
			if sc.want != 0 {
				return
			}
			for _, f := range x.findings {
				t.Errorf("breaks %v:%s", f.broken, f.trace)
			}
			if !x.full {
				t.Errorf("not exhausted after %d states", len(x.states))
			}
		})
	}
	t.Logf("together: %d states, %d edges", states, edges)
}

// TestExploreRule: with all clauses in force no property breaks.
func TestExploreRule(t *testing.T) {
	all := []scenario{
		with("hold, 2 attempts", base(Hold), two, clockBack),
		with("hold with an operator, 2 attempts", base(Hold), two, oneError, operated),
		with("retry, 2 attempts", base(Retry), two, oneError, noTemporary),
		with("retry, upstream knows keys, 2 attempts", base(Retry), two, oneError, dedup),
		with("probe, 2 attempts", base(Probe), two, oneError),
		with("fail, 2 attempts", base(Fail), two, oneError),
		with("hold, other prints", base(Hold), noTemporary, oneError, prints001),
		with("hold with steps", base(Hold), two, oneError, steps),
		with("probe with steps", base(Probe), two, oneError, steps),
		with("hold, archived", base(Hold), two, oneError, archive),
	}
	if !exploreSmall {
		all = append(all,
			with("hold", base(Hold), clockBack),
			with("hold with an operator", base(Hold), operated, oneError),
			with("hold, clock jumps", base(Hold), operated, two, clockJumps),
			with("retry", base(Retry), noTemporary, noError),
			with("probe", base(Probe), noTemporary, oneError),
			with("probe, clock jumps, quiet = flight + 1", base(Probe), two, clockJumps, func(sc *scenario) { sc.quiet = 3 }),
			with("fail", base(Fail), oneError),
			with("hold, other prints 2", base(Hold), prints011, noTemporary, oneError),
			with("retry, other prints", base(Retry), prints001, noTemporary, noError),
			with("probe, other prints", base(Probe), prints001, noTemporary, oneError),
			with("probe, other prints 2", base(Probe), prints011, noTemporary, oneError),
			with("probe with steps, 3 attempts", base(Probe), noTemporary, oneError, steps),
		)
	}
	runScenarios(t, all)
}

// TestExploreSoak allows more: minutes, and a few gigabytes.
func TestExploreSoak(t *testing.T) {
	if os.Getenv("ESCAPEMENT_SOAK") != "1" {
		t.Log("ESCAPEMENT_SOAK=1 runs it")
		return
	}
	runScenarios(t, []scenario{
		with("hold with an operator, many faults", base(Hold), operated, manyFaults),
		with("retry, 3 attempts", base(Retry), noTemporary, oneError),
		with("retry, upstream knows keys, 3 attempts", base(Retry), noTemporary, oneError, dedup),
		with("retry, many faults", base(Retry), manyFaults),
		with("retry, upstream knows keys, many faults", base(Retry), manyFaults, dedup),
		with("probe, temporary answers", base(Probe), oneError, noCrash),
		with("probe, many faults", base(Probe), manyFaults),
		with("probe with an operator", base(Probe), operated, two, clockBack),
		with("fail, 3 attempts", base(Fail)),
		with("hold, other prints, all faults", base(Hold), prints001, clockBack),
		with("retry, other prints, 3 attempts", base(Retry), prints001, noTemporary, oneError, noCrash),
		with("retry, other prints, all faults", base(Retry), two, prints011, clockBack),
		with("probe, other prints, all faults", base(Probe), two, prints011, clockBack),
		with("hold with steps, 3 attempts", base(Hold), steps, clockBack),
		with("probe with steps, many faults", base(Probe), steps, manyFaults),
		with("hold, archived, 3 attempts", base(Hold), archive, clockBack),
	})
}

// TestExploreMutants: each clause left out brings its fault back.
func TestExploreMutants(t *testing.T) {
	runScenarios(t, []scenario{
		with("F1 without the owner, retry", base(Retry), two, mutant(fenceByToken), breaks(p5Fence|p8Restore)),
		with("F1 without the owner, hold", base(Hold), mutant(fenceByToken), breaks(p1Hold|p4OneAnswer|p5Fence)),
		with("no fence", base(Retry), two, mutant(fenceNothing), breaks(p4OneAnswer|p5Fence)),
		with("F4 a takeover keeps the token", base(Retry), two, mutant(takeoverKeepsToken), breaks(p5Fence|p10Token)),
		with("R6 keeps the token", base(Hold), two, mutant(secondRunKeepsToken), breaks(p10Token)),
		with("R5 without quiet", base(Probe), two, mutant(noQuiet), breaks(p2Probe|p4OneAnswer)),
		with("R11 without quiet", base(Probe), two, mutant(quietAfterDeathOnly), breaks(p2Probe|p4OneAnswer)),
		with("R9 frees", base(Probe), two, mutant(notRunFrees), breaks(p8Restore)),
		with("R9 lowers the token", base(Probe), two, mutant(notRunLowersToken), breaks(p10Token)),
		with("R9 restores one level", base(Retry), noTemporary, oneError, mutant(notRunOneLevel), breaks(p8Restore)),
		with("R3 looks at the clock", base(Hold), mutant(repeatLooksAtClock), breaks(p11Own)),
		with("R3 loses the takeover", base(Probe), two, mutant(repeatLosesTakeover), breaks(p2Probe)),
		with("R2 only while held", base(Hold), prints001, mutant(comparesOnlyWhileHeld), breaks(p7Print)),
		with("R4 for ever", base(Hold), mutant(inProgressForEver), breaks(p6Ends)),
		with("R1 an unknown record expires", base(Hold), mutant(unknownExpires), breaks(p1Hold)),
		with("E1 sweeps unknown records", base(Hold), mutant(sweepsUnknown), breaks(p1Hold)),
		with("E1 sweeps marks", base(Hold), mutant(sweepsMarks), breaks(p9Unsent)),
		with("R12 marks forgotten", base(Hold), mutant(forgetsMarks), breaks(p9Unsent)),
		with("R12 no mark of NotRun", base(Hold), mutant(notRunLeavesNoMark), breaks(p9Unsent)),
		with("R10 Void only marks", base(Hold), mutant(voidOnlyMarks), breaks(p9Unsent)),
		with("F9 compares nothing", base(Hold), operated, mutant(settleComparesNothing), breaks(p1Hold|p4OneAnswer)),
		with("F9 does not wait, clock jumps", base(Hold), two, operated, clockJumps, mutant(settleDoesNotWait), breaks(p1Hold|p4OneAnswer)),
		with("F9 keeps the owner, F2 compares nothing", base(Hold), operated, mutant(settleKeepsOwner, anyEndingTwice), breaks(p4OneAnswer)),
		with("a step and NotRun frees", base(Hold), two, steps, mutant(notRunForgetsSteps), func(sc *scenario) { sc.conduct.brokenIsNotRun = true }, breaks(p1Hold)),
	})
}

// TestExploreRedundant: F9's change of owner and F2's comparison stand in for
// each other; one alone keeps the answer one.
func TestExploreRedundant(t *testing.T) {
	runScenarios(t, []scenario{
		with("F9 keeps the owner", base(Hold), two, oneError, operated, mutant(settleKeepsOwner)),
		with("F2 compares nothing", base(Hold), two, oneError, operated, mutant(anyEndingTwice)),
	})
}

// TestExploreConduct: what a store cannot mend. Callers must keep F6 and F8,
// fresh owners, and the endings' meaning; quiet must be longer than a flight.
func TestExploreConduct(t *testing.T) {
	does := func(f func(*conduct)) func(*scenario) { return func(sc *scenario) { f(&sc.conduct) } }
	runScenarios(t, []scenario{
		with("F8 left out, probe", base(Probe), two, does(func(c *conduct) { c.noGuard = true }), breaks(p2Probe|p4OneAnswer|p1Stale)),
		with("F8 left out, hold with an operator", base(Hold), operated, does(func(c *conduct) { c.noGuard = true }), breaks(p1Hold|p4OneAnswer)),
		with("F6 the batcher voids", base(Hold), does(func(c *conduct) { c.batcherVoids = true }), breaks(p1Hold|p4OneAnswer)),
		with("an owner for a node", base(Hold), does(func(c *conduct) { c.nodeIsOwner = true }), breaks(p1Hold|p4OneAnswer)),
		with("frees the key when the save fails", base(Hold), does(func(c *conduct) { c.freesWhenSaveFails = true }), breaks(p1Hold)),
		with("a broken connection taken for a refused one", base(Hold), does(func(c *conduct) { c.brokenIsNotRun = true }), breaks(p1Hold|p4OneAnswer)),
		with("a broken connection taken for a refused one, with steps", base(Hold), two, steps, oneError, does(func(c *conduct) { c.brokenIsNotRun = true })),
		with("the same, probe", base(Probe), two, steps, oneError, does(func(c *conduct) { c.brokenIsNotRun = true })),
		with("the transport repeats", base(Hold), does(func(c *conduct) { c.transportRepeats = true }), breaks(p1Hold)),
		with("502 after the effect taken for temporary", base(Hold), does(func(c *conduct) { c.badGatewayRetries = true }), breaks(p1Hold)),
		with("a repeated Reserve that found the key taken is not voided", base(Hold), two, does(func(c *conduct) { c.keepsRepeat = true }), breaks(p9Unsent)),
		with("answers before the record", base(Retry), two, does(func(c *conduct) { c.answersFirst = true }), breaks(p4OneAnswer)),
		with("quiet shorter than a flight", base(Probe), two, func(sc *scenario) { sc.quiet = 1 }, breaks(p2Probe|p4OneAnswer)),
		with("quiet as long as a flight, both ends closed", base(Probe), two, does(func(c *conduct) { c.closedFlight = true }), breaks(p2Probe|p4OneAnswer)),
		with("clock jumps, quiet = flight", base(Probe), two, clockJumps, breaks(p2Probe|p4OneAnswer)),
	})
}
