-- Statements of the turn queue. Rules that branch under a lock are functions of the migrations.

-- name: admit
SELECT result, turn_id, run_id, turn_position, status, after_seq, detail, held, holders FROM turn_admit_v3(
  %(id)s, %(session)s, %(owner)s, %(key)s, %(print)s, %(run)s, %(message)s, %(command)s, %(meta)s, %(agent)s,
  %(revision)s, %(on_busy)s, %(on_worker_loss)s, %(priority)s::int, %(deadline)s::timestamptz, %(max_duration_s)s::real,
  %(resumes)s::int, %(session_max)s::int, %(owner_max)s::int, %(is_full)s, %(attempts_max)s::int)

-- name: begin
SELECT result, turn_id, number, seq, started_seq, epoch, token, attempts, open_for_s FROM turn_begin_v2(
  %(id)s, %(session)s, %(owner)s, %(key)s, %(print)s, %(run)s, %(message)s, %(command)s, %(meta)s, %(agent)s,
  %(revision)s, %(on_worker_loss)s, %(priority)s::int, %(max_duration_s)s::real, %(attempts_max)s::int, %(holder)s,
  %(lease_s)s::real, %(commit)s, %(title)s, %(kinds)s::text[], %(texts)s::text[], %(digests)s::bytea[],
  %(origin)s, %(claims)s::text[], %(resumes)s::int)

-- name: abandon
SELECT turn_abandon_v1(%(id)s, %(epoch)s::bigint, %(token)s) AS abandoned

-- name: claim
SELECT * FROM turn_claim_v4(
  %(worker)s, %(pool)s, %(revisions)s::text[], %(places)s::int, %(background)s::int, %(lease_s)s::real, %(cursor)s,
  %(hints)s::uuid[], %(oldest_first)s, %(takeovers)s, %(suspects)s::int, %(attempts_max)s::int, %(running_max)s::int, false)

-- name: open
SELECT result, number, seq, started_seq FROM turn_open_v3(%(id)s, %(session)s, %(epoch)s::bigint, %(token)s, %(commit)s, %(title)s,
  %(kinds)s::text[], %(texts)s::text[], %(digests)s::bytea[], %(claims)s::text[], %(look)s)

-- name: refuse
SELECT turn_refuse_v1(%(id)s, %(session)s, %(epoch)s::bigint, %(token)s, %(code)s, %(failure)s, %(retry_s)s::real) AS result

-- name: append
SELECT result, seq, revision FROM turn_append_v2(%(id)s, %(session)s, %(epoch)s::bigint, %(token)s, %(commit)s, %(stepped)s,
  %(kinds)s::text[], %(texts)s::text[], %(digests)s::bytea[], %(calls)s::jsonb, %(expect)s::bigint, %(extend_s)s::real)

-- name: end
SELECT result, seq, promoted, pending FROM turn_end_v3(%(id)s, %(session)s, %(epoch)s::bigint, %(token)s, %(commit)s,
  %(kinds)s::text[], %(texts)s::text[], %(digests)s::bytea[], %(calls)s::jsonb, %(outcome)s, %(code)s, %(failure)s, %(usage)s,
  %(counts)s)

-- name: cancel
SELECT result, status, outcome, code, holder, session_id, after_seq
  FROM turn_cancel_v1(%(id)s, %(owner)s, %(attempts_max)s::int)

-- name: release
SELECT turn_release_v1(%(id)s, %(epoch)s::bigint, %(token)s, %(due_in_s)s::real) AS released

-- name: renew
SELECT turn_id, result FROM turn_renew_v1(%(ids)s::uuid[], %(tokens)s::uuid[], %(lease_s)s::real)

-- name: watch
SELECT turn_id, result, epoch, token FROM turn_watch_v1(%(worker)s, %(ids)s::uuid[], %(tokens)s::uuid[])

-- name: find_dead
-- The clock is read in a subquery, here and below: as a plain call it could not bound an index scan.
SELECT id FROM turns
  WHERE status = 'running' AND expires_at < (SELECT clock_timestamp()) AND turn_is_dead_v1(turns, clock_timestamp(), %(attempts_max)s::int)
  ORDER BY expires_at LIMIT %(limit)s

-- name: reap
SELECT id FROM turn_reap_v2(%(ids)s::uuid[], %(attempts_max)s::int) AS done (id)

-- name: find_late
SELECT id FROM turns WHERE deadline < (SELECT clock_timestamp()) AND status IN ('queued', 'ready') AND number IS NULL
  ORDER BY deadline LIMIT %(limit)s

-- name: expire
SELECT id FROM turn_expire_v2(%(ids)s::uuid[]) AS done (id)

-- name: get
SELECT t.id, t.session_id, t.owner, t.run_id, t.position, t.number, t.origin, t.status, t.outcome, t.code,
       t.last_failure, t.agent, t.agent_revision, t.priority, t.attempts, t.epoch, t.usage, t.key, t.resumes, t.admitted_seq, t.admitted_at,
       t.opened_at, t.ended_at, t.deadline, t.started_seq, t.lease_owner, coalesce(isfinite(t.expires_at), false) AS leased,
       s.open_turn = t.id AS is_open,
       s.open_turn = t.id AND (t.status <> 'running' OR t.expires_at < clock_timestamp()) AS unheld,
       t.on_worker_loss, clock_timestamp() AS now
  FROM turns t JOIN sessions s ON s.id = t.session_id WHERE t.id = %(id)s AND t.owner = %(owner)s

-- name: get_many
-- As `get`, for what a sweep touched.
SELECT t.id, t.session_id, t.owner, t.run_id, t.position, t.number, t.origin, t.status, t.outcome, t.code,
       t.last_failure, t.agent, t.agent_revision, t.priority, t.attempts, t.epoch, t.usage, t.key, t.resumes, t.admitted_seq, t.admitted_at,
       t.opened_at, t.ended_at, t.deadline, t.started_seq, t.lease_owner, coalesce(isfinite(t.expires_at), false) AS leased,
       s.open_turn = t.id AS is_open,
       s.open_turn = t.id AND (t.status <> 'running' OR t.expires_at < clock_timestamp()) AS unheld,
       t.on_worker_loss, clock_timestamp() AS now
  FROM turns t JOIN sessions s ON s.id = t.session_id WHERE t.id = ANY (%(ids)s::uuid[])

-- name: standings
SELECT id, status, number, outcome, code FROM turns WHERE id = ANY (%(ids)s::uuid[])

-- name: calls
SELECT invocation_id, step, ordinal, name, argument_digest, token, state, result FROM tool_calls
  WHERE session_id = %(session)s AND turn_id = %(id)s ORDER BY step, ordinal

-- name: seen
INSERT INTO workers (id, host, pid, queues, revisions, capacity, held, version, draining, lag_s, overloaded)
  VALUES (%(id)s, %(host)s, %(pid)s, %(queues)s::text[], %(revisions)s::text[], %(capacity)s, %(held)s, %(version)s, %(draining)s,
    %(lag_s)s, %(overloaded)s)
  ON CONFLICT (id) DO UPDATE SET capacity = excluded.capacity, held = excluded.held, draining = excluded.draining,
    lag_s = excluded.lag_s, overloaded = excluded.overloaded, last_seen = clock_timestamp()

-- name: gone
DELETE FROM workers WHERE id = %(id)s

-- name: forget_silent
DELETE FROM workers WHERE last_seen < clock_timestamp() - make_interval(secs => %(older_s)s) RETURNING id

-- name: workers
SELECT id, host, pid, queues, revisions, capacity, held, version, draining, lag_s, overloaded, started_at,
       extract(epoch FROM clock_timestamp() - last_seen)::double precision AS silent_s
  FROM workers ORDER BY id LIMIT 1000

-- name: backlog
-- Every count is bounded, so that its cost follows what is asked, not what is owed.
SELECT (SELECT count(*) FROM (SELECT 1 FROM turns WHERE pool = %(pool)s AND status = 'ready' LIMIT 10000) x) AS ready,
       (SELECT count(*) FROM (SELECT 1 FROM turns WHERE pool = %(pool)s AND status = 'queued' LIMIT 10000) x) AS queued,
       (SELECT count(*) FROM (SELECT 1 FROM turns WHERE pool = %(pool)s AND status = 'running' LIMIT 10000) x) AS running,
       coalesce(greatest(0, (SELECT extract(epoch FROM clock_timestamp() - min(due_at)) FROM turns
                              WHERE pool = %(pool)s AND status = 'ready')), 0)::double precision AS oldest_due_s

-- name: unserved
-- Ready rows by revision, found by a loose scan; the caller drops the served ones.
WITH RECURSIVE r (revision) AS (
  (SELECT agent_revision FROM turns WHERE status = 'ready' AND pool = %(pool)s ORDER BY agent_revision LIMIT 1)
  UNION ALL
  SELECT (SELECT agent_revision FROM turns WHERE status = 'ready' AND pool = %(pool)s AND agent_revision > r.revision
            ORDER BY agent_revision LIMIT 1) FROM r WHERE r.revision IS NOT NULL)
SELECT revision, (SELECT count(*) FROM (SELECT 1 FROM turns WHERE status = 'ready' AND pool = %(pool)s
                    AND agent_revision = r.revision LIMIT 10000) x) AS ready
  FROM r WHERE revision IS NOT NULL LIMIT 100

-- name: move_revision
SELECT turn_move_revision_v1(%(old)s, %(new)s, %(limit)s::int) AS moved

-- name: waiting
-- In the index's order, so that no plan looks at finished rows.
SELECT count(*) AS waiting FROM (SELECT 1 FROM turns WHERE status IN ('queued', 'ready') ORDER BY owner LIMIT %(limit)s) x

-- name: overdue
-- The oldest one first: without an order the planner may look for any such row among all that ever ended.
SELECT coalesce((SELECT due_at FROM turns WHERE pool = %(pool)s AND status = 'ready' ORDER BY due_at LIMIT 1)
                < clock_timestamp() - make_interval(secs => %(older_s)s), false) AS overdue

-- name: lost
SELECT id, attempts, ended_at FROM turns WHERE status = 'ended' AND code = 'turn.lease'
  ORDER BY ended_at DESC LIMIT %(limit)s

-- name: parked
-- What a resume is made of that goes on from a turn which was given up; whose it is comes from the row.
SELECT session_id, owner, number, message, command, meta, agent, agent_revision, on_worker_loss, priority, max_duration_s
  FROM turns WHERE id = %(id)s AND status = 'ended' AND code = 'turn.lease' AND origin = 'user'

-- name: retry
SELECT turn_retry_v1(%(id)s) AS result
