-- Cancels that repeat, sweeps in one statement a batch, and rows that move to another revision. Rules: docs/core.md 5, 7, 8.

CREATE OR REPLACE FUNCTION turn_cancel_v1(p_id uuid, p_owner text, p_attempts_max int)
RETURNS TABLE (result text, status text, outcome text, code text, holder text, session_id text, after_seq bigint)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_session text; v_head sessions; v_turn turns; v_reply text; v_holder text; v_result text;
BEGIN
  SELECT t.session_id INTO v_session FROM turns t WHERE t.id = p_id AND t.owner = p_owner;
  IF v_session IS NULL THEN RETURN QUERY SELECT 'missing'::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::bigint; RETURN; END IF;
  SELECT * INTO v_head FROM sessions WHERE id = v_session FOR NO KEY UPDATE;
  SELECT * INTO v_turn FROM turns t WHERE t.id = p_id FOR NO KEY UPDATE;
  IF v_head.id IS NULL OR v_turn.id IS NULL THEN
    RETURN QUERY SELECT 'missing'::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::bigint; RETURN;
  END IF;
  v_holder := v_turn.lease_owner;
  IF v_turn.status = 'cancelled' OR v_turn.outcome = 'cancelled' THEN
    -- What a cancel is for holds already: a repeat, also after a lost answer, reads as the first one.
    v_result := 'cancelled';
  ELSIF v_turn.status IN ('ended', 'refused', 'expired') THEN
    v_result := 'finished';
  ELSIF v_head.open_turn = p_id THEN
    v_reply := turn_reply_outcome_v1(v_turn);
    IF v_reply IS NOT NULL THEN
      PERFORM turn_close_open_v1(v_turn, v_reply, NULL); v_result := 'replied';
    ELSIF turn_is_dead_v1(v_turn, clock_timestamp(), p_attempts_max) THEN
      PERFORM turn_reap_locked_v1(v_turn, v_head.open_turn, p_attempts_max); v_result := 'reaped';
    ELSE
      PERFORM turn_close_open_v1(v_turn, 'cancelled', NULL); v_result := 'cancelled';
    END IF;
  ELSIF v_turn.origin = 'inbox' THEN
    v_result := 'inbox';
  ELSE
    UPDATE turns t SET status = 'cancelled', ended_at = clock_timestamp(), lease_owner = NULL, token = NULL,
                       expires_at = NULL WHERE t.id = p_id;
    PERFORM turn_promote_v1(v_session); v_result := 'cancelled';
  END IF;
  RETURN QUERY SELECT v_result, t.status, t.outcome, t.code, v_holder, v_session, s.seq
    FROM turns t JOIN sessions s ON s.id = t.session_id WHERE t.id = p_id;
END $$;

-- Reaps those of these rows that are (still) dead, each under its head; a head that is busy is skipped until next time, so
-- that a batch waits for no session and two batches never for each other.
CREATE FUNCTION turn_reap_v2(p_ids uuid[], p_attempts_max int) RETURNS SETOF uuid
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_id uuid; v_done record;
BEGIN
  FOREACH v_id IN ARRAY p_ids LOOP
    FOR v_done IN SELECT r.result FROM turn_reap_v1(v_id, p_attempts_max) r LOOP RETURN NEXT v_id; END LOOP;
  END LOOP;
END $$;

-- Ends those of these rows that never opened and whose deadline passed, likewise.
CREATE FUNCTION turn_expire_v2(p_ids uuid[]) RETURNS SETOF uuid
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_id uuid; v_done record;
BEGIN
  FOREACH v_id IN ARRAY p_ids LOOP
    FOR v_done IN SELECT e.owner FROM turn_expire_v1(v_id) e LOOP RETURN NEXT v_id; END LOOP;
  END LOOP;
END $$;

-- Gives waiting rows another agent revision, so that workers which serve that one take them. Moves inside the unfinished
-- rows: takes row locks only, and passes over rows that a claim has just now.
CREATE FUNCTION turn_move_revision_v1(p_from text, p_to text, p_limit int) RETURNS int
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_ids uuid[];
BEGIN
  SELECT coalesce(array_agg(w.id), '{}') INTO v_ids FROM (
    SELECT t.id FROM turns t WHERE t.status IN ('queued', 'ready') AND t.agent_revision = p_from
      ORDER BY t.owner LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED) w;
  UPDATE turns SET agent_revision = p_to WHERE id = ANY (v_ids);
  RETURN cardinality(v_ids);
END $$;
