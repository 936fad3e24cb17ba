// Package e2e has no code but tests. They build the program and drive it from
// outside, as a process of its own in front of the demo's upstream in another:
// they kill it at labelled points, take its disk away, and send it what no
// honest client sends.
//
// ESCAPEMENT_SOAK=1 runs the random campaigns at full length, and
// ESCAPEMENT_SEED=N repeats one.
package e2e
