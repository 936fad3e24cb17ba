-- Times are microseconds since 1970-01-01 UTC, durations are microseconds;
-- NULL is "no such time". Enumerations are the numbers that escapement_keys
-- spells out.
CREATE TABLE escapement_records (
  seq         INTEGER PRIMARY KEY,
  id          BLOB    NOT NULL UNIQUE, -- keyed hash of scope and client's key
  tenant      TEXT    NOT NULL,
  state       INTEGER NOT NULL, -- 0 free, 1 held, 2 done, 3 archived
  prints      TEXT,             -- fingerprints: hash tag hash tag ...
  owner       BLOB,
  token       INTEGER NOT NULL,
  lease       INTEGER NOT NULL,
  retention   INTEGER NOT NULL,
  remember    INTEGER NOT NULL,
  quiet       INTEGER NOT NULL,
  on_unknown  INTEGER NOT NULL, -- 0 hold, 1 retry, 2 probe, 3 fail
  method      TEXT    NOT NULL,
  route       TEXT    NOT NULL,
  trace       TEXT    NOT NULL,
  attempt     INTEGER NOT NULL,
  takeover    INTEGER NOT NULL,
  lease_end   INTEGER,
  found       INTEGER NOT NULL, -- 0 free, 1 unknown, 2 retryable
  found_lease INTEGER,
  found_steps INTEGER NOT NULL,
  released    BLOB,
  class       INTEGER NOT NULL, -- 1 succeeded, 2 failed_final, 3 failed_retryable
  status      INTEGER NOT NULL,
  not_kept    INTEGER NOT NULL,
  retry_window INTEGER NOT NULL,
  source      INTEGER NOT NULL, -- 0 attempt, 1 probe, 2 operator, 3 policy
  window_end  INTEGER,
  expires     INTEGER,
  steps       INTEGER NOT NULL, -- how many rows of escapement_steps
  marks       TEXT,             -- owner until owner until ...
  created     INTEGER NOT NULL,
  updated     INTEGER NOT NULL,
  revision    INTEGER NOT NULL,
  keep_until  INTEGER,          -- when the sweeper looks at it; NULL: never
  payload     BLOB              -- last: what comes before is read without it
);
CREATE INDEX escapement_records_keep ON escapement_records (keep_until) WHERE keep_until IS NOT NULL;
CREATE INDEX escapement_records_held ON escapement_records (seq) WHERE state = 1;
CREATE INDEX escapement_records_tenant ON escapement_records (tenant);

CREATE TABLE escapement_steps (
  record       INTEGER NOT NULL, -- escapement_records.seq
  n            INTEGER NOT NULL,
  name         TEXT    NOT NULL,
  done         INTEGER NOT NULL,
  provider_key TEXT    NOT NULL,
  provider_id  TEXT    NOT NULL,
  started      INTEGER,
  ended        INTEGER,
  answer       BLOB,
  PRIMARY KEY (record, n)
) WITHOUT ROWID;

CREATE TABLE escapement_settings (
  name    TEXT    PRIMARY KEY,
  value   BLOB,
  version INTEGER NOT NULL,
  updated INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE escapement_audit (
  seq      INTEGER PRIMARY KEY AUTOINCREMENT,
  at       INTEGER NOT NULL,
  who      TEXT NOT NULL,
  what     TEXT NOT NULL,
  "on"     TEXT NOT NULL,
  "before" TEXT NOT NULL,
  "after"  TEXT NOT NULL,
  why      TEXT NOT NULL
);

-- For people: SELECT * FROM escapement_keys;
CREATE VIEW escapement_keys AS
SELECT lower(hex(id)) AS key, tenant, method, route, trace,
       CASE state WHEN 0 THEN 'free' WHEN 1 THEN 'held' WHEN 2 THEN 'done' ELSE 'archived' END AS state,
       CASE class WHEN 1 THEN 'succeeded' WHEN 2 THEN 'failed_final' WHEN 3 THEN 'failed_retryable' END AS class,
       status, attempt, token, takeover, steps,
       CASE source WHEN 0 THEN 'attempt' WHEN 1 THEN 'probe' WHEN 2 THEN 'operator' ELSE 'policy' END AS source,
       CASE on_unknown WHEN 0 THEN 'hold' WHEN 1 THEN 'retry' WHEN 2 THEN 'probe' ELSE 'fail' END AS on_unknown,
       strftime('%Y-%m-%d %H:%M:%f', created / 1e6, 'unixepoch') AS created,
       strftime('%Y-%m-%d %H:%M:%f', updated / 1e6, 'unixepoch') AS updated,
       strftime('%Y-%m-%d %H:%M:%f', lease_end / 1e6, 'unixepoch') AS lease_end,
       strftime('%Y-%m-%d %H:%M:%f', expires / 1e6, 'unixepoch') AS expires,
       length(payload) AS payload_bytes
FROM escapement_records;
