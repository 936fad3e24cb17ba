// Package redisstore keeps records, steps, settings and the states of rate
// limits in Redis 7: standalone, behind Sentinel, or in a Cluster.
//
// A [Store] is an idempotency.Store with StepStore, Keeper and Settings, and a
// ratelimit.Store, and it can do both in one round trip ([Store.Admit]). Every
// decision is one script, made at the server and by the server's clock.
//
// # What Redis holds and what it can lose
//
// A record is in Redis once End has returned. Replication is asynchronous: a
// failover can lose the last writes of a master, with them a claim or a
// result, and then the operation may run again. [Store.Confirmed] waits for
// replicas and narrows that window; it does not close it. [Store.Check] says
// what a server's settings can lose. Where one execution too many costs money,
// keep records in PostgreSQL.
//
// # Keys
//
//	{prefix}tenant:{T}:idem:ID            the record of a key of the tenant T
//	{prefix}tenant:{T}:rate:RULE:SUBJECT  a limit of the tenant T (see Options.TenantOf)
//	{prefix}rate:{RULE:SUBJECT}           any other limit
//	{prefix}setting:{NAME}                a setting
//	{prefix}audit                         the audit log
//
// T, SUBJECT and NAME are escaped like parts of a URL, and hashed where they
// are long. The braces are meant as they stand: they are the hash tags of a
// Cluster.
package redisstore
