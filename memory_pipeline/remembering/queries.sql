-- Statements of remembering; rules that branch under a lock are functions of migration 0001.

-- name: admit
SELECT result, job_id FROM intent_admit_v1(%(owner)s, %(id)s, %(intent)s, %(owner_max)s::int)

-- name: load
SELECT owner, id, intent, version, progress, proposal, command, attempt, outcome, why, applied
  FROM memory_intents WHERE job_id = %(job)s

-- name: save
SELECT intent_save_v1(%(job)s, %(epoch)s::bigint, %(token)s, %(version)s::bigint, %(progress)s, %(proposal)s,
  %(command)s, %(attempt)s::int, %(outcome)s, %(why)s, %(applied)s) AS result

-- name: get
SELECT i.id, i.intent, i.progress, i.outcome, i.why, i.created_at, i.updated_at, i.completed_at, j.status, j.attempts + j.waits AS attempts,
       j.last_failure
  FROM memory_intents i LEFT JOIN jobs j ON j.pool = 'remember' AND j.id = i.job_id
  WHERE i.owner = %(owner)s AND i.id = %(id)s

-- name: list
-- Keyset pages over (created_at, id), newest first.
SELECT i.id, i.intent, i.progress, i.outcome, i.why, i.created_at, i.updated_at, i.completed_at, j.status, j.attempts + j.waits AS attempts,
       j.last_failure
  FROM memory_intents i LEFT JOIN jobs j ON j.pool = 'remember' AND j.id = i.job_id
  WHERE i.owner = %(owner)s
    AND (%(before_at)s::timestamptz IS NULL OR (i.created_at, i.id) < (%(before_at)s::timestamptz, %(before_id)s::text))
  ORDER BY i.created_at DESC, i.id DESC LIMIT %(limit)s
