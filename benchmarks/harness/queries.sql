-- What a benchmark reads of the server it measures; none of it is the product's.

-- name: writes
-- Neither waits for the statistics of other sessions: a transaction takes a number when it first writes.
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS transactions, (pg_current_wal_insert_lsn() - '0/0')::bigint AS wal_bytes

-- name: activity
-- Sessions hand their statistics in late: exact once they have ended.
SELECT xact_commit AS commits, tup_inserted + tup_updated + tup_deleted AS rows_written
  FROM pg_stat_database WHERE datname = current_database()

-- name: sessions_of_others
SELECT count(*) AS open FROM pg_stat_activity
  WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'

-- name: worker_pids
SELECT pid FROM workers

-- name: owes_turns
SELECT EXISTS (SELECT 1 FROM turns WHERE status IN ('queued', 'ready', 'running', 'waiting')
                 AND (%(agents)s::text[] IS NULL OR agent = ANY (%(agents)s::text[]))) AS owes

-- name: waiting_turns
SELECT count(*) AS waiting FROM turns WHERE status IN ('queued', 'ready')

-- name: ends
-- When the turns of one agent ended, after the `skipped` ones that ended before, in seconds.
SELECT extract(epoch FROM ended_at)::double precision AS at, outcome FROM turns
  WHERE agent = %(agent)s AND ended_at IS NOT NULL ORDER BY ended_at OFFSET %(skipped)s
