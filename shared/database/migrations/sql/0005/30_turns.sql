-- The turn's own functions with fewer statements; what they answer, judge and lock is as it was. Rules: docs/core.md 2 to 8.

-- As before, but a turn is found by its number through its position.
CREATE OR REPLACE FUNCTION turn_resume_refusal_v1(p_session text, p_number int, p_interrupts bool DEFAULT false) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE v_named turns; v_last turns; v_outcome text;
BEGIN
  v_named := turn_numbered_v1(p_session, p_number);
  IF v_named.id IS NULL THEN RETURN 'missing'; END IF;
  IF v_named.origin <> 'user' THEN RETURN 'inbox'; END IF;
  SELECT * INTO v_last FROM turns
    WHERE session_id = p_session AND origin = 'user' AND number IS NOT NULL ORDER BY position DESC LIMIT 1;
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

-- As before. A session without a live row has no unfinished one, so that nothing is counted then.
CREATE OR REPLACE FUNCTION turn_admit_v3(
  p_id uuid, p_session text, p_owner text, p_key text, p_print text, p_run text, p_message text, p_command text,
  p_meta text, p_agent text, p_revision text, p_on_busy text, p_on_worker_loss text, p_priority int,
  p_deadline timestamptz, p_max_duration_s real, p_resumes int, p_session_max int, p_owner_max int, p_all_full bool, p_attempts_max int)
RETURNS TABLE (result text, turn_id uuid, run_id text, turn_position bigint, status text, after_seq bigint, detail uuid,
               held uuid[], holders text[])
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_head sessions; v_key session_keys; v_live turns; v_now timestamptz; v_count int := 0; v_waiting int := 0; v_owed int;
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
  PERFORM 1 FROM session_keys WHERE session_id = p_session AND space = 'run' AND key = p_run;
  IF FOUND OR (v_head.parent IS NOT NULL AND turn_run_used_v1(v_head, p_run)) THEN
    result := 'run-reused'; RETURN NEXT; RETURN;
  END IF;
  SELECT * INTO v_live FROM turns t WHERE t.session_id = p_session AND t.status IN ('ready', 'running', 'waiting');
  -- Without a live row none waits: a queued one is promoted by whatever ends the row before it.
  IF FOUND THEN
    IF turn_is_dead_v1(v_live, v_now, p_attempts_max) THEN
      -- Only for a dead one: to hand it the head costs more than the look itself.
      v_live := turn_live_v1(v_head, p_attempts_max);
      -- Read again: a dead turn that was reaped has written its end.
      SELECT * INTO v_head FROM sessions WHERE id = p_session;
    END IF;
    SELECT count(*), count(*) FILTER (WHERE unfinished.status IN ('queued', 'ready')) INTO v_count, v_waiting
      FROM (SELECT t.status FROM turns t WHERE t.session_id = p_session
              AND t.status IN ('queued', 'ready', 'running', 'waiting') LIMIT p_session_max + 1) unfinished;
  END IF;
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
            CASE WHEN p_resumes IS NOT NULL THEN turn_user_numbered_v1(p_session, p_resumes) END, p_resumes);
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

CREATE OR REPLACE FUNCTION turn_open_v3(p_id uuid, p_session text, p_epoch bigint, p_token uuid, p_commit text, p_title text, p_kinds text[],
                             p_texts text[], p_digests bytea[], p_claims text[], p_look bool)
RETURNS TABLE (result text, number int, seq bigint, started_seq bigint)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_turn turns; v_now timestamptz; v_seq bigint; v_inbox text; v_resume text;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session FOR NO KEY UPDATE;
  IF NOT FOUND THEN result := 'removed'; RETURN NEXT; RETURN; END IF;
  SELECT * INTO v_turn FROM turns WHERE id = p_id FOR NO KEY UPDATE;
  v_now := clock_timestamp();
  IF NOT coalesce(v_turn.session_id = p_session AND turn_fence_holds_v1(v_turn, p_epoch, p_token, v_now), false) THEN
    -- A refusal whose answer was lost is told again.
    result := CASE WHEN v_turn.status = 'refused' AND v_turn.code = 'inbox.empty' THEN 'empty'
                   WHEN v_turn.status = 'refused' AND v_turn.code = 'turn.not-resumable' THEN 'resume-' || v_turn.last_failure
                   ELSE turn_loss_v1(v_turn) END;
    RETURN NEXT; RETURN;
  END IF;
  IF v_head.open_turn = p_id THEN
    IF v_head.open_epoch = p_epoch AND v_head.open_token = p_token THEN
      RETURN QUERY SELECT 'adopted'::text, v_turn.number, v_head.seq, v_turn.started_seq; RETURN;
    END IF;
    UPDATE sessions SET open_epoch = p_epoch, open_token = p_token, last_commit = NULL, last_seq = NULL WHERE id = p_session;
    RETURN QUERY SELECT 'took-over'::text, v_turn.number, v_head.seq, v_turn.started_seq; RETURN;
  END IF;
  IF v_head.open_turn IS NOT NULL THEN
    -- Cannot happen while turns_one_live holds; if it does, the row waits and nothing is counted.
    UPDATE turns SET status = 'ready', due_at = v_now + interval '1 second', lease_owner = NULL, token = NULL,
                     expires_at = NULL WHERE id = p_id;
    result := 'busy'; RETURN NEXT; RETURN;
  END IF;
  IF v_turn.deadline < v_now THEN
    UPDATE turns SET status = 'expired', code = 'turn.deadline', ended_at = v_now, lease_owner = NULL, token = NULL,
                     expires_at = NULL WHERE id = p_id;
    PERFORM turn_promote_v1(p_session);
    result := 'expired'; RETURN NEXT; RETURN;
  END IF;
  -- What else must still hold is judged here, before anything opens: a row for which it does not ends `refused`.
  IF v_turn.origin = 'inbox' THEN
    v_inbox := inbox_judge_v1(p_session, p_claims);
    IF v_inbox = 'empty' THEN PERFORM turn_refuse_locked_v1(v_turn, 'inbox.empty', NULL, 0); END IF;
    IF v_inbox <> 'waiting' THEN result := v_inbox; RETURN NEXT; RETURN; END IF;
  END IF;
  IF v_turn.resumes_number IS NOT NULL THEN
    v_resume := turn_resume_refusal_v1(p_session, v_turn.resumes_number);
    IF v_resume IS NOT NULL THEN
      PERFORM turn_refuse_locked_v1(v_turn, 'turn.not-resumable', v_resume, 0);
      result := 'resume-' || v_resume; RETURN NEXT; RETURN;
    END IF;
  END IF;
  IF p_look THEN result := 'openable'; RETURN NEXT; RETURN; END IF;
  v_seq := log_append_v2(p_session, v_head.seq, v_head.tail, v_head.next_number, p_commit, p_kinds, p_texts, p_digests,
                         p_id, p_epoch, p_token, 1, p_title, true);
  UPDATE turns SET number = v_head.next_number, opened_at = v_now, started_seq = v_head.seq + 1, opened_seq = v_seq WHERE id = p_id;
  IF v_turn.origin = 'inbox' THEN PERFORM inbox_claim_v2(p_session, p_id, p_claims); END IF;
  RETURN QUERY SELECT 'opened'::text, v_head.next_number, v_seq, v_head.seq + 1;
END $$;

CREATE OR REPLACE FUNCTION turn_append_v2(p_id uuid, p_session text, p_epoch bigint, p_token uuid, p_commit text, p_stepped bool,
                               p_kinds text[], p_texts text[], p_digests bytea[], p_calls jsonb, p_expect bigint DEFAULT NULL,
                               p_extend_s real DEFAULT NULL)
RETURNS TABLE (result text, seq bigint, revision bigint)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_turn turns; v_now timestamptz; v_seq bigint; v_repeated bool;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN QUERY SELECT 'removed'::text, NULL::bigint, NULL::bigint; RETURN; END IF;
  -- The row is read without a lock: a claim that commits after this judgement waits for the head at its takeover.
  SELECT * INTO v_turn FROM turns WHERE id = p_id;
  v_now := clock_timestamp();
  IF NOT coalesce(v_head.open_turn = p_id AND v_head.open_epoch = p_epoch AND v_head.open_token = p_token
                  AND turn_fence_holds_v1(v_turn, p_epoch, p_token, v_now), false) THEN
    RETURN QUERY SELECT turn_loss_v1(v_turn), NULL::bigint, v_head.revision; RETURN;
  END IF;
  v_repeated := coalesce(v_head.last_commit = p_commit, false);
  IF NOT v_repeated AND p_expect IS NOT NULL AND p_expect <> v_head.revision THEN
    RETURN QUERY SELECT 'revision'::text, NULL::bigint, v_head.revision; RETURN;
  END IF;
  IF p_extend_s IS NOT NULL THEN
    UPDATE turns SET expires_at = v_now + make_interval(secs => p_extend_s)
      WHERE id = p_id AND epoch = p_epoch AND token = p_token;
  END IF;
  IF v_repeated THEN RETURN QUERY SELECT 'appended'::text, v_head.last_seq, v_head.revision; RETURN; END IF;
  v_seq := log_append_v2(p_session, v_head.seq, v_head.tail, v_turn.number, p_commit, p_kinds, p_texts, p_digests,
                         p_id, p_epoch, p_token, 0, NULL, false);
  IF p_calls IS NOT NULL THEN PERFORM turn_ledger_v1(p_session, p_id, p_calls, v_seq); END IF;
  IF p_stepped AND (v_turn.attempts <> 0 OR v_turn.suspect OR v_turn.alive_losses <> 0 OR NOT v_turn.stepped) THEN
    -- A claim may have taken the row since it was judged: the loss that it counted stays counted.
    UPDATE turns SET attempts = 0, suspect = false, alive_losses = 0, stepped = true WHERE id = p_id AND epoch = p_epoch;
  END IF;
  RETURN QUERY SELECT 'appended'::text, v_seq, v_head.revision + 1;
END $$;

-- As before. What follows is looked for only where anything can.
CREATE OR REPLACE FUNCTION turn_end_v3(p_id uuid, p_session text, p_epoch bigint, p_token uuid, p_commit text,
                            p_kinds text[], p_texts text[], p_digests bytea[], p_calls jsonb,
                            p_outcome text, p_code text, p_failure text, p_usage text, p_counts bool)
RETURNS TABLE (result text, seq bigint, promoted uuid, pending int)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_turn turns; v_now timestamptz; v_seq bigint;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session FOR NO KEY UPDATE;
  IF NOT FOUND THEN result := 'removed'; RETURN NEXT; RETURN; END IF;
  SELECT * INTO v_turn FROM turns WHERE id = p_id FOR NO KEY UPDATE;
  v_now := clock_timestamp();
  IF NOT coalesce(v_head.open_turn = p_id AND v_head.open_epoch = p_epoch AND v_head.open_token = p_token
                  AND turn_fence_holds_v1(v_turn, p_epoch, p_token, v_now), false) THEN
    -- An end whose answer was lost is found on the row, also after later turns opened.
    IF v_turn.end_commit = p_commit THEN
      -- The next turn is named only while it still waits to be rung for.
      RETURN QUERY SELECT 'stored'::text, max(r.seq),
          (SELECT t.id FROM turns t WHERE t.session_id = p_session AND t.status = 'ready'), v_head.inbox_waiting FROM records r
        WHERE r.session_id = p_session AND r.seq >= v_turn.started_seq AND r.turn = v_turn.number; RETURN;
    END IF;
    result := turn_loss_v1(v_turn); RETURN NEXT; RETURN;
  END IF;
  v_seq := log_append_v2(p_session, v_head.seq, v_head.tail, v_turn.number, p_commit, p_kinds, p_texts, p_digests,
                         NULL, NULL, NULL, 0, NULL, true);
  IF p_calls IS NOT NULL THEN PERFORM turn_ledger_v1(p_session, p_id, p_calls, v_seq); END IF;
  UPDATE turns SET status = 'ended', outcome = p_outcome, code = p_code, last_failure = coalesce(p_failure, last_failure),
                   usage = p_usage, end_commit = p_commit, ended_at = v_now, lease_owner = NULL, token = NULL,
                   expires_at = NULL WHERE id = p_id;
  IF v_turn.origin = 'inbox' THEN
    PERFORM inbox_settle_v1(v_turn, p_outcome, p_outcome <> 'interrupted' OR coalesce(p_counts, turn_wrote_v1(v_turn)));
  END IF;
  PERFORM activity_owe_v1(p_session, v_turn.owner);
  pending := v_head.inbox_waiting;
  -- Nothing can follow the last position of a session whose inbox is empty.
  IF v_turn.origin = 'inbox' OR pending > 0 OR v_head.next_position > v_turn.position + 1 THEN
    promoted := turn_promote_v1(p_session);
    SELECT s.inbox_waiting INTO STRICT pending FROM sessions s WHERE s.id = p_session;
  END IF;
  result := 'stored'; seq := v_seq;
  RETURN NEXT;
END $$;
