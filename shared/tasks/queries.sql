-- Statements of background tasks. Rules that branch under a lock are functions of migration 0003.

-- name: start
SELECT result, turn_id, seq FROM task_start_v1(
  %(task)s, %(turn)s, %(parent)s, %(owner)s, %(print)s, %(text)s, %(digest)s, %(inherit)s, %(tail)s, %(create_print)s, %(run)s,
  %(turn_print)s, %(message)s, %(meta)s, %(agent)s, %(revision)s, %(on_worker_loss)s, %(deadline_s)s::double precision,
  %(max_duration_s)s::real, %(max_running)s::int, %(owner_max)s::int, %(is_full)s)

-- name: take
SELECT * FROM task_take_v1(%(task)s, %(owner)s, %(worker)s, %(lease_s)s::real, %(attempts_max)s::int)

-- name: cancel
SELECT c.result, c.turn_id, c.holder, c.after_seq
  FROM task_cancel_v1(%(parent)s, %(task)s, %(owner)s, %(text)s, %(digest)s) c

-- name: status
-- By the key, whatever became of the child. What ends an unfinished task is looked for among its turn's own records.
SELECT k.key AS task, s.id AS parent, k.created_at AS started_at, t.id AS turn, t.status, t.number IS NOT NULL AS opened, t.outcome,
       t.code, t.last_failure AS failure, t.ended_at, t.deadline, b.data AS began, e.kind AS end_kind, e.data AS end_data,
       EXISTS (SELECT 1 FROM deliveries d WHERE d.child = k.key AND d.parent = s.id) AS owed
  FROM sessions s JOIN session_keys k ON k.session_id = s.id AND k.space = 'task' AND k.key = %(task)s
  LEFT JOIN LATERAL task_record_v1(s.id, split_part(k.answer, ':', 2)::bigint) b ON true
  LEFT JOIN turns t ON t.id = split_part(k.answer, ':', 1)::uuid
  LEFT JOIN LATERAL task_record_v1(t.session_id, CASE WHEN t.ended_at IS NULL AND t.number IS NOT NULL THEN task_result_seq_v1(t)
                                                      ELSE t.result_seq END) e ON true
  WHERE s.id = %(parent)s AND s.owner = %(owner)s

-- name: list
-- Keyset pages along the primary key, up to and with the task that fills a page.
SELECT * FROM (
  SELECT page.*, sum(coalesce(octet_length(began), 0) + coalesce(octet_length(end_data), 0)) OVER (ORDER BY task DESC)
                 - coalesce(octet_length(began), 0) - coalesce(octet_length(end_data), 0) AS before
    FROM (SELECT k.key AS task, s.id AS parent, k.created_at AS started_at, t.id AS turn, t.status, t.number IS NOT NULL AS opened,
                 t.outcome, t.code, t.last_failure AS failure, t.ended_at, t.deadline, b.data AS began, e.kind AS end_kind,
                 e.data AS end_data,
                 EXISTS (SELECT 1 FROM deliveries d WHERE d.child = k.key AND d.parent = s.id) AS owed
            FROM sessions s
            LEFT JOIN LATERAL (SELECT * FROM session_keys k WHERE k.session_id = s.id AND k.space = 'task'
                                 AND (%(before)s::text IS NULL OR k.key < %(before)s::text)
                                 ORDER BY k.key DESC LIMIT %(limit)s) k ON true
            LEFT JOIN LATERAL task_record_v1(s.id, split_part(k.answer, ':', 2)::bigint) b ON true
            LEFT JOIN turns t ON t.id = split_part(k.answer, ':', 1)::uuid
            LEFT JOIN LATERAL task_record_v1(t.session_id, CASE WHEN t.ended_at IS NULL AND t.number IS NOT NULL
                                                                THEN task_result_seq_v1(t) ELSE t.result_seq END) e ON true
            WHERE s.id = %(parent)s AND s.owner = %(owner)s) page) sized
  WHERE before < %(max_bytes)s::bigint ORDER BY task DESC

-- name: owed
-- Up to and with the result that fills a batch. A child that was removed has left what its parent must know.
SELECT * FROM (
  SELECT page.*, sum(coalesce(octet_length(end_data), 0)) OVER (ORDER BY due_at, task) - coalesce(octet_length(end_data), 0) AS before
    FROM (SELECT d.child AS task, d.parent, d.tries, d.due_at, md5(d.body) AS version, coalesce(s.owner, '') AS owner, t.status,
                 t.number IS NOT NULL AS opened, t.outcome, t.code, t.last_failure AS failure, e.kind AS end_kind, e.data AS end_data
            FROM (SELECT * FROM deliveries WHERE due_at <= (SELECT clock_timestamp()) ORDER BY due_at LIMIT %(limit)s) d
            LEFT JOIN sessions s ON s.id = d.parent
            LEFT JOIN turns t ON t.id = (d.body::jsonb ->> 'turn')::uuid AND NOT d.body::jsonb ? 'lost'
            LEFT JOIN LATERAL task_record_v1(t.session_id, t.result_seq) e ON true) page) sized
  WHERE before < %(max_bytes)s::bigint ORDER BY due_at, task

-- name: owed_to
SELECT * FROM (
  SELECT page.*, sum(coalesce(octet_length(end_data), 0)) OVER (ORDER BY due_at, task) - coalesce(octet_length(end_data), 0) AS before
    FROM (SELECT d.child AS task, d.parent, d.tries, d.due_at, md5(d.body) AS version, coalesce(s.owner, '') AS owner, t.status,
                 t.number IS NOT NULL AS opened, t.outcome, t.code, t.last_failure AS failure, e.kind AS end_kind, e.data AS end_data
            FROM (SELECT * FROM deliveries WHERE parent = %(parent)s ORDER BY due_at LIMIT %(limit)s) d
            LEFT JOIN sessions s ON s.id = d.parent
            LEFT JOIN turns t ON t.id = (d.body::jsonb ->> 'turn')::uuid AND NOT d.body::jsonb ? 'lost'
            LEFT JOIN LATERAL task_record_v1(t.session_id, t.result_seq) e ON true) page) sized
  WHERE before < %(max_bytes)s::bigint ORDER BY due_at, task

-- name: deliver
SELECT result, seq, turn_id FROM task_deliver_v1(%(task)s, %(parent)s, %(version)s, %(id)s, %(source)s, %(content)s, %(text)s, %(digest)s,
  %(attempts_max)s::int, %(wait)s)

-- name: put_off
UPDATE deliveries SET tries = tries + 1, due_at = clock_timestamp() + make_interval(secs => %(in_s)s::double precision)
  WHERE child = %(task)s AND md5(body) = %(version)s

-- name: waiting
SELECT t.id FROM turns t JOIN sessions s ON s.id = t.parent
  WHERE t.parent = %(parent)s AND s.owner = %(owner)s AND t.status IN ('queued', 'ready', 'running', 'waiting')
    AND t.status = 'ready' ORDER BY t.id LIMIT 20

-- name: find_late
-- The clock is read in a subquery: as a plain call it could not bound an index scan.
SELECT id FROM turns WHERE origin = 'task' AND deadline IS NOT NULL AND number IS NOT NULL AND status IN ('ready', 'running', 'waiting')
  AND deadline < (SELECT clock_timestamp()) ORDER BY deadline LIMIT %(limit)s

-- name: end_late
SELECT turn_id, session_id, outcome, holder, after_seq FROM task_end_late_v1(%(ids)s::uuid[])
