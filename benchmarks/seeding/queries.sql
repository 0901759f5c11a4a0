-- Rows as the product leaves them, many at a time, through its own tables; nothing of a table is dropped or rebuilt.
-- Every statement is of one connection: the function below is the session's own.

-- name: make_chain
-- The tail of a log as its records stand. The product chains under the head's lock, a commit at a time, to the same value.
CREATE OR REPLACE FUNCTION pg_temp.seeded_tail(p_session text) RETURNS bytea
LANGUAGE plpgsql AS $$
DECLARE v_tail bytea := sha256(convert_to(p_session, 'UTF8')); v_record record;
BEGIN
  FOR v_record IN SELECT seq, turn, digest FROM records WHERE session_id = p_session ORDER BY seq LOOP
    v_tail := sha256(v_tail || int8send(v_record.seq) || int4send(coalesce(v_record.turn, 0)) || v_record.digest);
  END LOOP;
  RETURN v_tail;
END $$

-- name: owners
INSERT INTO owners (id) SELECT %(owner)s::text || n FROM generate_series(1, %(owners)s::int) n ON CONFLICT DO NOTHING

-- name: turns
-- Whole turns, `turns_each` of each session, in the order of their sessions; ids are of now, as the product's are.
INSERT INTO turns (id, session_id, owner, position, number, origin, status, outcome, fingerprint, message, run_id, agent,
                   agent_revision, admitted_seq, opened_at, started_seq, opened_seq, ended_at, usage, end_commit, epoch)
  SELECT uuidv7(), %(session)s::text || s, %(owner)s::text || (s %% %(owners)s::int + 1), n, n, 'user', 'ended', 'completed', %(print)s, %(message)s,
         gen_random_uuid()::text, %(agent)s, %(revision)s, (n - 1) * %(records_each)s::int, clock_timestamp(),
         (n - 1) * %(records_each)s::int + 1, (n - 1) * %(records_each)s::int + %(records_open)s::int, clock_timestamp(), '{}', '1:end', 1
    FROM generate_series(%(first)s::int, %(last)s::int) s, generate_series(1, %(turns_each)s::int) n

-- name: records
-- The records of every turn that has none yet, from texts that name turn, run and session by placeholders.
INSERT INTO records (session_id, seq, turn, kind, at, data, digest)
  SELECT r.session_id, r.seq, r.turn, r.kind, r.at, r.data, record_digest_v1(r.kind, r.data)
    FROM (SELECT t.session_id, t.started_seq + p.n - 1 AS seq, t.number AS turn, p.kind, t.opened_at AS at,
                 replace(replace(replace(p.data, '~turn~', t.id::text), '~run~', t.run_id), '~session~', t.session_id) AS data
            FROM generate_series(%(first)s::int, %(last)s::int) s
                 JOIN turns t ON t.session_id = %(session)s::text || s
                 CROSS JOIN unnest(%(kinds)s::text[], %(texts)s::text[]) WITH ORDINALITY AS p (kind, data, n)) r

-- name: keys
INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
  SELECT t.session_id, k.space, CASE k.space WHEN 'turn' THEN t.id::text ELSE t.run_id END,
         CASE k.space WHEN 'turn' THEN t.fingerprint ELSE '' END, t.id::text
    FROM generate_series(%(first)s::int, %(last)s::int) s
         JOIN turns t ON t.session_id = %(session)s::text || s
         CROSS JOIN (VALUES ('run'), ('turn')) AS k (space)

-- name: sessions
INSERT INTO sessions (id, owner, create_print, title, tail, seq, revision, next_position, next_number)
  SELECT %(session)s::text || s, %(owner)s::text || (s %% %(owners)s::int + 1), %(print)s, 'seeded', pg_temp.seeded_tail(%(session)s::text || s),
         %(turns_each)s::int * %(records_each)s::int, %(turns_each)s::int * 2, %(turns_each)s::int + 1, %(turns_each)s::int + 1
    FROM generate_series(%(first)s::int, %(last)s::int) s

-- name: settle
-- What autovacuum would do some day, done now, so that it does it in no measured block.
VACUUM (FREEZE, ANALYZE) turns, records, session_keys, sessions, owners

-- name: checkpoint
CHECKPOINT

-- name: flush
-- The session's statistics are handed in as this statement ends, not some day.
SELECT pg_stat_force_next_flush()

-- name: pages
SELECT (blks_hit + blks_read)::bigint AS pages FROM pg_stat_database WHERE datname = %(database)s

-- name: rows
SELECT coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)::bigint AS rows FROM pg_stat_user_tables

-- name: lose
-- As if the worker that holds these turns had fallen silent so long ago.
UPDATE turns SET expires_at = clock_timestamp() - interval '1 second' WHERE id = ANY (%(ids)s::uuid[])

-- name: age
-- As if nobody had been woken for these turns when they came.
UPDATE turns SET due_at = due_at - interval '1 minute' WHERE status = 'ready' AND id = ANY (%(ids)s::uuid[])

-- name: lose_again
-- As if this loss were the first one: what is measured is a recovery, not how many of them a turn is given.
UPDATE turns SET expires_at = clock_timestamp() - interval '1 second', attempts = 0, alive_losses = 0, suspect = false
  WHERE status = 'running'

-- name: claimed_at
SELECT (extract(epoch FROM expires_at) - %(lease_s)s)::double precision AS at FROM turns WHERE status = 'running'
