package pgstore

import "strings"

// limitQueries are the texts of the statements for limits.
type limitQueries struct {
	settings, now        string
	begin, commit        string
	rollback             string
	readOne, read, lock  string
	insertOne, updateOne string // one row is one statement
	insert, update       string
	reset, sweep         string
}

func newLimitQueries(schema string, durable bool) *limitQueries {
	const table = "{s}escapement_limits"
	quick := lockTimeout
	if !durable {
		quick += ",set_config('synchronous_commit','off',true)"
	}
	q := &limitQueries{
		settings: "SELECT pg_relation_size('" + table + "') FROM (SELECT " + noScan + "," + quick + " OFFSET 0) t",
		now:      "SELECT " + clock,
		begin:    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
		commit:   "COMMIT",
		rollback: "ROLLBACK",

		// The time is read after the rows: it is not before any write that they show.
		readOne: "SELECT r.state,r.keep_until," + clock + " FROM (VALUES (0)) one LEFT JOIN " + table + " r ON r.id = $2",
		read:    "SELECT r.id,r.state,r.keep_until FROM " + table + " r WHERE " + among("r.id"),
		lock:    "SELECT r.id,r.state,r.keep_until FROM " + table + " r WHERE " + among("r.id") + " ORDER BY r.id FOR NO KEY UPDATE",

		insertOne: "INSERT INTO " + table + " (id,state,keep_until) SELECT $1::bytea,$2::bytea,$3::bigint FROM (SELECT " + quick + " OFFSET 0) t ON CONFLICT (id) DO NOTHING",
		updateOne: "UPDATE " + table + " r SET state=$3::bytea,keep_until=$4::bigint FROM (SELECT " + quick + " OFFSET 0) t WHERE r.id=$1::bytea AND r.state=$2::bytea",

		// Full buckets, for the update to find.
		insert: "INSERT INTO " + table + " (id,state,keep_until) SELECT u.id,$2::bytea,$3::bigint FROM unnest(" + array(1, "bytea") + ") AS u(id) ORDER BY u.id ON CONFLICT (id) DO NOTHING",
		// All, or none if one has changed; where fresh is NULL it only must not
		// have. Rows are locked in the order of the arrays.
		update: "WITH u AS MATERIALIZED (SELECT * FROM " + unnest(1, limitColumns) + ")," +
			"l AS MATERIALIZED (SELECT u.* FROM u JOIN " + table + " r ON " + is("r.id", "u.id") + " WHERE r.state = u.old FOR NO KEY UPDATE OF r) " +
			"UPDATE " + table + " r SET state=l.fresh,keep_until=l.keep FROM l WHERE (SELECT count(*) FROM l) = $5 AND l.fresh IS NOT NULL AND " + is("r.id", "l.id"),

		reset: "DELETE FROM " + table + " r USING (SELECT " + quick + " OFFSET 0) t WHERE r.id=$1",
		sweep: "DELETE FROM " + table + " WHERE id = ANY(ARRAY(SELECT r.id FROM " + table + " r, (SELECT " + quick + " OFFSET 0) t " +
			"WHERE r.keep_until < (SELECT " + clock + ") ORDER BY r.keep_until LIMIT $2 FOR UPDATE OF r SKIP LOCKED))",
	}
	prefix := ""
	if schema != "" {
		prefix = quote(schema) + "."
	}
	for _, s := range []*string{&q.settings, &q.readOne, &q.read, &q.lock, &q.insertOne, &q.updateOne, &q.insert, &q.update, &q.reset, &q.sweep} {
		*s = strings.ReplaceAll(*s, "{s}", prefix)
	}
	return q
}

// limitColumns are what an update of several rows is given.
var limitColumns = [][2]string{{"id", "bytea"}, {"old", "bytea"}, {"fresh", "bytea"}, {"keep", "bigint"}}
