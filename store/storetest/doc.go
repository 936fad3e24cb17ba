// Package storetest is the contract of a store as a test suite.
//
// A store is tested in some fifteen lines:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Harness{
//			New: func(t testing.TB, clock *storetest.Clock) idempotency.Store {
//				s, err := mystore.Open(t.TempDir(), mystore.Options{Now: clock.Now})
//				if err != nil {
//					t.Fatal(err)
//				}
//				t.Cleanup(func() { s.Close() })
//				return s
//			},
//			Caps: storetest.Capabilities{Steps: true, Keeper: true},
//		})
//	}
//
// # Time
//
// A store under test takes its time from the [Clock] that it is given, and
// from nothing else. A store whose time is its server's sends the clock's time
// as an argument of each statement or script. So leases, windows and expiry
// are tested against the real server, to the microsecond, and nobody sleeps.
//
// # What is tested
//
// The layers are: one hand-written test for every numbered clause of
// docs/STORE_GUIDE.md, whose name begins with the clause; a state machine that
// compares the store with the rule's pure functions after every step;
// concurrent histories that must have some order which the rule allows;
// properties that need no oracle; a kill and a reopening, for durable stores;
// faults, as far as the harness can cause them; and benchmarks, in
// [Benchmark].
//
// Stores differ by [Capabilities], which their harness declares. A case for
// which a store has no capability, or the harness no fault, is left out.
//
// ESCAPEMENT_SOAK=1 makes the random parts some fifty times longer. Where a
// random test fails it prints the seed: -rapid.seed repeats a state machine,
// ESCAPEMENT_SEED sets that of the others. A history is decided by its seed and
// by the scheduler.
package storetest
