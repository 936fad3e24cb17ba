// Package sqlitestore keeps the records of idempotency keys in a SQLite file:
// durable, with nothing else to install, open to the tools that people know.
//
//	s, err := sqlitestore.Open(ctx, "escapement.db", sqlitestore.Options{})
//
// [Open] makes and keeps a file of its own. [New] works in a database of the
// caller's, so that a handler's writes and the end of its key's record can be
// one transaction: see [Store.In] and the example.
//
// # What holds under which fault
//
//   - The process is killed, or panics: everything that was answered is in the
//     file, byte for byte, and what was being written is there as a whole or
//     not at all. A key that was held stays held until its lease is over.
//   - The power fails, or the machine: the same. The journal is in WAL mode
//     with synchronous=FULL, and nothing is answered before the disk has said
//     that it has the commit. A disk that lies about that loses what it lied
//     about; the file stays whole.
//   - The disk is full, or the file at its bound (MaxPages): writes fail with
//     an error that is idempotency.ErrFull, and nothing changed; replays and
//     lookups go on. When there is room again (within MaxPages, Sweep makes
//     some), so do writes, without a restart.
//   - The disk fails in the middle of a commit: every operation of that batch
//     gets an error, and whether it took effect is not known until the key is
//     looked up.
//   - Another connection keeps the file's write lock: replays and lookups go
//     on, writes wait, each until its context ends or for BusyTimeout at most.
//     What fails so has changed nothing, unless its context ended while its
//     batch was being written.
//   - The file is deleted, replaced or edited while it is open: not protected.
//     On POSIX systems a program that opens and closes the file by other means
//     than SQLite, in the same process, takes SQLite's locks away; a copy or a
//     checksum of the file belongs into another process. Nor is a network file
//     system protected: the file must be on a local disk.
//   - The clock steps: leases and expiry follow the clock of the machine. A
//     step back keeps records longer; a step forward by more than a key's
//     lease and quiet time permits a takeover too early.
//
// An error of the file is an [*Error]: what happened, to which file, what to
// do next. It leaves nothing half done.
//
// # How it works
//
// One goroutine writes. While it commits one batch the next gathers, so that a
// thousand callers share a sync of the disk; a single caller waits for nobody.
// Within a batch what keeps or ends a reservation comes before the claims, and
// an operation that fails does so alone. Claims that change nothing (replays,
// refusals) and lookups are reads, and never wait for the writer.
//
// Several processes on one host may share a file. They take turns; exactly one
// of several claims of a key starts, whichever process it comes from. They
// must have the same clock, as the processes of one host have.
//
// # The file
//
// The tables' names begin with escapement_; their columns have the names of
// the fields of idempotency.Record. Times are microseconds since 1970 in UTC.
// For people there is a view:
//
//	sqlite3 -readonly escapement.db 'SELECT * FROM escapement_keys LIMIT 10'
//
// Beside the file stand its journal (-wal) and an index of that (-shm): they
// belong together. Back up with .backup of the sqlite3 shell or with a tool
// that knows WAL, such as Litestream, not with cp. The file holds answers to
// clients; Open makes it readable by its user alone.
//
// Space that [Store.Sweep] frees is used again; the file shrinks only by
// VACUUM. A reader that stays open for long (a forgotten shell in a
// transaction) lets the -wal file grow until it ends.
//
// The schema has a version (table escapement_schema). A newer version of this
// package migrates the file when it opens it; an older one refuses it then.
package sqlitestore
