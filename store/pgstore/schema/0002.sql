-- What is owed to token buckets. A bucket that is full has no row, or one that
-- the sweeper may remove.
CREATE TABLE escapement_limits (
  id         bytea  PRIMARY KEY, -- the rule's name, a zero byte, the subject
  state      bytea  NOT NULL,    -- escapement_buckets spells it out
  keep_until bigint NOT NULL     -- it is full before this time, in microseconds since 1970
) WITH (fillfactor = 70);
-- State is in no index and keep_until seldom changes: most updates stay within
-- their page, and a page must have room for that.
ALTER TABLE escapement_limits SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX escapement_limits_keep ON escapement_limits (keep_until);

-- For people: SELECT * FROM escapement_buckets;
CREATE VIEW escapement_buckets AS
SELECT convert_from(substr(id, 1, position('\x00'::bytea IN id) - 1), 'UTF8') AS rule,
       encode(substr(id, position('\x00'::bytea IN id) + 1), 'escape') AS subject,
       to_timestamp(('x' || encode(substr(state, 2, 8), 'hex'))::bit(64)::bigint / 1e6) AS full_at,
       ('x' || encode(substr(state, 26, 8), 'hex'))::bit(64)::bigint AS quota,
       make_interval(secs => ('x' || encode(substr(state, 18, 8), 'hex'))::bit(64)::bigint / 1e6) AS "window",
       ('x' || encode(substr(state, 34, 8), 'hex'))::bit(64)::bigint AS burst,
       to_timestamp(keep_until / 1e6) AS keep_until
FROM escapement_limits;
