-- The session log: digest chain, append under a locked head, creation, commits outside a turn, removal.
-- All functions are VOLATILE plpgsql: each statement in them sees what was committed before it began, so that a
-- statement which waited for a lock is followed by a new one that judges (docs/core.md section 2).

CREATE FUNCTION record_digest_v1(p_kind text, p_data text) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN sha256(convert_to(p_kind, 'UTF8') || '\x00'::bytea || convert_to(p_data, 'UTF8'));

CREATE FUNCTION chain_tail_v1(p_tail bytea, p_seq bigint, p_turn int, p_digests bytea[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE v_tail bytea := p_tail; v_n int;
BEGIN
  FOR v_n IN 1 .. coalesce(array_length(p_digests, 1), 0) LOOP
    v_tail := sha256(v_tail || int8send(p_seq + v_n) || int4send(coalesce(p_turn, 0)) || p_digests[v_n]);
  END LOOP;
  RETURN v_tail;
END $$;

-- Appends records to the log of a session whose head the caller has locked; answers the new seq.
CREATE FUNCTION log_append_v1(p_session text, p_turn int, p_commit text, p_kinds text[], p_texts text[],
                              p_digests bytea[], p_active bool) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE v_seq bigint; v_tail bytea; v_at timestamptz := clock_timestamp(); v_count int := coalesce(array_length(p_kinds, 1), 0);
BEGIN
  SELECT seq, tail INTO STRICT v_seq, v_tail FROM sessions WHERE id = p_session;
  INSERT INTO records (session_id, seq, turn, kind, at, data, digest)
    SELECT p_session, v_seq + n, p_turn, kind, v_at, data, digest
      FROM unnest(p_kinds, p_texts, p_digests) WITH ORDINALITY AS new (kind, data, digest, n);
  UPDATE sessions SET seq = v_seq + v_count, tail = chain_tail_v1(v_tail, v_seq, p_turn, p_digests),
                      revision = revision + 1, last_commit = coalesce(p_commit, last_commit),
                      last_seq = CASE WHEN p_commit IS NULL THEN last_seq ELSE v_seq + v_count END,
                      updated_at = v_at, active_at = CASE WHEN p_active THEN v_at ELSE active_at END
    WHERE id = p_session;
  RETURN v_seq + v_count;
END $$;

CREATE FUNCTION session_create_v1(p_id text, p_owner text, p_key text, p_print text, p_title text, p_meta text,
                                  p_tail bytea)
RETURNS TABLE (result text, session_id text)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_id text; v_print text;
BEGIN
  INSERT INTO owners (id) VALUES (p_owner) ON CONFLICT DO NOTHING;
  INSERT INTO sessions (id, owner, create_key, create_print, title, meta, tail)
    VALUES (p_id, p_owner, p_key, p_print, p_title, p_meta, p_tail) ON CONFLICT DO NOTHING;
  IF FOUND THEN RETURN QUERY SELECT 'created'::text, p_id; RETURN; END IF;
  -- A new statement: the insert that lost saw nothing of the winner.
  SELECT s.id, s.create_print INTO v_id, v_print FROM sessions s
    WHERE s.owner = p_owner AND s.create_key = p_key;
  IF v_id IS NULL THEN
    -- The id itself is taken: by this very creation whose answer was lost, or by someone else's.
    SELECT s.id, s.create_print INTO v_id, v_print FROM sessions s WHERE s.id = p_id AND s.owner = p_owner;
    IF v_id IS NULL THEN RETURN QUERY SELECT 'exists'::text, NULL::text; RETURN; END IF;
  END IF;
  RETURN QUERY SELECT CASE WHEN v_print = p_print THEN 'duplicate' ELSE 'exists' END, v_id;
END $$;

-- One compare-and-swap outside a turn (SES-13 to 18). `p_commit` makes a repeat answer the first result.
CREATE FUNCTION session_commit_v1(p_session text, p_owner text, p_commit text, p_print text, p_expect bigint,
                                  p_not_after timestamptz, p_kinds text[], p_texts text[], p_digests bytea[], p_state text)
RETURNS TABLE (result text, revision bigint, seq bigint, now timestamptz)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_key session_keys; v_now timestamptz; v_seq bigint;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session AND owner = p_owner FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN QUERY SELECT 'missing'::text, 0::bigint, 0::bigint, clock_timestamp(); RETURN; END IF;
  v_now := clock_timestamp();
  IF p_commit IS NOT NULL THEN
    SELECT * INTO v_key FROM session_keys WHERE session_id = p_session AND space = 'commit' AND key = p_commit;
    IF FOUND THEN
      RETURN QUERY SELECT CASE WHEN v_key.fingerprint = p_print THEN 'committed' ELSE 'key-conflict' END,
                          split_part(v_key.answer, ':', 1)::bigint, split_part(v_key.answer, ':', 2)::bigint, v_now;
      RETURN;
    END IF;
  END IF;
  IF p_expect IS NOT NULL AND p_expect <> v_head.revision THEN
    RETURN QUERY SELECT 'revision'::text, v_head.revision, v_head.seq, v_now; RETURN;
  END IF;
  IF p_not_after IS NOT NULL AND v_now > p_not_after THEN
    RETURN QUERY SELECT 'late'::text, v_head.revision, v_head.seq, v_now; RETURN;
  END IF;
  v_seq := log_append_v1(p_session, NULL, NULL, p_kinds, p_texts, p_digests, true);
  IF p_state IS NOT NULL THEN UPDATE sessions SET state = p_state WHERE id = p_session; END IF;
  IF p_commit IS NOT NULL THEN
    INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
      VALUES (p_session, 'commit', p_commit, p_print, (v_head.revision + 1) || ':' || v_seq);
  END IF;
  RETURN QUERY SELECT 'committed'::text, v_head.revision + 1, v_seq, v_now;
END $$;

-- Removes a session and its children: parent first, then the children by id.
CREATE FUNCTION session_remove_v1(p_session text, p_owner text) RETURNS text[]
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_ids text[];
BEGIN
  PERFORM 1 FROM sessions WHERE id = p_session AND owner = p_owner FOR UPDATE;
  IF NOT FOUND THEN RETURN '{}'; END IF;
  SELECT coalesce(array_agg(id), '{}') INTO v_ids
    FROM (SELECT id FROM sessions WHERE parent = p_session ORDER BY id FOR UPDATE) children;
  v_ids := p_session || v_ids;
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
