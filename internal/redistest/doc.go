// Package redistest starts Redis servers for tests: one alone, one with a
// replica watched by sentinels, or a cluster. It needs redis-server and
// redis-cli on the PATH.
//
// Servers listen on free ports of the loopback interface, keep their data in a
// directory of their own, and are killed at the end of the test by their
// process's id. Nothing here sleeps: a server is ready when it has said so in
// its log.
package redistest
