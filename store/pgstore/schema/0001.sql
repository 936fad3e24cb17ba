-- Times are microseconds since 1970-01-01 UTC, durations are microseconds;
-- NULL is "no such time". Enumerations are the numbers that escapement_keys
-- spells out.
CREATE TABLE escapement_records (
  id           bytea    PRIMARY KEY, -- keyed hash of scope and client's key
  tenant       text     NOT NULL,
  state        smallint NOT NULL DEFAULT 0, -- 0 free, 1 held, 2 done, 3 archived
  prints       text,                 -- fingerprints: hash tag hash tag ...
  owner        bytea,
  token        bigint   NOT NULL DEFAULT 0,
  lease        bigint   NOT NULL DEFAULT 0,
  retention    bigint   NOT NULL DEFAULT 0,
  remember     bigint   NOT NULL DEFAULT 0,
  quiet        bigint   NOT NULL DEFAULT 0,
  on_unknown   smallint NOT NULL DEFAULT 0, -- 0 hold, 1 retry, 2 probe, 3 fail
  method       text     NOT NULL DEFAULT '',
  route        text     NOT NULL DEFAULT '',
  trace        text     NOT NULL DEFAULT '',
  attempt      bigint   NOT NULL DEFAULT 0,
  takeover     boolean  NOT NULL DEFAULT false,
  lease_end    bigint,
  found        smallint NOT NULL DEFAULT 0, -- 0 free, 1 unknown, 2 retryable
  found_lease  bigint,
  found_steps  integer  NOT NULL DEFAULT 0,
  released     bytea,
  class        smallint NOT NULL DEFAULT 0, -- 1 succeeded, 2 failed_final, 3 failed_retryable
  status       integer  NOT NULL DEFAULT 0,
  not_kept     boolean  NOT NULL DEFAULT false,
  retry_window bigint   NOT NULL DEFAULT 0,
  source       smallint NOT NULL DEFAULT 0, -- 0 attempt, 1 probe, 2 operator, 3 policy
  window_end   bigint,
  expires      bigint,
  steps        integer  NOT NULL DEFAULT 0, -- how many rows of escapement_steps
  marks        text,                 -- owner until owner until ...
  created      bigint   NOT NULL,
  updated      bigint   NOT NULL,
  revision     bigint   NOT NULL,
  keep_until   bigint,               -- when the sweeper looks at it; NULL: never
  payload      bytea
);
-- Payloads come compressed, or are too small to gain from it.
ALTER TABLE escapement_records ALTER COLUMN payload SET STORAGE EXTERNAL;
-- Every record is written twice at least: vacuum before the table doubles.
ALTER TABLE escapement_records SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX escapement_records_keep ON escapement_records (keep_until) WHERE keep_until IS NOT NULL;
CREATE INDEX escapement_records_held ON escapement_records (id) WHERE state = 1;

CREATE TABLE escapement_steps (
  record       bytea   NOT NULL, -- escapement_records.id
  n            integer NOT NULL,
  name         text    NOT NULL,
  done         boolean NOT NULL,
  provider_key text    NOT NULL,
  provider_id  text    NOT NULL,
  started      bigint,
  ended        bigint,
  answer       bytea,
  PRIMARY KEY (record, n)
);

CREATE TABLE escapement_settings (
  name    text   PRIMARY KEY,
  value   bytea,
  version bigint NOT NULL,
  updated bigint NOT NULL
);

CREATE TABLE escapement_audit (
  seq      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at       bigint NOT NULL,
  who      text NOT NULL,
  what     text NOT NULL,
  "on"     text NOT NULL,
  "before" text NOT NULL,
  "after"  text NOT NULL,
  why      text NOT NULL
);

-- For people: SELECT * FROM escapement_keys;
CREATE VIEW escapement_keys AS
SELECT encode(id, 'hex') AS key, tenant, method, route, trace,
       CASE state WHEN 0 THEN 'free' WHEN 1 THEN 'held' WHEN 2 THEN 'done' ELSE 'archived' END AS state,
       CASE class WHEN 1 THEN 'succeeded' WHEN 2 THEN 'failed_final' WHEN 3 THEN 'failed_retryable' END AS class,
       status, attempt, token, takeover, steps,
       CASE source WHEN 0 THEN 'attempt' WHEN 1 THEN 'probe' WHEN 2 THEN 'operator' ELSE 'policy' END AS source,
       CASE on_unknown WHEN 0 THEN 'hold' WHEN 1 THEN 'retry' WHEN 2 THEN 'probe' ELSE 'fail' END AS on_unknown,
       to_timestamp(created / 1e6) AS created,
       to_timestamp(updated / 1e6) AS updated,
       to_timestamp(lease_end / 1e6) AS lease_end,
       to_timestamp(expires / 1e6) AS expires,
       octet_length(payload) AS payload_bytes
FROM escapement_records;
