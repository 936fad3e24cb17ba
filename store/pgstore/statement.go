package pgstore

import (
	"strconv"
	"strings"
)

// numbers are the columns of integers, in the order of row.readNumbers and
// row.numbers. A query gives them as one array: decoding each on its own costs
// three times as much.
var numbers = []column{
	{"state", "smallint"},
	{"token", "bigint"},
	{"lease", "bigint"},
	{"retention", "bigint"},
	{"remember", "bigint"},
	{"quiet", "bigint"},
	{"on_unknown", "smallint"},
	{"attempt", "bigint"},
	{"takeover", "boolean"},
	{"lease_end", "time"},
	{"found", "smallint"},
	{"found_lease", "time"},
	{"found_steps", "integer"},
	{"class", "smallint"},
	{"status", "integer"},
	{"not_kept", "boolean"},
	{"retry_window", "bigint"},
	{"source", "smallint"},
	{"window_end", "time"},
	{"expires", "time"},
	{"steps", "integer"},
	{"created", "bigint"},
	{"updated", "bigint"},
	{"revision", "bigint"},
}

// keepUntil is written after the numbers, and not read.
var keepUntil = column{"keep_until", "time"}

// column is a column of integers. In arguments and results all are bigint; a
// time that is not there is 0, and NULL in the table.
type column struct{ name, kind string }

func (c column) read() string {
	switch c.kind {
	case "boolean":
		return "r." + c.name + "::integer"
	case "time":
		return "coalesce(r." + c.name + ",0)"
	}
	return "r." + c.name
}

func (c column) write() string {
	switch c.kind {
	case "boolean":
		return "u." + c.name + "<>0"
	case "time":
		return "nullif(u." + c.name + ",0)"
	}
	return "u." + c.name
}

// texts are the other columns, in the order of row.texts: those of kind text,
// and bytes; then payload.
var texts = strings.Fields("tenant prints method route trace marks owner released payload")

func textKind(name string) string {
	switch name {
	case "owner", "released", "payload":
		return "bytea"
	}
	return "text"
}

// result are the result columns of a query for rows of r, for row.scan.
func result(payload, steps bool) string {
	var b strings.Builder
	b.WriteString("r.id,ARRAY[")
	for i, c := range numbers {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(c.read())
	}
	b.WriteString("]::bigint[],r.tenant,coalesce(r.prints,''),r.method,r.route,r.trace,coalesce(r.marks,''),r.owner,r.released,")
	if payload {
		b.WriteString("r.payload,")
	} else {
		b.WriteString("NULL::bytea,")
	}
	if !steps {
		b.WriteString("''")
		return b.String()
	}
	b.WriteString("CASE WHEN r.steps > 0 THEN coalesce((" + stepList(payload) + " WHERE s.record = r.id),'') ELSE '' END")
	return b.String()
}

// stepList selects the steps of a record as one text, for readSteps.
func stepList(answers bool) string {
	answer := "''"
	if answers {
		answer = "encode(coalesce(s.answer,''),'hex')"
	}
	return "SELECT string_agg(concat_ws(' ',encode(convert_to(s.name,'UTF8'),'hex'),s.done::integer," +
		"encode(convert_to(s.provider_key,'UTF8'),'hex'),encode(convert_to(s.provider_id,'UTF8'),'hex')," +
		answer + ",coalesce(s.started::text,''),coalesce(s.ended::text,'')),' ' ORDER BY s.n) FROM {s}escapement_steps s"
}

// clock is the store's time in microseconds: the server's, unless a test sends
// its own as the first argument.
const clock = "coalesce($1::bigint,(extract(epoch FROM clock_timestamp())*1000000)::bigint)"

// stamp is the store's time in a statement for one record: the same wherever it
// stands in the statement, so that nothing must carry it. (The product is exact
// to half a microsecond until the year 2255.)
const stamp = "coalesce($1::bigint,(date_part('epoch',statement_timestamp())*1000000)::bigint)"

// lockTimeout bounds, for one transaction, how long a statement waits where in
// spite of everything it must: for an insert of the same key by another
// process, or for a row that was locked after it had been read as missing.
const lockTimeout = "set_config('lock_timeout','250ms',true)"

// idleTimeout lets the server end a transaction whose program has stopped in the
// middle of it (frozen, or cut off from the network), so that its records are
// not locked for as long as it is away. It is in milliseconds.
func idleTimeout(arg string) string {
	return "set_config('idle_in_transaction_session_timeout'," + arg + ",true)"
}

// noScan holds for one transaction. The server keeps a statement's plan, and
// one that it made while the table was small would read the whole table, or the
// whole index, for every batch until the next ANALYZE, a minute and a million
// records later. And since the planner takes each range of one key for many
// keys (see is), it would compile the plan of a large table every time (jit),
// which takes a hundred times longer than to run it.
const noScan = "set_config('enable_seqscan','off',true),set_config('enable_bitmapscan','off',true)," +
	"set_config('enable_material','off',true),set_config('jit','off',true)"

// queries are the texts of the store's statements.
type queries struct {
	claim, claimOne             string
	finish, finishOne           string
	begin, now, settings        string
	lock, lockAway              string // FOR NO KEY UPDATE, FOR UPDATE
	share, relock               string
	read, readOne, lockOne      string
	stepsOf                     string
	insert, update, remove      string
	putSteps, dropSteps         string
	sweep, due                  string
	list, listHeld              string
	setting, putSetting         string
	newSetting, addAudit, audit string
	schemaVersion               string
}

// newQueries writes the statements for the tables of a schema.
func newQueries(schema string) *queries {
	prefix := ""
	if schema != "" {
		prefix = quote(schema) + "."
	}
	q := &queries{
		begin:         "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
		now:           "SELECT " + clock + "," + lockTimeout + "," + noScan + "," + idleTimeout("$2"),
		settings:      "SELECT " + noScan + ",pg_relation_size('{s}escapement_records')",
		schemaVersion: "SELECT coalesce(max(version), 0) FROM {s}escapement_schema",
	}

	q.claim, q.claimOne = claimText(), claimOneText()
	q.finish, q.finishOne = finishText(), finishOneText()

	rows := func(payload, steps bool) string {
		return "SELECT " + result(payload, steps) + " FROM {s}escapement_records r WHERE " + among("r.id") + " ORDER BY r.id"
	}
	q.lock = rows(true, false) + " FOR NO KEY UPDATE SKIP LOCKED"
	q.lockAway = rows(true, false) + " FOR UPDATE SKIP LOCKED"
	q.share = "SELECT r.id FROM {s}escapement_records r WHERE " + among("r.id") + " ORDER BY r.id FOR KEY SHARE SKIP LOCKED"
	q.relock = strings.Replace(q.share, "FOR KEY SHARE", "FOR NO KEY UPDATE", 1)
	q.read = rows(true, true)
	q.readOne = "SELECT " + clock + ",x.* FROM (VALUES (0)) one LEFT JOIN LATERAL (SELECT " + result(true, true) +
		" FROM {s}escapement_records r WHERE r.id = $2) x ON true"
	q.lockOne = "SELECT " + clock + "," + result(true, false) + " FROM {s}escapement_records r WHERE r.id = $2 FOR NO KEY UPDATE SKIP LOCKED"
	q.stepsOf = "SELECT r.id, coalesce((" + stepList(true) + " WHERE s.record = r.id),'') FROM unnest($1::bytea[]) AS r(id)"

	q.insert = insertMissing()
	var set []string
	for _, c := range texts[1:] {
		if c == "payload" {
			set = append(set, "payload=CASE WHEN u.same<>0 THEN r.payload ELSE u.payload END")
			continue
		}
		set = append(set, c+"=u."+c)
	}
	for _, c := range append(numbers[:len(numbers):len(numbers)], keepUntil) {
		set = append(set, c.name+"="+c.write())
	}
	q.update = "UPDATE {s}escapement_records r SET " + strings.Join(set, ",") + " FROM " +
		unnest(1, append(insertColumns(), [2]string{"same", "bigint"})) + " WHERE " + is("r.id", "u.id")
	q.remove = "DELETE FROM {s}escapement_records WHERE " + among("id")

	q.putSteps = "INSERT INTO {s}escapement_steps (record,n,name,done,provider_key,provider_id,started,ended,answer) " +
		"SELECT u.record,u.n,u.name,u.done<>0,u.provider_key,u.provider_id,nullif(u.started,0),nullif(u.ended,0),u.answer FROM " +
		unnest(1, [][2]string{
			{"record", "bytea"},
			{"n", "bigint"},
			{"name", "text"},
			{"done", "bigint"},
			{"provider_key", "text"},
			{"provider_id", "text"},
			{"started", "bigint"},
			{"ended", "bigint"},
			{"answer", "bytea"},
		}) + " ON CONFLICT (record,n) DO UPDATE SET name=excluded.name,done=excluded.done,provider_key=excluded.provider_key," +
		"provider_id=excluded.provider_id,started=excluded.started,ended=excluded.ended,answer=excluded.answer"
	q.dropSteps = "DELETE FROM {s}escapement_steps WHERE " + among("record")

	q.sweep = sweepText()
	q.due = "SELECT " + result(false, false) + " FROM {s}escapement_records r WHERE r.keep_until <= $1 ORDER BY r.keep_until LIMIT $2 FOR UPDATE SKIP LOCKED"
	list := func(where string) string {
		return "SELECT " + clock + "," + result(false, true) + " FROM {s}escapement_records r WHERE r.id > $2" + where + " ORDER BY r.id LIMIT $3"
	}
	q.list = list("")
	q.listHeld = list(" AND r.state = 1")

	q.setting = "SELECT value, version FROM {s}escapement_settings WHERE name = $1"
	q.newSetting = "INSERT INTO {s}escapement_settings (name,value,version,updated) VALUES ($2,$3,1," + clock + ") ON CONFLICT (name) DO NOTHING"
	q.putSetting = "UPDATE {s}escapement_settings SET value=$3,version=version+1,updated=" + clock + " WHERE name=$2 AND version=$4"
	q.addAudit = `INSERT INTO {s}escapement_audit (at,who,what,"on","before","after",why) VALUES (` + clock + ",$2,$3,$4,$5,$6,$7)"
	q.audit = `SELECT seq,at,who,what,"on","before","after",why FROM {s}escapement_audit WHERE seq > $1 ORDER BY seq LIMIT $2`

	for _, s := range []*string{
		&q.settings, &q.claim, &q.claimOne, &q.finish, &q.finishOne, &q.lock, &q.lockAway, &q.share, &q.read, &q.readOne, &q.lockOne, &q.relock, &q.stepsOf, &q.insert, &q.update, &q.remove,
		&q.putSteps, &q.dropSteps, &q.sweep, &q.due, &q.list, &q.listHeld, &q.setting, &q.newSetting, &q.putSetting,
		&q.addAudit, &q.audit, &q.schemaVersion,
	} {
		*s = strings.ReplaceAll(*s, "{s}", prefix)
	}
	return q
}

// insertColumns are what an insert and an update are given, in the order of
// columns.args.
func insertColumns() [][2]string {
	cols := [][2]string{{"id", "bytea"}}
	for _, c := range texts {
		cols = append(cols, [2]string{c, textKind(c)})
	}
	for _, c := range append(numbers[:len(numbers):len(numbers)], keepUntil) {
		cols = append(cols, [2]string{c.name, "bigint"})
	}
	return cols
}

// array is argument number n, an array whose length the planner does not see.
// It would make a plan for each length, which takes longer than most of them
// run; so it keeps one that goes by the index.
func array(n int, kind string) string {
	return "(SELECT $" + strconv.Itoa(n) + "::" + kind + "[])"
}

// among is a condition on a key in argument 1.
func among(column string) string { return column + " = ANY(" + array(1, "bytea") + "::bytea[])" }

// is says that a key is another one, in such a way that the planner can only
// look it up in the index for each row of the other side. With "=", it may as
// well read all keys in their order, which is cheap while the table is small,
// and keep that plan. (For the same reason, what must not exist is looked for
// with OFFSET 0, which keeps it from becoming a join, and r.state + 0 stands for
// r.state.)
func is(key, other string) string { return key + " >= " + other + " AND " + key + " <= " + other }

// unnest makes rows u of arrays, the first of them argument number first.
func unnest(first int, cols [][2]string) string {
	var args, names []string
	for i, c := range cols {
		args = append(args, array(first+i, c[1]))
		names = append(names, c[0])
	}
	return "unnest(" + strings.Join(args, ",") + ") AS u(" + strings.Join(names, ",") + ")"
}

// firstRecord are the columns that a first claim writes, but for the numbers
// that are the same for every one of them, and what they are.
const (
	firstRecord = "id,tenant,prints,owner,method,route,trace,lease,retention,remember,quiet,on_unknown," +
		"state,token,attempt,lease_end,keep_until,created,updated,revision"
	firstValues = "1,1,1,t.now+u.lease_end,t.now+nullif(u.keep_until,0),t.now,t.now,t.now"
)

// claimText is one statement for claims: it reads what is there, and inserts
// what is missing, without a look at rows that exist but for reading.
func claimText() string {
	return "WITH t AS MATERIALIZED (SELECT " + clock + " AS now," + lockTimeout + ")," +
		"u AS MATERIALIZED (SELECT * FROM " + unnest(2, firstColumns) + ")," +
		"i AS (INSERT INTO {s}escapement_records (" + firstRecord + ") " +
		"SELECT u.id,u.tenant,u.prints,u.owner,u.method,u.route,u.trace,u.lease,u.retention,u.remember,u.quiet,u.on_unknown," + firstValues +
		" FROM u, t WHERE NOT EXISTS (SELECT FROM {s}escapement_records r WHERE r.id = u.id OFFSET 0) ORDER BY u.id ON CONFLICT (id) DO NOTHING RETURNING id) " +
		"SELECT (SELECT now FROM t),id,NULL::bigint[],'','','','','','',NULL::bytea,NULL::bytea,NULL::bytea,'' FROM i " +
		"UNION ALL SELECT (SELECT now FROM t)," + result(true, true) + " FROM u JOIN {s}escapement_records r ON " + is("r.id", "u.id") +
		" WHERE u.id NOT IN (SELECT id FROM i)" // what was inserted is looked for once less
}

// claimOneText is for a batch of one, as quick as a plain statement: it only
// inserts. It joins nothing, and so the server has little to set up.
func claimOneText() string {
	cols := make([]string, len(firstColumns))
	for i, c := range firstColumns {
		cols[i] = "$" + strconv.Itoa(2+i) + "::" + c[1]
	}
	of := strings.NewReplacer("u.lease_end", cols[12], "u.keep_until", cols[13], "t.now", stamp)
	return "INSERT INTO {s}escapement_records (" + firstRecord + ") SELECT " + strings.Join(cols[:12], ",") + "," + of.Replace(firstValues) +
		" WHERE NOT EXISTS (SELECT FROM {s}escapement_records r WHERE r.id = $2::bytea) AND " + lockTimeout + " IS NOT NULL" +
		" ON CONFLICT (id) DO NOTHING RETURNING created"
}

// finishSet is what an end writes, of columns l.
const finishSet = " SET state=2,found=0,found_lease=NULL,found_steps=0,class=l.class,status=l.status,not_kept=l.not_kept<>0," +
	"retry_window=l.retry_window,source=l.source,payload=l.payload,window_end=l.now+nullif(l.window_end,-1),expires=l.now+l.expires," +
	"keep_until=l.now+l.expires,updated=l.now,revision=greatest(r.revision+1,l.now)"

// unchanged is whether the record is still the one that is known, and held. (It
// says r.state + 0, or the planner could think of reading all that are held.)
const unchanged = "r.state + 0 = 1 AND r.owner = u.owner AND r.revision = u.revision AND (u.until = 0 OR t.now < u.until)"

// finishText is one statement for the results of records that are known: it
// ends those that are still as they were, and that nobody has locked. It finds
// a record once, by its index, and then by the place where it is. If another
// transaction has written it meanwhile, that is not where this statement sees
// it, and nothing is written.
func finishText() string {
	return "WITH t AS MATERIALIZED (SELECT " + clock + " AS now)," +
		"u AS MATERIALIZED (SELECT * FROM " + unnest(2, finishColumns) + ")," +
		"l AS MATERIALIZED (SELECT u.*,t.now,r.ctid AS place FROM t, u JOIN {s}escapement_records r ON " + is("r.id", "u.id") +
		" WHERE " + unchanged + " FOR NO KEY UPDATE OF r SKIP LOCKED) " +
		"UPDATE {s}escapement_records r" + finishSet + " FROM l WHERE r.ctid = l.place RETURNING r.id"
}

// finishOneText is the same for a batch of one, without joins.
func finishOneText() string {
	var pairs []string
	for i, c := range finishColumns {
		value := "$" + strconv.Itoa(2+i) + "::" + c[1]
		pairs = append(pairs, "u."+c[0], value, "l."+c[0], value)
	}
	of := strings.NewReplacer(append(pairs, "t.now", stamp, "l.now", stamp)...)
	return "UPDATE {s}escapement_records r" + of.Replace(finishSet) +
		" WHERE r.ctid = (SELECT r.ctid FROM {s}escapement_records r WHERE r.id = $2::bytea AND " +
		of.Replace(unchanged) + " FOR NO KEY UPDATE SKIP LOCKED) RETURNING r.id"
}

// scalars are the arguments of a batch of one: the only element of each.
func scalars(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		switch a := a.(type) {
		case [][]byte:
			out[i] = a[0]
		case []string:
			out[i] = a[0]
		case []int64:
			out[i] = a[0]
		default:
			out[i] = a
		}
	}
	return out
}

// firstColumns are what a first claim's insert is given; all else of its record
// is the same for every one of them. Its times count from the claim.
var firstColumns = [][2]string{
	{"id", "bytea"},
	{"tenant", "text"},
	{"prints", "text"},
	{"owner", "bytea"},
	{"method", "text"},
	{"route", "text"},
	{"trace", "text"},
	{"lease", "bigint"},
	{"retention", "bigint"},
	{"remember", "bigint"},
	{"quiet", "bigint"},
	{"on_unknown", "bigint"},
	{"lease_end", "bigint"},
	{"keep_until", "bigint"},
}

// finishColumns are what the ending of a known record is given. Its times count
// from the end; until is when the record expires, or 0.
var finishColumns = [][2]string{
	{"id", "bytea"},
	{"owner", "bytea"},
	{"revision", "bigint"},
	{"until", "bigint"},
	{"class", "bigint"},
	{"status", "bigint"},
	{"not_kept", "bigint"},
	{"retry_window", "bigint"},
	{"source", "bigint"},
	{"window_end", "bigint"},
	{"expires", "bigint"},
	{"payload", "bytea"},
}

// sweepText is one statement that removes what is due and of which nothing is
// left, but for its steps: most records are results whose time is over. It
// returns how many records it has looked at, and how many it has removed.
func sweepText() string {
	return "WITH due AS MATERIALIZED (SELECT r.ctid AS place, r.state = 2 AND r.steps = 0 AND (r.remember = 0 OR r.class = 3) AS over FROM {s}escapement_records r" +
		" WHERE r.keep_until <= $1 ORDER BY r.keep_until LIMIT $2 FOR UPDATE SKIP LOCKED)," +
		"gone AS (DELETE FROM {s}escapement_records r WHERE r.ctid = ANY(ARRAY(SELECT place FROM due WHERE over)) RETURNING 1) " +
		"SELECT (SELECT count(*) FROM due),(SELECT count(*) FROM gone)"
}

// insertMissing inserts the records whose keys are missing, in the order of
// their keys: so two batches never wait for each other in a circle.
func insertMissing() string {
	var names, values []string
	for _, c := range insertColumns() {
		name, value := c[0], "u."+c[0]
		for _, n := range append(numbers[:len(numbers):len(numbers)], keepUntil) {
			if n.name == name {
				value = n.write()
			}
		}
		names, values = append(names, name), append(values, value)
	}
	return "INSERT INTO {s}escapement_records (" + strings.Join(names, ",") + ") SELECT " + strings.Join(values, ",") +
		" FROM " + unnest(1, insertColumns()) +
		" WHERE NOT EXISTS (SELECT FROM {s}escapement_records r WHERE r.id = u.id OFFSET 0) ORDER BY u.id ON CONFLICT (id) DO NOTHING RETURNING id"
}
