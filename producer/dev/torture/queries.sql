-- What the torture reads of the database. Every figure in them is by the database's clock.

-- name: held
-- Turns that are held, and for how long past their lease (negative: it has not passed).
SELECT id, session_id, owner, epoch, token, lease_owner, on_worker_loss, attempts, suspect,
       extract(epoch FROM clock_timestamp() - expires_at)::double precision AS overdue_s
  FROM turns WHERE status = 'running'

-- name: unfinished
SELECT id, session_id, status FROM turns WHERE status IN ('queued', 'ready', 'running', 'waiting')
  ORDER BY admitted_at LIMIT 1000

-- name: recent
-- Turns that ended last: their wakes may come late.
SELECT id FROM turns WHERE status IN ('ended', 'cancelled', 'refused', 'expired') ORDER BY ended_at DESC LIMIT 20

-- name: turns
SELECT id, session_id, owner, origin, key, number, status, outcome, code, message, run_id, attempts, epoch FROM turns ORDER BY id

-- name: unsettled_calls
-- Calls that a turn with a reply left without a result. A turn that was ended from outside owes none.
SELECT c.turn_id, c.invocation_id, c.state FROM tool_calls c JOIN turns t ON t.id = c.turn_id
  WHERE c.state IN ('planned', 'started') AND t.outcome IN ('completed', 'partial')

-- name: done_calls
SELECT turn_id, token FROM tool_calls WHERE state = 'done'

-- name: owed
-- What is owed besides turns: results to parents, and items of the memory pools that somebody serves here.
SELECT (SELECT count(*) FROM deliveries) AS deliveries,
       (SELECT count(*) FROM jobs WHERE pool = 'remember' AND status IN ('ready', 'running')) AS intents

-- name: sessions
SELECT id, owner FROM sessions ORDER BY id
