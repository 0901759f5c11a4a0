-- Admission: what is judged under the head's lock, and what an interrupting turn ends. Rules: docs/core.md 4.

-- Ends every unfinished turn of a session for the sake of a new one; the caller holds the head's lock and has judged the
-- new turn. Answers who held what, and the inbox turn that has to follow the new one.
CREATE FUNCTION turn_supersede_v1(p_head sessions) RETURNS TABLE (held uuid[], holders text[], inbox uuid)
LANGUAGE plpgsql AS $$
DECLARE v_open turns; v_reply text;
BEGIN
  -- Their rows by id; a claim that holds one commits first. Then new statements decide, by what it left.
  PERFORM 1 FROM turns t WHERE t.session_id = p_head.id AND t.status IN ('queued', 'ready', 'running', 'waiting')
    ORDER BY t.id FOR NO KEY UPDATE;
  SELECT coalesce(array_agg(t.id ORDER BY t.position), '{}'), coalesce(array_agg(t.lease_owner ORDER BY t.position), '{}')
    INTO held, holders FROM turns t
    WHERE t.session_id = p_head.id AND t.status = 'running' AND t.lease_owner IS NOT NULL;
  IF p_head.inbox_waiting > 0 THEN
    SELECT t.id INTO inbox FROM turns t WHERE t.session_id = p_head.id AND t.origin = 'inbox'
      AND t.status IN ('queued', 'ready', 'running', 'waiting') ORDER BY t.position LIMIT 1;
  END IF;
  -- All but the open one first: its end would make the next of them ready.
  UPDATE turns t SET status = 'cancelled', code = 'turn.superseded', ended_at = clock_timestamp(), lease_owner = NULL,
                     token = NULL, expires_at = NULL
    WHERE t.session_id = p_head.id AND t.status IN ('queued', 'ready', 'running', 'waiting')
      AND t.id IS DISTINCT FROM p_head.open_turn;
  SELECT * INTO v_open FROM turns t WHERE t.id = p_head.open_turn;
  IF FOUND THEN
    v_reply := turn_reply_outcome_v1(v_open);
    IF v_reply IS NOT NULL THEN PERFORM turn_close_open_v1(v_open, v_reply, NULL);
    ELSIF v_open.origin = 'inbox' THEN PERFORM turn_close_open_v1(v_open, 'interrupted', 'turn.superseded');
    ELSE PERFORM turn_close_open_v1(v_open, 'cancelled', 'turn.superseded');
    END IF;
  END IF;
  RETURN NEXT;
END $$;

-- Puts an inbox turn like the one that was ended behind the newest turn of the session; the caller holds the head's lock.
CREATE FUNCTION turn_requeue_inbox_v1(p_inbox uuid) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_old turns; v_head sessions; v_id uuid := gen_random_uuid(); v_run text := gen_random_uuid()::text;
BEGIN
  SELECT * INTO STRICT v_old FROM turns WHERE id = p_inbox;
  UPDATE sessions SET next_position = next_position + 1 WHERE id = v_old.session_id RETURNING * INTO v_head;
  INSERT INTO turns (id, session_id, owner, pool, position, origin, status, fingerprint, run_id, agent, agent_revision,
                     on_worker_loss, history, priority, admitted_seq, max_duration_s)
    VALUES (v_id, v_old.session_id, v_old.owner, v_old.pool, v_head.next_position - 1, 'inbox', 'queued', '', v_run, v_old.agent,
            v_old.agent_revision, v_old.on_worker_loss, v_old.history, v_old.priority, v_head.seq, v_old.max_duration_s);
  INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
    VALUES (v_old.session_id, 'run', v_run, '', v_id::text);
END $$;

CREATE FUNCTION turn_admit_v2(
  p_id uuid, p_session text, p_owner text, p_key text, p_print text, p_run text, p_message text, p_command text,
  p_meta text, p_agent text, p_revision text, p_on_busy text, p_on_worker_loss text, p_priority int,
  p_deadline timestamptz, p_max_duration_s real, p_session_max int, p_owner_max int, p_all_full bool, p_attempts_max int)
RETURNS TABLE (result text, turn_id uuid, run_id text, turn_position bigint, status text, after_seq bigint, detail uuid,
               held uuid[], holders text[])
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_head sessions; v_key session_keys; v_live turns; v_now timestamptz; v_count int; v_waiting int := 0; v_owed int;
  v_limit int; v_interrupts bool := p_on_busy = 'interrupt'; v_inbox uuid;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session AND owner = p_owner FOR NO KEY UPDATE;
  IF NOT FOUND THEN result := 'missing'; RETURN NEXT; RETURN; END IF;
  v_now := clock_timestamp();
  -- The key first: it answers whatever else stands in the way now. Without a key the pre-minted id is the key.
  SELECT * INTO v_key FROM session_keys WHERE session_id = p_session AND space = 'turn' AND key = coalesce(p_key, p_id::text);
  IF FOUND THEN
    IF v_key.fingerprint <> p_print THEN
      result := 'key-conflict'; turn_id := v_key.answer::uuid; RETURN NEXT; RETURN;
    END IF;
    RETURN QUERY SELECT 'duplicate'::text, t.id, t.run_id, t.position, t.status, t.admitted_seq, NULL::uuid, NULL::uuid[], NULL::text[]
      FROM turns t WHERE t.id = v_key.answer::uuid; RETURN;
  END IF;
  IF turn_run_used_v1(v_head, p_run) THEN result := 'run-reused'; RETURN NEXT; RETURN; END IF;
  v_live := turn_live_v1(v_head, p_attempts_max);
  -- Read again: a dead turn that was reaped has written its end.
  SELECT * INTO v_head FROM sessions WHERE id = p_session;
  SELECT count(*), count(*) FILTER (WHERE unfinished.status IN ('queued', 'ready')) INTO v_count, v_waiting
    FROM (SELECT t.status FROM turns t WHERE t.session_id = p_session
            AND t.status IN ('queued', 'ready', 'running', 'waiting') LIMIT p_session_max + 1) unfinished;
  IF p_on_busy = 'reject' AND v_count > 0 THEN result := 'busy'; detail := v_live.id; RETURN NEXT; RETURN; END IF;
  SELECT queued_max INTO v_limit FROM owners WHERE id = p_owner;
  v_limit := coalesce(v_limit, p_owner_max);
  -- What an interruption ends waits no more: it makes room.
  IF v_interrupts THEN v_limit := v_limit + v_waiting; v_count := 0; END IF;
  SELECT count(*) INTO v_owed FROM (SELECT 1 FROM turns WHERE owner = p_owner AND status IN ('queued', 'ready')
                                    LIMIT v_limit) owed;
  IF v_count >= p_session_max OR v_owed >= v_limit OR (p_all_full AND NOT (v_interrupts AND v_waiting > 0)) THEN
    result := CASE WHEN v_count >= p_session_max THEN 'session-full' WHEN v_owed >= v_limit THEN 'owner-full' ELSE 'all-full' END;
    RETURN NEXT; RETURN;
  END IF;
  IF v_interrupts THEN
    SELECT s.held, s.holders, s.inbox INTO held, holders, v_inbox FROM turn_supersede_v1(v_head) s;
    v_live := NULL;
    SELECT * INTO v_head FROM sessions WHERE id = p_session;
  END IF;
  UPDATE sessions SET next_position = next_position + 1 WHERE id = p_session;
  INSERT INTO turns (id, session_id, owner, position, origin, status, key, fingerprint, message, command, meta, run_id,
                     agent, agent_revision, on_worker_loss, priority, due_at, deadline, admitted_at, admitted_seq, max_duration_s)
    VALUES (p_id, p_session, p_owner, v_head.next_position, 'user', CASE WHEN v_live.id IS NULL THEN 'ready' ELSE 'queued' END,
            p_key, p_print, p_message, p_command, p_meta, p_run, p_agent, p_revision, p_on_worker_loss, p_priority, v_now,
            p_deadline, v_now, v_head.seq, p_max_duration_s);
  INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
    VALUES (p_session, 'turn', coalesce(p_key, p_id::text), p_print, p_id::text),
           (p_session, 'run', p_run, '', p_id::text);
  IF v_inbox IS NOT NULL THEN PERFORM turn_requeue_inbox_v1(v_inbox); END IF;
  IF v_live.id IS NOT NULL AND p_priority < 2 THEN
    -- What waits before an urgent row must not hold it back: the rows before it are lifted to its priority.
    UPDATE turns SET priority = p_priority
      WHERE session_id = p_session AND status IN ('queued', 'ready', 'running', 'waiting') AND priority > p_priority;
  END IF;
  RETURN QUERY SELECT 'admitted'::text, p_id, p_run, v_head.next_position,
    CASE WHEN v_live.id IS NULL THEN 'ready' ELSE 'queued' END, v_head.seq, NULL::uuid, held, holders;
END $$;
