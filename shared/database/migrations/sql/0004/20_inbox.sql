-- An inbox turn claims the oldest of what waits, as many items as its opener names: what one opening commit cannot hold is left
-- to the next one. Rules: docs/core.md 4. The caller of the first two holds the head's lock.

-- Whether these are the oldest items that wait, oldest first, and nothing besides: 'waiting', 'moved' for others, 'empty' when
-- none waits. Code of schema 3 names all that wait, oldest first.
CREATE OR REPLACE FUNCTION inbox_judge_v1(p_session text, p_claims text[]) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE v_waiting text[]; v_named int := coalesce(cardinality(p_claims), 0);
BEGIN
  SELECT array_agg(i.id ORDER BY i.seq) INTO v_waiting FROM inbox_items i WHERE i.session_id = p_session AND i.turn_id IS NULL;
  RETURN CASE WHEN v_waiting IS NULL THEN 'empty' WHEN v_named > 0 AND v_waiting[1:v_named] = p_claims THEN 'waiting' ELSE 'moved' END;
END $$;

-- Gives the items that it names, judged before, to an inbox turn that opens.
CREATE FUNCTION inbox_claim_v2(p_session text, p_turn uuid, p_claims text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_claimed int;
BEGIN
  UPDATE inbox_items SET turn_id = p_turn WHERE session_id = p_session AND turn_id IS NULL AND id = ANY (p_claims);
  GET DIAGNOSTICS v_claimed = ROW_COUNT;
  UPDATE sessions SET inbox_waiting = inbox_waiting - v_claimed WHERE id = p_session;
END $$;

-- Opens a claimed turn, takes an open one over, or ends a row that can no longer open. With p_look it opens nothing: where it
-- would, it answers 'openable'. An inbox turn names in p_claims the items that its first record answers.
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
  v_seq := log_append_v1(p_session, v_head.next_number, p_commit, p_kinds, p_texts, p_digests, true);
  UPDATE sessions SET open_turn = p_id, open_epoch = p_epoch, open_token = p_token, next_number = next_number + 1,
      title = coalesce(title, p_title)
    WHERE id = p_session;
  UPDATE turns SET number = v_head.next_number, opened_at = v_now, started_seq = v_head.seq + 1, opened_seq = v_seq WHERE id = p_id;
  IF v_turn.origin = 'inbox' THEN PERFORM inbox_claim_v2(p_session, p_id, p_claims); END IF;
  RETURN QUERY SELECT 'opened'::text, v_head.next_number, v_seq, v_head.seq + 1;
END $$;

-- Opens a turn in the process of a host: its row is inserted already running, under the first fence of its life, and the
-- log opens with its first records. Judged in this order: key, run id, unfinished row, the items that it claims, the turn that it continues. An inbox
-- turn that nobody holds is no such row: a user's turn takes its position and sends it behind, an inbox turn ends it. An infinite lease is
-- no lease: the turn is held until it ends, or until `turn_abandon` is told that its process is gone.
CREATE OR REPLACE FUNCTION turn_begin_v2(
  p_id uuid, p_session text, p_owner text, p_key text, p_print text, p_run text, p_message text, p_command text,
  p_meta text, p_agent text, p_revision text, p_on_worker_loss text, p_priority int, p_max_duration_s real,
  p_attempts_max int, p_holder text, p_lease_s real, p_commit text, p_title text, p_kinds text[], p_texts text[],
  p_digests bytea[], p_origin text, p_claims text[], p_resumes int)
RETURNS TABLE (result text, turn_id uuid, number int, seq bigint, started_seq bigint, epoch bigint, token uuid, attempts int,
               open_for_s double precision)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_head sessions; v_key session_keys; v_turn turns; v_inbox turns; v_now timestamptz; v_seq bigint;
  v_token uuid := gen_random_uuid(); v_resume text; v_position bigint;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session AND owner = p_owner FOR NO KEY UPDATE;
  IF NOT FOUND THEN result := 'missing'; RETURN NEXT; RETURN; END IF;
  SELECT * INTO v_key FROM session_keys WHERE session_id = p_session AND space = 'turn' AND key = coalesce(p_key, p_id::text);
  IF FOUND THEN
    SELECT * INTO v_turn FROM turns WHERE id = v_key.answer::uuid;
    turn_id := v_turn.id; number := v_turn.number;
    IF v_key.fingerprint <> p_print THEN result := 'key-conflict'; RETURN NEXT; RETURN; END IF;
    IF v_turn.id <> p_id THEN
      result := CASE WHEN v_turn.status IN ('queued', 'ready', 'running', 'waiting') THEN 'duplicate-open' ELSE 'duplicate' END;
      RETURN NEXT; RETURN;
    END IF;
    -- This very begin, whose answer was lost: it is adopted while the head still names its first fence.
    IF NOT coalesce(v_head.open_turn = p_id AND v_turn.epoch = 1 AND v_turn.lease_owner = p_holder
                    AND turn_fence_holds_v1(v_turn, v_head.open_epoch, v_head.open_token, clock_timestamp()), false) THEN
      result := turn_loss_v1(v_turn); epoch := 1; RETURN NEXT; RETURN;
    END IF;
    RETURN QUERY SELECT 'adopted'::text, p_id, v_turn.number, v_head.seq, v_turn.started_seq, v_turn.epoch, v_turn.token,
      v_turn.attempts, extract(epoch FROM clock_timestamp() - v_turn.opened_at)::double precision; RETURN;
  END IF;
  IF turn_run_used_v1(v_head, p_run) THEN result := 'run-reused'; RETURN NEXT; RETURN; END IF;
  PERFORM turn_live_v1(v_head, p_attempts_max);
  SELECT * INTO v_inbox FROM turns t WHERE t.session_id = p_session AND t.origin = 'inbox' AND t.status IN ('queued', 'ready')
    AND t.number IS NULL FOR NO KEY UPDATE;
  -- A new statement: a claim may have taken it while its lock was waited for.
  SELECT t.id INTO v_turn.id FROM turns t WHERE t.session_id = p_session AND t.status IN ('queued', 'ready', 'running', 'waiting')
    AND t.id IS DISTINCT FROM v_inbox.id ORDER BY t.position LIMIT 1;
  IF FOUND THEN result := 'busy'; turn_id := v_turn.id; RETURN NEXT; RETURN; END IF;
  -- What else must still hold is judged here, before anything opens: nothing is stored of a turn for which it does not.
  IF p_resumes IS NOT NULL THEN
    v_resume := turn_resume_refusal_v1(p_session, p_resumes);
    IF v_resume IS NOT NULL THEN result := 'resume-' || v_resume; RETURN NEXT; RETURN; END IF;
  END IF;
  IF p_origin = 'inbox' THEN
    result := inbox_judge_v1(p_session, p_claims);
    IF result <> 'waiting' THEN RETURN NEXT; RETURN; END IF;
    UPDATE turns t SET status = 'cancelled', code = 'turn.superseded', ended_at = clock_timestamp() WHERE t.id = v_inbox.id;
  ELSIF v_inbox.id IS NOT NULL THEN
    UPDATE turns t SET status = 'queued', position = (SELECT s.next_position FROM sessions s WHERE s.id = p_session)
      WHERE t.id = v_inbox.id;
    v_position := v_inbox.position;
  END IF;
  SELECT * INTO v_head FROM sessions WHERE id = p_session;
  v_now := clock_timestamp();
  INSERT INTO turns (id, session_id, owner, position, number, origin, status, key, fingerprint, message, command, meta, run_id,
                     agent, agent_revision, on_worker_loss, priority, due_at, admitted_at, admitted_seq, opened_at, started_seq,
                     max_duration_s, lease_owner, epoch, token, expires_at, resumes, resumes_number)
    VALUES (p_id, p_session, p_owner, coalesce(v_position, v_head.next_position), v_head.next_number, p_origin, 'running', p_key, p_print, p_message,
            p_command, p_meta, p_run, p_agent, p_revision, p_on_worker_loss, p_priority, v_now, v_now, v_head.seq, v_now,
            v_head.seq + 1, p_max_duration_s, p_holder, 1, v_token,
            coalesce(v_now + make_interval(secs => p_lease_s), 'infinity'),
            (SELECT t.id FROM turns t WHERE t.session_id = p_session AND t.origin = 'user' AND t.number = p_resumes), p_resumes);
  INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
    VALUES (p_session, 'turn', coalesce(p_key, p_id::text), p_print, p_id::text),
           (p_session, 'run', p_run, '', p_id::text);
  v_seq := log_append_v1(p_session, v_head.next_number, p_commit, p_kinds, p_texts, p_digests, true);
  UPDATE sessions SET open_turn = p_id, open_epoch = 1, open_token = v_token, next_position = next_position + 1,
      next_number = next_number + 1, title = coalesce(title, p_title)
    WHERE id = p_session;
  UPDATE turns t SET opened_seq = v_seq WHERE t.id = p_id;
  IF p_origin = 'inbox' THEN PERFORM inbox_claim_v2(p_session, p_id, p_claims); END IF;
  RETURN QUERY SELECT 'opened'::text, p_id, v_head.next_number, v_seq, v_head.seq + 1, 1::bigint, v_token, 0, 0::double precision;
END $$;

-- Nothing calls it any more: both openings above are its only callers.
DROP FUNCTION inbox_claim_v1(text, uuid);
