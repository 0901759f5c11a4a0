-- Resuming: which turn a new user's turn may continue, admissions that name one, and turns that are put back. Rules: docs/core.md
-- 4 and 7, docs/resuming.md.

-- The number beside the id: it is what turn.started says, and what the rule compares.
ALTER TABLE turns ADD COLUMN resumes_number int;
-- A turn by its number, and a session's last turn of a user, however many of the inbox opened since.
CREATE INDEX turns_opened ON turns (session_id, origin, number) WHERE number IS NOT NULL;

-- How a turn ended; of the open one what an interruption would make of it.
CREATE FUNCTION turn_outcome_v1(p_turn turns, p_interrupts bool) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
  IF p_turn.outcome IS NULL AND p_interrupts THEN RETURN coalesce(turn_reply_outcome_v1(p_turn), 'cancelled'); END IF;
  RETURN p_turn.outcome;
END $$;

-- Why this session's turn of that number cannot be resumed, or NULL; 'unfinished' for one that has not ended. The caller
-- holds the head's lock. Two index probes are enough: if the last turn of a user is a resume of this one, whatever opened
-- between them was judged when that one opened.
-- VOLATILE as its callers: it judges after they locked the head. The same rule: shared/turns/resume.py.
CREATE FUNCTION turn_resume_refusal_v1(p_session text, p_number int, p_interrupts bool DEFAULT false) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE v_named turns; v_last turns; v_outcome text;
BEGIN
  SELECT * INTO v_named FROM turns
    WHERE session_id = p_session AND origin IN ('user', 'inbox', 'task') AND number = p_number;
  IF NOT FOUND THEN RETURN 'missing'; END IF;
  IF v_named.origin <> 'user' THEN RETURN 'inbox'; END IF;
  SELECT * INTO v_last FROM turns
    WHERE session_id = p_session AND origin = 'user' AND number IS NOT NULL ORDER BY number DESC LIMIT 1;
  IF v_last.number > p_number THEN
    IF v_last.resumes_number IS DISTINCT FROM p_number THEN RETURN 'superseded'; END IF;
    v_outcome := turn_outcome_v1(v_last, p_interrupts);
    IF v_outcome IN ('completed', 'partial') THEN RETURN 'superseded'; END IF;
  END IF;
  v_outcome := turn_outcome_v1(v_named, p_interrupts);
  RETURN CASE WHEN v_outcome IS NULL THEN 'unfinished'
              WHEN v_outcome IN ('cancelled', 'interrupted') THEN NULL
              ELSE 'finished' END;
END $$;

-- As turn_admit_v2; with p_resumes the turn continues another, which is judged after the key and busy, before the bounds.
CREATE FUNCTION turn_admit_v3(
  p_id uuid, p_session text, p_owner text, p_key text, p_print text, p_run text, p_message text, p_command text,
  p_meta text, p_agent text, p_revision text, p_on_busy text, p_on_worker_loss text, p_priority int,
  p_deadline timestamptz, p_max_duration_s real, p_resumes int, p_session_max int, p_owner_max int, p_all_full bool, p_attempts_max int)
RETURNS TABLE (result text, turn_id uuid, run_id text, turn_position bigint, status text, after_seq bigint, detail uuid,
               held uuid[], holders text[])
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_head sessions; v_key session_keys; v_live turns; v_now timestamptz; v_count int; v_waiting int := 0; v_owed int;
  v_limit int; v_interrupts bool := p_on_busy = 'interrupt'; v_inbox uuid; v_reason text;
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
  IF p_resumes IS NOT NULL THEN
    -- What waits before it may still end without standing in its way: it is judged again when it opens.
    v_reason := turn_resume_refusal_v1(p_session, p_resumes, v_interrupts);
    IF v_reason = 'unfinished' THEN result := 'busy'; detail := v_head.open_turn; RETURN NEXT; RETURN; END IF;
    IF v_reason IS NOT NULL THEN result := 'resume-' || v_reason; RETURN NEXT; RETURN; END IF;
  END IF;
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
                     agent, agent_revision, on_worker_loss, priority, due_at, deadline, admitted_at, admitted_seq, max_duration_s,
                     resumes, resumes_number)
    VALUES (p_id, p_session, p_owner, v_head.next_position, 'user', CASE WHEN v_live.id IS NULL THEN 'ready' ELSE 'queued' END,
            p_key, p_print, p_message, p_command, p_meta, p_run, p_agent, p_revision, p_on_worker_loss, p_priority, v_now,
            p_deadline, v_now, v_head.seq, p_max_duration_s,
            (SELECT t.id FROM turns t WHERE t.session_id = p_session AND t.origin = 'user' AND t.number = p_resumes), p_resumes);
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

-- Puts a turn back that was given up with its workers before it opened: it waits behind what waits now. One that opened is
-- resumed instead, by an admission. Answers 'ready', or why nothing was done.
CREATE FUNCTION turn_retry_v1(p_id uuid) RETURNS text
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_session text; v_head sessions; v_turn turns;
BEGIN
  SELECT t.session_id INTO v_session FROM turns t WHERE t.id = p_id;
  SELECT * INTO v_head FROM sessions s WHERE s.id = v_session FOR NO KEY UPDATE;
  SELECT * INTO v_turn FROM turns t WHERE t.id = p_id FOR NO KEY UPDATE;
  IF v_head.id IS NULL OR v_turn.id IS NULL THEN RETURN 'missing'; END IF;
  IF v_turn.status <> 'ended' OR v_turn.code IS DISTINCT FROM 'turn.lease' OR v_turn.origin <> 'user' THEN RETURN 'other'; END IF;
  IF v_turn.number IS NOT NULL THEN RETURN 'opened'; END IF;
  UPDATE sessions SET next_position = next_position + 1 WHERE id = v_session;
  UPDATE turns SET status = 'queued', outcome = NULL, code = NULL, ended_at = NULL, attempts = 0, suspect = false, alive_losses = 0,
                   stepped = false, position = v_head.next_position, due_at = clock_timestamp() WHERE id = p_id;
  PERFORM turn_promote_v1(v_session);
  RETURN 'ready';
END $$;
