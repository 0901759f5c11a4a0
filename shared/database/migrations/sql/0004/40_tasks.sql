-- A task's result is told by an inbox turn, which no session of whole turns takes: so such a session starts no task, and one that
-- started a task keeps no whole turn. Both are judged under the head's lock; older code hears of the first as of any such row.

-- Starts a task: the parent's record, the key, the child and its turn, or nothing of them. Judged in this order: the id, a
-- parent of whole turns, one that is a task's child, its unfinished tasks, what waits in all, a session that has the id.
CREATE OR REPLACE FUNCTION task_start_v1(
  p_task text, p_turn uuid, p_parent text, p_owner text, p_print text, p_record_text text, p_record_digest bytea, p_inherit bool,
  p_tail bytea, p_create_print text, p_run text, p_turn_print text, p_message text, p_meta text, p_agent text, p_revision text,
  p_on_worker_loss text, p_deadline_s double precision, p_max_duration_s real, p_max_running int, p_owner_max int, p_all_full bool)
RETURNS TABLE (result text, turn_id uuid, seq bigint)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_head sessions; v_key session_keys; v_now timestamptz; v_count int; v_limit int; v_through bigint; v_number int; v_seq bigint;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_parent AND owner = p_owner FOR NO KEY UPDATE;
  IF NOT FOUND THEN result := 'missing'; RETURN NEXT; RETURN; END IF;
  v_now := clock_timestamp();
  SELECT * INTO v_key FROM session_keys WHERE session_id = p_parent AND space = 'task' AND key = p_task;
  IF FOUND THEN
    turn_id := split_part(v_key.answer, ':', 1)::uuid; seq := split_part(v_key.answer, ':', 2)::bigint;
    result := CASE WHEN v_key.fingerprint = p_print THEN 'duplicate' ELSE 'conflict' END; RETURN NEXT; RETURN;
  END IF;
  IF v_head.retained THEN RAISE EXCEPTION 'the session keeps whole turns' USING ERRCODE = 'TK001'; END IF;
  PERFORM 1 FROM session_keys WHERE session_id = v_head.parent AND space = 'task' AND key = p_parent;
  IF FOUND THEN result := 'nested'; RETURN NEXT; RETURN; END IF;
  SELECT count(*) INTO v_count FROM (SELECT 1 FROM turns t WHERE t.parent = p_parent
    AND t.status IN ('queued', 'ready', 'running', 'waiting') LIMIT p_max_running) unfinished;
  IF v_count >= p_max_running THEN result := 'limit'; RETURN NEXT; RETURN; END IF;
  SELECT coalesce((SELECT o.queued_max FROM owners o WHERE o.id = p_owner), p_owner_max) INTO v_limit;
  SELECT count(*) INTO v_count FROM (SELECT 1 FROM turns t WHERE t.owner = p_owner AND t.status IN ('queued', 'ready') LIMIT v_limit) owed;
  IF v_count >= v_limit OR p_all_full THEN
    result := CASE WHEN v_count >= v_limit THEN 'owner-full' ELSE 'all-full' END; RETURN NEXT; RETURN;
  END IF;
  IF p_inherit THEN
    -- As session_fork_v1: the history up to the last closed turn, whose number the child counts on from.
    SELECT r.seq, r.turn INTO v_through, v_number FROM records r
      WHERE r.session_id = p_parent AND r.kind = 'turn.ended' ORDER BY r.seq DESC LIMIT 1;
    IF NOT FOUND THEN
      SELECT a.seq, a.turn INTO v_through, v_number FROM archive_read_back_v1(p_parent, v_head.seq + 1, 1, ARRAY['turn.ended']) a;
    END IF;
    v_through := coalesce(v_through, 0);
    v_number := coalesce(v_number, v_head.parent_number, 0);
  END IF;
  -- The child first: an id that is taken leaves nothing behind.
  INSERT INTO sessions (id, owner, create_print, parent, parent_through, parent_number, next_number, next_position, tail)
    VALUES (p_task, p_owner, p_create_print, p_parent, v_through, v_number, coalesce(v_number, 0) + 1, 2, p_tail)
    ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN result := 'exists'; RETURN NEXT; RETURN; END IF;
  INSERT INTO turns (id, session_id, owner, position, origin, parent, status, key, fingerprint, message, meta, run_id, agent,
                     agent_revision, on_worker_loss, priority, due_at, deadline, admitted_at, max_duration_s)
    VALUES (p_turn, p_task, p_owner, 1, 'task', p_parent, 'ready', p_task, p_turn_print, p_message, p_meta, p_run, p_agent,
            p_revision, p_on_worker_loss, 2, v_now, v_now + make_interval(secs => p_deadline_s), v_now, p_max_duration_s);
  v_seq := log_append_v1(p_parent, NULL, NULL, ARRAY['task.started'], ARRAY[p_record_text], ARRAY[p_record_digest], true);
  INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
    VALUES (p_parent, 'task', p_task, p_print, p_turn || ':' || v_seq),
           (p_task, 'turn', p_task, p_turn_print, p_turn::text), (p_task, 'run', p_run, '', p_turn::text);
  RETURN QUERY SELECT 'started'::text, p_turn, v_seq;
END $$;

-- The first whole turn of a session is refused as 'queued' when it ever had a row of the queue, inbox items or tasks.
CREATE OR REPLACE FUNCTION session_retain_v1(p_session text, p_owner text, p_create_print text, p_first_tail bytea, p_title text,
                                  p_tail bytea, p_commit text, p_print text, p_kinds text[], p_texts text[],
                                  p_digests bytea[])
RETURNS TABLE (result text, revision bigint, seq bigint, now timestamptz)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_key session_keys; v_now timestamptz; v_seq bigint;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session AND owner = p_owner FOR NO KEY UPDATE;
  IF NOT FOUND AND p_tail = p_first_tail THEN
    -- The first turn of a session makes it, with its owner's row: a turn that retains nothing leaves no session behind.
    INSERT INTO owners (id) VALUES (p_owner) ON CONFLICT DO NOTHING;
    INSERT INTO sessions (id, owner, create_print, title, tail)
      VALUES (p_session, p_owner, p_create_print, p_title, p_first_tail) ON CONFLICT DO NOTHING;
    -- A new statement: the insert that lost saw nothing of the winner.
    SELECT * INTO v_head FROM sessions WHERE id = p_session AND owner = p_owner FOR NO KEY UPDATE;
  END IF;
  v_now := clock_timestamp();
  IF v_head.id IS NULL THEN
    RETURN QUERY SELECT 'missing'::text, 0::bigint, 0::bigint, v_now; RETURN;
  END IF;
  SELECT * INTO v_key FROM session_keys WHERE session_id = p_session AND space = 'commit' AND key = p_commit;
  IF FOUND THEN
    RETURN QUERY SELECT CASE WHEN v_key.fingerprint = p_print THEN 'committed' ELSE 'key-conflict' END,
                        split_part(v_key.answer, ':', 1)::bigint, split_part(v_key.answer, ':', 2)::bigint, v_now;
    RETURN;
  END IF;
  IF v_head.next_position > 1 OR v_head.next_number > 1 OR v_head.inbox_waiting > 0
     OR NOT v_head.retained AND EXISTS (SELECT FROM session_keys WHERE session_id = p_session AND space = 'task') THEN
    RETURN QUERY SELECT 'queued'::text, v_head.revision, v_head.seq, v_now; RETURN;
  END IF;
  IF v_head.tail <> p_tail THEN
    RETURN QUERY SELECT 'tail'::text, v_head.revision, v_head.seq, v_now; RETURN;
  END IF;
  v_seq := log_append_v1(p_session, NULL, NULL, p_kinds, p_texts, p_digests, true);
  UPDATE sessions SET retained = true, title = coalesce(title, p_title) WHERE id = p_session AND NOT (retained AND title IS NOT NULL);
  INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
    VALUES (p_session, 'commit', p_commit, p_print, (v_head.revision + 1) || ':' || v_seq);
  RETURN QUERY SELECT 'committed'::text, v_head.revision + 1, v_seq, v_now;
END $$;
