-- The host's door to sessions: an append that checks first or extends its lease; forks; removal of every descendant.
-- Lock order and clocks: docs/core.md section 2. Code of schema 1 goes on calling the functions of 0001.

-- As turn_append_v1; with p_expect only while the session's revision is that one, and with p_extend_s the lease's end
-- moves with the write. A lost fence is answered before anything else, a repeated commit before the revision.
CREATE FUNCTION turn_append_v2(p_id uuid, p_session text, p_epoch bigint, p_token uuid, p_commit text, p_stepped bool,
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
  v_seq := log_append_v1(p_session, v_turn.number, p_commit, p_kinds, p_texts, p_digests, false);
  IF p_calls IS NOT NULL THEN PERFORM turn_ledger_v1(p_session, p_id, p_calls, v_seq); END IF;
  IF p_stepped AND (v_turn.attempts <> 0 OR v_turn.suspect OR v_turn.alive_losses <> 0 OR NOT v_turn.stepped) THEN
    -- A claim may have taken the row since it was judged: the loss that it counted stays counted.
    UPDATE turns SET attempts = 0, suspect = false, alive_losses = 0, stepped = true WHERE id = p_id AND epoch = p_epoch;
  END IF;
  RETURN QUERY SELECT 'appended'::text, v_seq, v_head.revision + 1;
END $$;

-- Makes a child of a session (SES-71). With p_inherit its history is the parent's up to its last closed turn, whose
-- number its own turns count on from: both are fixed here, under the parent's head, so that neither moves later.
CREATE FUNCTION session_fork_v1(p_id text, p_parent text, p_owner text, p_print text, p_tail bytea, p_inherit bool)
RETURNS text
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_parent sessions; v_through bigint; v_number int;
BEGIN
  SELECT * INTO v_parent FROM sessions WHERE id = p_parent AND owner = p_owner FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN 'missing'; END IF;
  -- A repeat after a lost answer finds what it made.
  PERFORM 1 FROM sessions WHERE id = p_id AND parent = p_parent;
  IF FOUND THEN RETURN 'forked'; END IF;
  IF p_inherit THEN
    SELECT r.seq, r.turn INTO v_through, v_number FROM records r
      WHERE r.session_id = p_parent AND r.kind = 'turn.ended' ORDER BY r.seq DESC LIMIT 1;
    v_through := coalesce(v_through, 0);
    v_number := coalesce(v_number, v_parent.parent_number, 0);
  END IF;
  INSERT INTO sessions (id, owner, create_print, parent, parent_through, parent_number, next_number, tail)
    VALUES (p_id, p_owner, p_print, p_parent, v_through, v_number, coalesce(v_number, 0) + 1, p_tail)
    ON CONFLICT DO NOTHING;
  RETURN CASE WHEN FOUND THEN 'forked' ELSE 'exists' END;
END $$;

-- Removes a session and all its descendants: what a fork inherits is read from its ancestors, so none may stay behind.
-- Parent first, then its children by id, generation by generation; a fork waits for its parent's head and finds it gone.
CREATE FUNCTION session_remove_v2(p_session text, p_owner text) RETURNS text[]
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_ids text[]; v_generation text[];
BEGIN
  PERFORM 1 FROM sessions WHERE id = p_session AND owner = p_owner FOR UPDATE;
  IF NOT FOUND THEN RETURN '{}'; END IF;
  v_ids := ARRAY[p_session];
  v_generation := v_ids;
  LOOP
    SELECT coalesce(array_agg(id), '{}') INTO v_generation
      FROM (SELECT id FROM sessions WHERE parent = ANY (v_generation) ORDER BY id FOR UPDATE) children;
    EXIT WHEN v_generation = '{}';
    v_ids := v_ids || v_generation;
  END LOOP;
  DELETE FROM turns WHERE session_id = ANY (v_ids);
  DELETE FROM tool_calls WHERE session_id = ANY (v_ids);
  DELETE FROM session_keys WHERE session_id = ANY (v_ids);
  DELETE FROM media WHERE session_id = ANY (v_ids);
  DELETE FROM jobs WHERE pool = 'activity' AND id IN (SELECT job_id FROM activity_progress WHERE session_id = ANY (v_ids));
  DELETE FROM activity_progress WHERE session_id = ANY (v_ids);
  DELETE FROM deliveries WHERE child = ANY (v_ids) OR parent = ANY (v_ids);
  DELETE FROM records WHERE session_id = ANY (v_ids);
  DELETE FROM sessions WHERE id = ANY (v_ids);
  RETURN v_ids;
END $$;
