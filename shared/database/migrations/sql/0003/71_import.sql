-- The head of a session that is made from a transfer file, in the one transaction that makes all of it. The wait for another
-- transaction that makes a session of this id, or of this creation key, has a bound. Results: created, duplicate (made from
-- this very file before), exists.
CREATE FUNCTION import_begin_v1(p_id text, p_owner text, p_create_key text, p_create_print text, p_title text, p_meta text,
                                p_state text, p_seq bigint, p_revision bigint, p_tail bytea, p_next_position bigint,
                                p_next_number int, p_created_at timestamptz, p_updated_at timestamptz, p_active_at timestamptz,
                                p_mark text, p_retained bool) RETURNS text
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
BEGIN
  INSERT INTO sessions (id, owner, create_key, create_print, title, meta, state, seq, revision, tail, next_position, next_number,
                        created_at, updated_at, active_at, retained)
    VALUES (p_id, p_owner, p_create_key, p_create_print, p_title, p_meta, p_state, p_seq, p_revision, p_tail, p_next_position,
            p_next_number, p_created_at, p_updated_at, p_active_at, p_retained) ON CONFLICT DO NOTHING;
  IF FOUND THEN
    INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
      VALUES (p_id, 'commit', p_mark, p_mark, p_revision || ':' || p_seq);
    RETURN 'created';
  END IF;
  -- A new statement: the insert that lost saw nothing of the winner.
  PERFORM 1 FROM sessions s JOIN session_keys k ON k.session_id = s.id
    WHERE s.id = p_id AND s.owner = p_owner AND k.space = 'commit' AND k.key = p_mark;
  RETURN CASE WHEN FOUND THEN 'duplicate' ELSE 'exists' END;
END $$;
