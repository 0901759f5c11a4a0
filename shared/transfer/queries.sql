-- Statements of transfer, archives and retention: cold paths. Rules that branch under a lock are functions of migration 0003.

-- name: capture
-- One session at one moment. What is counted of facts existed at the statement's start: each of them is found again by its time.
SELECT s.id, s.owner, s.parent, s.create_key, s.create_print, s.title, s.meta, s.state, s.revision, s.next_position, s.next_number, s.retained,
       s.created_at, s.updated_at, s.active_at, s.seq, s.tail, statement_timestamp() AS at,
       greatest((SELECT r.seq FROM records r WHERE r.session_id = s.id ORDER BY r.seq DESC LIMIT 1),
                (SELECT a.last_seq FROM record_archives a WHERE a.session_id = s.id ORDER BY a.last_seq DESC LIMIT 1), 0) AS last_seq,
       (SELECT count(*) FROM turns t WHERE t.session_id = s.id AND t.ended_at <= statement_timestamp()
          AND t.status IN ('ended', 'cancelled', 'refused', 'expired')) AS turns,
       (SELECT count(*) FROM session_keys k WHERE k.session_id = s.id AND k.created_at <= statement_timestamp()) AS keys,
       (SELECT count(*) FROM tool_calls c JOIN turns t ON t.id = c.turn_id WHERE c.session_id = s.id
          AND t.ended_at <= statement_timestamp() AND t.status IN ('ended', 'cancelled', 'refused', 'expired')) AS calls,
       (SELECT count(*) FROM turns t WHERE t.session_id = s.id
          AND t.status IN ('queued', 'ready', 'running', 'waiting')) AS unfinished_turns,
       (SELECT count(*) FROM inbox_items i WHERE i.session_id = s.id) AS waiting_items,
       (SELECT count(*) FROM sessions c JOIN turns t ON t.session_id = c.id WHERE c.parent = s.id AND t.origin = 'task'
          AND t.status IN ('queued', 'ready', 'running', 'waiting')) AS unfinished_tasks,
       (SELECT count(*) FROM deliveries d WHERE d.parent = s.id OR d.child = s.id) AS owed_deliveries,
       coalesce(s.parent_through, 0) AS inherited
  FROM sessions s WHERE s.id = %(id)s AND (%(owner)s::text IS NULL OR s.owner = %(owner)s)

-- name: turn_facts
SELECT * FROM (SELECT f.*, sum(size) OVER (ORDER BY position) - size AS before FROM (
    SELECT id, position, number, pool, origin, status, outcome, code, key, fingerprint, message, command, meta, resumes, run_id, agent,
           agent_revision, on_worker_loss, history, priority, due_at, deadline, admitted_at, opened_at, admitted_seq, started_seq,
           opened_seq, result_seq, ended_at, max_duration_s, last_failure, usage,
           coalesce(octet_length(message), 0) + coalesce(octet_length(command), 0) + coalesce(octet_length(meta), 0) AS size
      FROM turns WHERE session_id = %(id)s AND position > %(after)s AND ended_at <= %(at)s
        AND status IN ('ended', 'cancelled', 'refused', 'expired') ORDER BY position LIMIT %(limit)s) f) page
  WHERE before < %(max_bytes)s ORDER BY position

-- name: key_facts
SELECT space, key, fingerprint, answer, created_at FROM session_keys
  WHERE session_id = %(id)s AND created_at <= %(at)s AND (space, key) > (%(space)s, %(key)s) ORDER BY space, key LIMIT %(limit)s

-- name: call_facts
SELECT * FROM (SELECT f.*, sum(size) OVER (ORDER BY turn_id, invocation_id) - size AS before FROM (
    SELECT c.turn_id, c.invocation_id, c.step, c.ordinal, c.name, c.argument_digest, c.token, c.state, c.result, c.result_seq,
           c.started_at, c.settled_at, coalesce(octet_length(c.result), 0) AS size
      FROM tool_calls c JOIN turns t ON t.id = c.turn_id
      WHERE c.session_id = %(id)s AND (c.turn_id, c.invocation_id) > (%(turn)s, %(invocation)s) AND t.ended_at <= %(at)s
        AND t.status IN ('ended', 'cancelled', 'refused', 'expired')
      ORDER BY c.turn_id, c.invocation_id LIMIT %(limit)s) f) page
  WHERE before < %(max_bytes)s ORDER BY turn_id, invocation_id

-- name: make_owner
INSERT INTO owners (id) VALUES (%(owner)s) ON CONFLICT DO NOTHING

-- name: begin_import
SELECT import_begin_v1(%(id)s, %(owner)s, %(create_key)s, %(create_print)s, %(title)s, %(meta)s, %(state)s, %(seq)s, %(revision)s,
  %(tail)s, %(next_position)s, %(next_number)s, %(created_at)s, %(updated_at)s, %(active_at)s, %(mark)s, %(retained)s) AS result

-- name: import_records
INSERT INTO records (session_id, seq, turn, kind, at, data, digest)
  SELECT %(id)s, new.* FROM unnest(%(seqs)s::bigint[], %(turns)s::int[], %(kinds)s::text[], %(ats)s::timestamptz[], %(texts)s::text[],
                                   %(digests)s::bytea[]) new

-- name: import_turns
INSERT INTO turns (session_id, owner, id, position, number, pool, origin, status, outcome, code, key, fingerprint, message, command,
                   meta, resumes, run_id, agent, agent_revision, on_worker_loss, history, priority, due_at, deadline, admitted_at,
                   opened_at, admitted_seq, started_seq, opened_seq, result_seq, ended_at, max_duration_s, last_failure, usage)
  SELECT %(id)s, %(owner)s, n.id, n.position, n.number, n.pool, n.origin, n.status, n.outcome, n.code, n.key, n.fingerprint, n.message,
         n.command, n.meta, n.resumes, n.run_id, n.agent, n.agent_revision, n.on_worker_loss, n.history, n.priority, n.due_at,
         n.deadline, n.admitted_at, n.opened_at, n.admitted_seq, n.started_seq, n.opened_seq, n.result_seq, n.ended_at, n.max_duration_s, n.last_failure, n.usage
    FROM json_populate_recordset(NULL::turns, %(facts)s::json) n
  ON CONFLICT DO NOTHING RETURNING id

-- name: import_keys
INSERT INTO session_keys (session_id, space, key, fingerprint, answer, created_at)
  SELECT %(id)s, n.space, n.key, n.fingerprint, n.answer, n.created_at
    FROM json_populate_recordset(NULL::session_keys, %(facts)s::json) n
  ON CONFLICT DO NOTHING RETURNING key

-- name: import_calls
INSERT INTO tool_calls (session_id, turn_id, invocation_id, step, ordinal, name, argument_digest, token, state, result, result_seq,
                        started_at, settled_at)
  SELECT %(id)s, n.turn_id, n.invocation_id, n.step, n.ordinal, n.name, n.argument_digest, n.token, n.state, n.result, n.result_seq,
         n.started_at, coalesce(n.settled_at, clock_timestamp())
    FROM json_populate_recordset(NULL::tool_calls, %(facts)s::json) n
  ON CONFLICT DO NOTHING RETURNING invocation_id

-- name: anchors
SELECT first_seq, last_seq, tail_before, tail_after FROM record_archives
  WHERE session_id = %(id)s AND last_seq > %(after)s ORDER BY last_seq LIMIT %(limit)s

-- name: archive_limit
SELECT least(s.seq, t.started_seq) - 1 AS seq FROM sessions s LEFT JOIN turns t ON t.id = s.open_turn
  WHERE s.id = %(id)s AND s.owner = %(owner)s

-- name: archive_range
SELECT archive_range_v1(%(id)s, %(owner)s, %(first)s, %(last)s, %(before)s, %(after)s, %(max_records)s, %(max_bytes)s) AS result

-- name: sessions_created_before
SELECT id, owner FROM sessions WHERE id > %(after)s AND created_at < %(moment)s
    AND (%(owner)s::text IS NULL OR owner = %(owner)s) ORDER BY id LIMIT %(limit)s

-- name: prune_turns
SELECT gone, next_at, next_id FROM prune_turns_v1(%(before)s, %(owner)s, %(after_at)s, %(after_id)s, %(limit)s, %(dry)s)

-- name: prune_keys
SELECT prune_keys_v1(%(before)s, %(owner)s, %(limit)s) AS gone

-- name: count_keys
SELECT count(*) AS gone FROM session_keys k WHERE k.created_at < %(before)s AND NOT key_is_kept_v1(k)
    AND (%(owner)s::text IS NULL OR EXISTS (SELECT 1 FROM sessions s WHERE s.id = k.session_id AND s.owner = %(owner)s))

-- name: prune_receipts
SELECT prune_receipts_v1(%(before)s, %(owner)s, %(limit)s) AS gone

-- name: count_receipts
SELECT count(*) AS gone FROM memory_receipts r WHERE r.created_at < (SELECT receipts_floor_v1(%(before)s))
    AND (%(owner)s::text IS NULL OR EXISTS (SELECT 1 FROM memory_documents d
           WHERE d.namespace = r.namespace AND d.id = r.id AND d.owner = %(owner)s))

-- name: prune_intents
SELECT prune_intents_v1(%(before)s, %(owner)s, %(limit)s) AS gone

-- name: count_intents
SELECT count(*) AS gone FROM memory_intents i JOIN jobs j ON j.pool = 'remember' AND j.id = i.job_id
  WHERE i.owner = %(owner)s AND i.created_at < %(before)s AND i.progress = 'completed' AND i.completed_at < %(before)s
    AND j.status = 'idle'

-- name: prune_session
SELECT prune_session_v1(%(id)s, %(owner)s, %(before)s, %(dry)s) AS gone

-- name: old_sessions
-- One owner's sessions that were last active before the moment, oldest first, behind the cursor; a child leaves with its parent
-- or alone, a parent only with all its children.
SELECT id, active_at FROM sessions WHERE owner = %(owner)s AND active_at < %(before)s AND (active_at, id) > (%(after_at)s, %(after_id)s)
  ORDER BY active_at, id LIMIT %(limit)s

-- name: owners_behind
SELECT id FROM owners WHERE id > %(after)s ORDER BY id LIMIT %(limit)s

-- name: now
SELECT clock_timestamp() AS now
