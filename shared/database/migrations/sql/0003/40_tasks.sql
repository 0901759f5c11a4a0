-- Background tasks: a start in one transaction, the debt of whatever ends a task's turn, its delivery. Rules: docs/core.md 3, 4, 6.
-- Lock order: the parent's head, then the child's; a child's end never takes its parent's.

-- Which record of the child says how its task ended.
ALTER TABLE turns ADD COLUMN result_seq bigint;
-- Unfinished tasks of a parent; open ones whose deadline passes; what is owed to one parent.
CREATE INDEX turns_tasks ON turns (parent) WHERE parent IS NOT NULL AND status IN ('queued', 'ready', 'running', 'waiting');
CREATE INDEX turns_tasks_late ON turns (deadline) WHERE origin = 'task' AND deadline IS NOT NULL AND number IS NOT NULL
  AND status IN ('ready', 'running', 'waiting');
CREATE INDEX deliveries_of_parent ON deliveries (parent);

-- The record that ends a task's turn: the first task.result or task.cancelled, else the last reply. It is looked for among
-- the turn's own records only.
CREATE FUNCTION task_result_seq_v1(p_turn turns) RETURNS bigint
LANGUAGE sql STABLE
RETURN (SELECT r.seq FROM records r WHERE r.session_id = p_turn.session_id AND r.seq >= p_turn.started_seq AND r.turn = p_turn.number
          AND r.kind IN ('task.result', 'task.cancelled', 'turn.reply')
          ORDER BY r.kind = 'turn.reply', CASE WHEN r.kind = 'turn.reply' THEN -r.seq ELSE r.seq END LIMIT 1);

-- One record of a log, archived or not.
CREATE FUNCTION task_record_v1(p_session text, p_seq bigint) RETURNS TABLE (kind text, data text)
LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
  RETURN QUERY SELECT r.kind, r.data FROM records r WHERE r.session_id = p_session AND r.seq = p_seq;
  IF NOT FOUND AND p_seq IS NOT NULL THEN
    RETURN QUERY SELECT a.kind, a.data FROM archive_read_v1(p_session, p_seq - 1, 1, '{}', NULL, 1) a WHERE a.seq = p_seq;
  END IF;
END $$;

-- Whatever ends a task's turn, opened or not, owes its parent the result: here, so that no way to end a row forgets it. A
-- user's row pays for the condition alone.
CREATE FUNCTION task_owe_v1() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  NEW.result_seq := coalesce(task_result_seq_v1(NEW), NEW.result_seq);
  INSERT INTO deliveries (child, parent, body)
    VALUES (NEW.session_id, NEW.parent, jsonb_build_object('turn', NEW.id, 'meta', NEW.meta, 'agent', NEW.agent,
                                                           'revision', NEW.agent_revision)::text)
    ON CONFLICT DO NOTHING;
  RETURN NEW;
END $$;
CREATE TRIGGER turns_task_ends BEFORE UPDATE OF status ON turns FOR EACH ROW
  WHEN (NEW.origin = 'task' AND NEW.status IN ('ended', 'cancelled', 'refused', 'expired')
        AND OLD.status NOT IN ('ended', 'cancelled', 'refused', 'expired'))
  EXECUTE FUNCTION task_owe_v1();

-- Starts a task: the parent's record, the key, the child and its turn, or nothing of them. Judged in this order: the id, a
-- parent that is a task's child, its unfinished tasks, what waits in all, a session that has the id.
CREATE FUNCTION task_start_v1(
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

-- Cancels a task: its turn ends, task.cancelled says so in the child, and nothing is owed. A stored result or reply wins, and
-- is owed; so the first of task.result and task.cancelled is the only one.
CREATE FUNCTION task_cancel_v1(p_parent text, p_task text, p_owner text, p_record_text text, p_record_digest bytea)
RETURNS TABLE (result text, turn_id uuid, holder text, after_seq bigint)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_turn turns; v_end records; v_seq bigint;
BEGIN
  SELECT split_part(k.answer, ':', 1)::uuid INTO turn_id FROM sessions s
    JOIN session_keys k ON k.session_id = s.id AND k.space = 'task' AND k.key = p_task WHERE s.id = p_parent AND s.owner = p_owner;
  IF NOT FOUND THEN result := 'missing'; RETURN NEXT; RETURN; END IF;
  SELECT * INTO v_head FROM sessions WHERE id = p_task FOR NO KEY UPDATE;
  IF NOT FOUND THEN turn_id := NULL; after_seq := 0; result := 'finished'; RETURN NEXT; RETURN; END IF;
  SELECT * INTO v_turn FROM turns t WHERE t.id = turn_id FOR NO KEY UPDATE;
  holder := v_turn.lease_owner;
  IF v_turn.id IS NULL OR v_turn.status IN ('ended', 'cancelled', 'refused', 'expired') THEN
    result := CASE WHEN v_turn.status = 'cancelled' OR v_turn.outcome = 'cancelled' THEN 'cancelled' ELSE 'finished' END;
  ELSIF v_head.open_turn = v_turn.id THEN
    SELECT * INTO v_end FROM records r WHERE r.session_id = p_task AND r.seq = task_result_seq_v1(v_turn);
    IF v_end.seq IS NOT NULL THEN
      PERFORM turn_close_open_v1(v_turn, v_end.data::jsonb ->> 'outcome', NULL); result := 'finished';
    ELSE
      PERFORM log_append_v1(p_task, v_turn.number, NULL, ARRAY['task.cancelled'], ARRAY[p_record_text], ARRAY[p_record_digest], true);
      PERFORM turn_close_open_v1(v_turn, 'cancelled', NULL);
      DELETE FROM deliveries WHERE child = p_task; result := 'cancelled';
    END IF;
  ELSE
    v_seq := log_append_v1(p_task, NULL, NULL, ARRAY['task.cancelled'], ARRAY[p_record_text], ARRAY[p_record_digest], true);
    UPDATE turns t SET status = 'cancelled', ended_at = clock_timestamp(), result_seq = v_seq, lease_owner = NULL, token = NULL,
                       expires_at = NULL WHERE t.id = v_turn.id;
    DELETE FROM deliveries WHERE child = p_task;
    PERFORM turn_promote_v1(p_task); result := 'cancelled';
  END IF;
  RETURN QUERY SELECT result, turn_id, holder, s.seq FROM sessions s WHERE s.id = p_task;
END $$;

-- Changes a debt into the parent's inbox item, if it is still what was read of it (p_version); else answers why not. Debt and
-- item change places under the parent's head, so that no two of them are ever there. Without p_wait a head that is busy is
-- answered at once.
CREATE FUNCTION task_deliver_v1(p_child text, p_parent text, p_version text, p_id text, p_source text, p_content text,
                                p_record_text text, p_record_digest bytea, p_attempts_max int, p_wait bool)
RETURNS TABLE (result text, seq bigint, turn_id uuid)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_debt jsonb; v_seq bigint; v_child_answers bool;
BEGIN
  IF p_wait THEN
    SELECT * INTO v_head FROM sessions WHERE id = p_parent FOR NO KEY UPDATE;
  ELSE
    SELECT * INTO v_head FROM sessions WHERE id = p_parent FOR NO KEY UPDATE SKIP LOCKED;
    IF v_head.id IS NULL AND EXISTS (SELECT 1 FROM sessions WHERE id = p_parent) THEN result := 'busy'; RETURN NEXT; RETURN; END IF;
  END IF;
  IF v_head.id IS NULL THEN
    DELETE FROM deliveries WHERE child = p_child AND parent = p_parent;
    result := 'dropped'; RETURN NEXT; RETURN;
  END IF;
  DELETE FROM deliveries WHERE child = p_child AND parent = p_parent AND md5(body) = p_version RETURNING body::jsonb INTO v_debt;
  IF NOT FOUND THEN result := 'gone'; RETURN NEXT; RETURN; END IF;
  -- A parent that never had a turn says nothing of who answers: the task's own agent does.
  v_child_answers := NOT EXISTS (SELECT 1 FROM turns t WHERE t.session_id = p_parent);
  v_seq := inbox_put_v1(v_head, p_id, p_source, p_content, p_record_text, p_record_digest, v_debt ->> 'meta',
                        CASE WHEN v_child_answers THEN v_debt ->> 'agent' END,
                        CASE WHEN v_child_answers THEN v_debt ->> 'revision' END, p_attempts_max);
  RETURN QUERY SELECT 'delivered'::text, v_seq,
    (SELECT t.id FROM turns t WHERE t.session_id = p_parent AND t.status = 'ready');
END $$;

-- Ends those of these open turns of tasks whose deadline has passed, each under its head; a head that is busy is skipped.
CREATE FUNCTION task_end_late_v1(p_ids uuid[])
RETURNS TABLE (turn_id uuid, session_id text, outcome text, holder text, after_seq bigint)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_id uuid; v_head sessions; v_turn turns; v_end records;
BEGIN
  FOREACH v_id IN ARRAY p_ids LOOP
    SELECT s.* INTO v_head FROM sessions s
      WHERE s.id = (SELECT t.session_id FROM turns t WHERE t.id = v_id) FOR NO KEY UPDATE SKIP LOCKED;
    CONTINUE WHEN v_head.id IS NULL;
    SELECT * INTO v_turn FROM turns t WHERE t.id = v_id FOR NO KEY UPDATE;
    CONTINUE WHEN NOT coalesce(v_head.open_turn = v_id AND v_turn.origin = 'task' AND v_turn.deadline < clock_timestamp(), false);
    SELECT * INTO v_end FROM records r WHERE r.session_id = v_head.id AND r.seq = task_result_seq_v1(v_turn);
    IF v_end.seq IS NULL THEN PERFORM turn_close_open_v1(v_turn, 'interrupted', 'task.deadline');
    ELSE PERFORM turn_close_open_v1(v_turn, v_end.data::jsonb ->> 'outcome', NULL);
    END IF;
    RETURN QUERY SELECT v_id, v_head.id, t.outcome, v_turn.lease_owner, s.seq
      FROM turns t JOIN sessions s ON s.id = t.session_id WHERE t.id = v_id;
  END LOOP;
END $$;
