-- Statements of the inbox. Rules that branch under a lock are functions of migrations 0003 and 0004.

-- name: deliver
SELECT result, seq, pending, turn_id FROM inbox_deliver_v2(
  %(session)s, %(owner)s, %(id)s, %(source)s, %(content)s, %(text)s, %(digest)s, %(meta)s, %(agent)s, %(revision)s,
  %(on_worker_loss)s, %(max_pending)s::int, %(attempts_max)s::int, %(turn_attempts_max)s::int)

-- name: waiting_items
-- One row of the head without an item says that the session is there.
SELECT i.id, i.source, i.content, i.seq, i.attempts, i.meta, i.agent, i.agent_revision
  FROM sessions s LEFT JOIN inbox_items i ON i.session_id = s.id AND i.turn_id IS NULL
  WHERE s.id = %(session)s AND s.owner = %(owner)s ORDER BY i.seq

-- name: find_due
-- Oldest first, in the index's order; a session stands there once for each item that waits in it.
SELECT session_id FROM inbox_items WHERE turn_id IS NULL AND due_at <= (SELECT clock_timestamp())
  ORDER BY due_at LIMIT %(limit)s

-- name: recover
SELECT id FROM inbox_recover_v1(%(sessions)s::text[]) AS ready (id)

-- name: backlog
-- Bounded, so that its cost follows what is asked, not what waits.
SELECT count(*) AS waiting,
       coalesce(greatest(0, extract(epoch FROM clock_timestamp() - min(delivered_at))), 0)::double precision AS oldest_s
  FROM (SELECT delivered_at FROM inbox_items WHERE turn_id IS NULL ORDER BY due_at LIMIT 10000) waiting
