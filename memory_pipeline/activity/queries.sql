-- Statements of the activity pass; rules that branch under a lock are functions of migration 0001.

-- name: load
SELECT processor, version, session_id, owner, through_seq, pending FROM activity_progress WHERE job_id = %(job)s

-- name: pin
SELECT activity_pin_v1(%(job)s, %(epoch)s::bigint, %(token)s, %(through)s::bigint, %(pending)s) AS result

-- name: advance
SELECT activity_advance_v1(%(job)s, %(epoch)s::bigint, %(token)s, %(through)s::bigint, %(to)s::bigint, %(pending)s) AS result

-- name: owe_again
SELECT job_owe_v1('activity', %(job)s, %(owner)s)

-- name: register
INSERT INTO activity_processors (processor, version) VALUES (%(processor)s, %(version)s)
  ON CONFLICT (processor, version) DO UPDATE SET active = true WHERE NOT activity_processors.active

-- name: retire
UPDATE activity_processors SET active = false WHERE processor = %(processor)s AND version = %(version)s

-- name: inspect
SELECT p.processor, p.version, p.session_id, p.through_seq, p.pending, p.advanced_at, coalesce(j.status, 'idle') AS status,
       coalesce(j.attempts + j.waits, 0) AS attempts, j.last_failure
  FROM activity_progress p LEFT JOIN jobs j ON j.pool = 'activity' AND j.id = p.job_id
  WHERE p.session_id = %(session)s AND p.owner = %(owner)s ORDER BY p.processor, p.version
