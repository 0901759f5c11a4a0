-- Whole turns of a session that no queue runs: input, messages and end in one append, behind exactly the tail that their
-- run began from (THR-50, THR-70). Such a session takes no turn of the queue, and one with turns takes no such append
-- (THR-76): both are judged under the head's lock.

ALTER TABLE sessions ADD COLUMN retained bool NOT NULL DEFAULT false;

CREATE FUNCTION session_retain_v1(p_session text, p_owner text, p_create_print text, p_first_tail bytea, p_title text,
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
  IF v_head.next_position > 1 OR v_head.next_number > 1 OR v_head.inbox_waiting > 0 THEN
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

-- Whatever inserts a row of the queue holds its session's head (core 2), so the mark stands still meanwhile. As a trigger
-- it holds for every door, those of older code too; the class of errors is ours alone.
CREATE FUNCTION turn_refuse_retained_v1() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM sessions WHERE id = NEW.session_id AND retained) THEN
    RAISE EXCEPTION 'the session keeps whole turns' USING ERRCODE = 'TK001';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER turns_refuse_retained BEFORE INSERT ON turns FOR EACH ROW EXECUTE FUNCTION turn_refuse_retained_v1();
