// Package crash has no code but tests. They run programs that keep records in
// PostgreSQL, as processes of their own, kill them at labelled points, cut
// their connections in the middle of a COMMIT, and crash the server under them;
// and then count what was done.
//
// ESCAPEMENT_SOAK=1 runs the random campaigns at full length, and
// ESCAPEMENT_SEED=N repeats one.
package crash
