-- The turn queue of schema 2: admission over inherited history, a host's begin, ends that tell what waits.
-- Functions of schema 1 that code of this release no longer calls stay until the next one. Rules: docs/core.md 2 to 8.

-- Whether a run id was used: by a turn of the session, or of the history that a fork inherits (SES-45).
-- VOLATILE as its callers: it judges after they locked the head. What a fork inherits is closed and changes no more.
CREATE FUNCTION turn_run_used_v1(p_head sessions, p_run text) RETURNS bool
LANGUAGE plpgsql AS $$
DECLARE v_ancestor text := p_head.parent; v_through int := p_head.parent_number;
BEGIN
  PERFORM 1 FROM session_keys WHERE session_id = p_head.id AND space = 'run' AND key = p_run;
  IF FOUND THEN RETURN true; END IF;
  WHILE v_ancestor IS NOT NULL AND v_through > 0 LOOP
    PERFORM 1 FROM session_keys k JOIN turns t ON t.id = k.answer::uuid
      WHERE k.session_id = v_ancestor AND k.space = 'run' AND k.key = p_run AND t.number <= v_through;
    IF FOUND THEN RETURN true; END IF;
    SELECT s.parent, least(s.parent_number, v_through) INTO v_ancestor, v_through FROM sessions s WHERE s.id = v_ancestor;
  END LOOP;
  RETURN false;
END $$;

-- The session's live row after a dead one was reaped; the caller holds the head's lock.
CREATE FUNCTION turn_live_v1(p_head sessions, p_attempts_max int) RETURNS turns
LANGUAGE plpgsql AS $$
DECLARE v_live turns;
BEGIN
  SELECT * INTO v_live FROM turns WHERE session_id = p_head.id AND status IN ('ready', 'running', 'waiting');
  IF v_live.id IS NULL OR NOT turn_is_dead_v1(v_live, clock_timestamp(), p_attempts_max) THEN RETURN v_live; END IF;
  SELECT * INTO v_live FROM turns WHERE id = v_live.id FOR NO KEY UPDATE;
  IF turn_is_dead_v1(v_live, clock_timestamp(), p_attempts_max) THEN
    PERFORM turn_reap_locked_v1(v_live, p_head.open_turn, p_attempts_max);
    SELECT * INTO v_live FROM turns WHERE session_id = p_head.id AND status IN ('ready', 'running', 'waiting');
  END IF;
  RETURN v_live;
END $$;

-- Opens a turn in the process of a host: its row is inserted already running, under the first fence of its life, and the
-- log opens with its first records. Judged in this order: key, run id, unfinished row. An infinite lease is no lease: the
-- turn is held until it ends, or until `turn_abandon` is told that its process is gone.
CREATE FUNCTION turn_begin_v1(
  p_id uuid, p_session text, p_owner text, p_key text, p_print text, p_run text, p_message text, p_command text,
  p_meta text, p_agent text, p_revision text, p_on_worker_loss text, p_priority int, p_max_duration_s real,
  p_attempts_max int, p_holder text, p_lease_s real, p_commit text, p_title text, p_kinds text[], p_texts text[],
  p_digests bytea[])
RETURNS TABLE (result text, turn_id uuid, number int, seq bigint, started_seq bigint, epoch bigint, token uuid,
               attempts int, open_for_s double precision)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_key session_keys; v_turn turns; v_now timestamptz; v_seq bigint; v_token uuid := gen_random_uuid();
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session AND owner = p_owner FOR NO KEY UPDATE;
  IF NOT FOUND THEN result := 'missing'; RETURN NEXT; RETURN; END IF;
  SELECT * INTO v_key FROM session_keys WHERE session_id = p_session AND space = 'turn' AND key = coalesce(p_key, p_id::text);
  IF v_key.key IS NOT NULL THEN
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
  SELECT t.id INTO v_turn.id FROM turns t WHERE t.session_id = p_session AND t.status IN ('queued', 'ready', 'running', 'waiting')
    ORDER BY t.position LIMIT 1;
  IF FOUND THEN result := 'busy'; turn_id := v_turn.id; RETURN NEXT; RETURN; END IF;
  SELECT * INTO v_head FROM sessions WHERE id = p_session;
  v_now := clock_timestamp();
  INSERT INTO turns (id, session_id, owner, position, number, origin, status, key, fingerprint, message, command, meta, run_id,
                     agent, agent_revision, on_worker_loss, priority, due_at, admitted_at, admitted_seq, opened_at, started_seq,
                     max_duration_s, lease_owner, epoch, token, expires_at)
    VALUES (p_id, p_session, p_owner, v_head.next_position, v_head.next_number, 'user', 'running', p_key, p_print, p_message,
            p_command, p_meta, p_run, p_agent, p_revision, p_on_worker_loss, p_priority, v_now, v_now, v_head.seq, v_now,
            v_head.seq + 1, p_max_duration_s, p_holder, 1, v_token,
            coalesce(v_now + make_interval(secs => p_lease_s), 'infinity'));
  INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
    VALUES (p_session, 'turn', coalesce(p_key, p_id::text), p_print, p_id::text),
           (p_session, 'run', p_run, '', p_id::text);
  v_seq := log_append_v1(p_session, v_head.next_number, p_commit, p_kinds, p_texts, p_digests, true);
  UPDATE sessions SET open_turn = p_id, open_epoch = 1, open_token = v_token, next_position = next_position + 1,
      next_number = next_number + 1, title = coalesce(title, p_title)
    WHERE id = p_session;
  RETURN QUERY SELECT 'opened'::text, p_id, v_head.next_number, v_seq, v_head.seq + 1, 1::bigint, v_token, 0, 0::double precision;
END $$;

CREATE FUNCTION turn_open_v2(p_id uuid, p_session text, p_epoch bigint, p_token uuid, p_commit text,
                             p_title text, p_kinds text[], p_texts text[], p_digests bytea[])
RETURNS TABLE (result text, number int, seq bigint, started_seq bigint)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_turn turns; v_now timestamptz; v_seq bigint;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session FOR NO KEY UPDATE;
  IF NOT FOUND THEN result := 'removed'; RETURN NEXT; RETURN; END IF;
  SELECT * INTO v_turn FROM turns WHERE id = p_id FOR NO KEY UPDATE;
  v_now := clock_timestamp();
  IF NOT coalesce(v_turn.session_id = p_session AND turn_fence_holds_v1(v_turn, p_epoch, p_token, v_now), false) THEN
    result := turn_loss_v1(v_turn); RETURN NEXT; RETURN;
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
  v_seq := log_append_v1(p_session, v_head.next_number, p_commit, p_kinds, p_texts, p_digests, true);
  UPDATE sessions SET open_turn = p_id, open_epoch = p_epoch, open_token = p_token, next_number = next_number + 1,
      title = coalesce(title, p_title)
    WHERE id = p_session;
  UPDATE turns SET number = v_head.next_number, opened_at = v_now, started_seq = v_head.seq + 1 WHERE id = p_id;
  RETURN QUERY SELECT 'opened'::text, v_head.next_number, v_seq, v_head.seq + 1;
END $$;

-- Answers 'stored' with what waits then (the head's inbox), or why the fence does not hold.
CREATE FUNCTION turn_end_v2(p_id uuid, p_session text, p_epoch bigint, p_token uuid, p_commit text,
                            p_kinds text[], p_texts text[], p_digests bytea[], p_calls jsonb,
                            p_outcome text, p_code text, p_failure text, p_usage text)
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
  v_seq := log_append_v1(p_session, v_turn.number, p_commit, p_kinds, p_texts, p_digests, true);
  IF p_calls IS NOT NULL THEN PERFORM turn_ledger_v1(p_session, p_id, p_calls, v_seq); END IF;
  UPDATE turns SET status = 'ended', outcome = p_outcome, code = p_code, last_failure = coalesce(p_failure, last_failure),
                   usage = p_usage, end_commit = p_commit, ended_at = v_now, lease_owner = NULL, token = NULL,
                   expires_at = NULL WHERE id = p_id;
  UPDATE sessions SET open_turn = NULL, open_epoch = NULL, open_token = NULL WHERE id = p_session;
  PERFORM activity_owe_v1(p_session, v_turn.owner);
  RETURN QUERY SELECT 'stored'::text, v_seq, turn_promote_v1(p_session), v_head.inbox_waiting;
END $$;

-- Closes an open turn that is held without a lease, under exactly this fence: its process is known to be gone.
CREATE FUNCTION turn_abandon_v1(p_id uuid, p_epoch bigint, p_token uuid) RETURNS bool
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_session text; v_head sessions; v_turn turns; v_reply text;
BEGIN
  SELECT t.session_id INTO v_session FROM turns t WHERE t.id = p_id;
  SELECT * INTO v_head FROM sessions s WHERE s.id = v_session FOR NO KEY UPDATE;
  SELECT * INTO v_turn FROM turns t WHERE t.id = p_id FOR NO KEY UPDATE;
  IF NOT coalesce(v_head.open_turn = p_id AND v_head.open_epoch = p_epoch AND v_head.open_token = p_token
                  AND v_turn.status = 'running' AND v_turn.epoch = p_epoch AND v_turn.token = p_token
                  AND v_turn.expires_at = 'infinity', false) THEN RETURN false; END IF;
  v_reply := turn_reply_outcome_v1(v_turn);
  PERFORM turn_close_open_v1(v_turn, coalesce(v_reply, 'interrupted'), CASE WHEN v_reply IS NULL THEN 'turn.lease' END);
  RETURN true;
END $$;

-- Renews all that a process holds, in one statement; a row locked by someone else is answered 'skipped'. A turn that is
-- held without a lease gets none: it is answered 'renewed' while it is held.
CREATE OR REPLACE FUNCTION turn_renew_v1(p_ids uuid[], p_tokens uuid[], p_lease_s real)
RETURNS TABLE (turn_id uuid, result text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_locked uuid[]; v_renewed uuid[]; v_now timestamptz;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  SELECT coalesce(array_agg(l.id), '{}') INTO v_locked FROM (
    SELECT t.id FROM turns t WHERE t.id = ANY (p_ids) ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED) l;
  v_now := clock_timestamp();
  WITH held AS (
    UPDATE turns t SET expires_at = CASE WHEN isfinite(t.expires_at) THEN v_now + make_interval(secs => p_lease_s)
                                         ELSE t.expires_at END
      FROM unnest(p_ids, p_tokens) AS mine (id, token)
      WHERE t.id = mine.id AND t.token = mine.token AND t.status = 'running' AND t.expires_at >= v_now
        AND t.id = ANY (v_locked)
      RETURNING t.id)
  SELECT coalesce(array_agg(id), '{}') INTO v_renewed FROM held;
  RETURN QUERY SELECT mine.id, CASE WHEN mine.id = ANY (v_renewed) THEN 'renewed'
                                    WHEN mine.id = ANY (v_locked) THEN 'lost'
                                    WHEN EXISTS (SELECT 1 FROM turns t WHERE t.id = mine.id AND t.token = mine.token
                                                   AND t.status = 'running') THEN 'skipped'
                                    ELSE 'lost' END
    FROM unnest(p_ids, p_tokens) AS mine (id, token);
END $$;
