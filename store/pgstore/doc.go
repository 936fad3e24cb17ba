// Package pgstore keeps the records of idempotency keys, and token buckets, in
// PostgreSQL.
//
// A record and the handler's own rows can be committed by one transaction: see
// [Store.In]. Rate limits of the same database are [Store.Limits].
//
// # Locks
//
// All statements run at READ COMMITTED, whatever the server's default, with no
// session state, no advisory locks and no LISTEN. No statement waits for a row
// that a transaction of the handler's holds: rows are locked with SKIP LOCKED,
// a claim reads first and inserts only what is missing, and where a row was
// held by others a moment later nevertheless, lock_timeout (250 ms, for the
// one transaction) gives the batch another try.
//
// What a row that somebody has locked means:
//
//   - Reserve: a record with a live lease is InProgress at once, locked or not.
//     Where the lease is over, or there is none, Reserve tries again for some
//     30 ms (another process may be claiming or sweeping it), and then says
//     InProgress: its owner lives.
//   - Extend: attempts lock their own record FOR NO KEY UPDATE, and whoever
//     takes a key away from its owner FOR UPDATE. A FOR KEY SHARE lock tells
//     them apart: where it is granted, it is a transaction of the owner's that
//     holds the row, nobody can take over while it does, and Extend returns the
//     lease as it is stored. Its new end is then not written: after a rollback
//     the lease may be over.
//   - Every other operation answers what the committed record decides (such as
//     ErrFenced), and else tries again until its context ends or
//     Options.LockWait is over: then ErrLocked, and nothing changed.
//
// # Limits
//
// A bucket that is not full is one row of escapement_limits, by the rule's name
// and the subject as the charge has it; the view escapement_buckets spells it
// out. A refusal writes nothing. What passes is written with synchronous_commit
// off, unless LimitsOptions.Durable is set. [Limits.Sweep] removes the rows of
// full buckets; nothing else does, and what is owed is never removed.
//
// # Poolers
//
// Behind a pooler in transaction mode that knows no prepared statements
// (pgbouncer before 1.21, or with max_prepared_statements = 0), put
// default_query_exec_mode=exec or =cache_describe into the URL. Nothing else
// needs to be said; connections may be switched after every transaction.
//
// # Programs that stand still
//
// A program that is stopped, or cut off from the network, keeps what it has
// locked. The server ends a transaction of the store's that is idle for
// Options.Timeout. For the handler's own transactions, set
// idle_in_transaction_session_timeout on their connections, or for the role:
// until then the key is in progress, and nobody takes over.
package pgstore
