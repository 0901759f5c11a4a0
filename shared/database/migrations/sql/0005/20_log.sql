-- One change of a session's head a commit: what an append moves and what the turn changes in it, written together.

-- Appends records to the log of a session whose head the caller has locked and read: p_seq and p_tail are its. The head names
-- p_open_turn with its fence from then on, or nothing (NULL). Answers the new seq.
CREATE FUNCTION log_append_v2(p_session text, p_seq bigint, p_tail bytea, p_turn int, p_commit text, p_kinds text[], p_texts text[],
                              p_digests bytea[], p_open_turn uuid, p_open_epoch bigint, p_open_token uuid, p_opened int,
                              p_title text, p_active bool) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE v_at timestamptz := clock_timestamp(); v_count int := coalesce(cardinality(p_kinds), 0);
BEGIN
  INSERT INTO records (session_id, seq, turn, kind, at, data, digest)
    SELECT p_session, p_seq + n, p_turn, kind, v_at, data, digest
      FROM unnest(p_kinds, p_texts, p_digests) WITH ORDINALITY AS new (kind, data, digest, n);
  UPDATE sessions SET seq = p_seq + v_count, tail = chain_tail_v1(p_tail, p_seq, p_turn, p_digests), revision = revision + 1,
                      last_commit = coalesce(p_commit, last_commit),
                      last_seq = CASE WHEN p_commit IS NULL THEN last_seq ELSE p_seq + v_count END,
                      open_turn = p_open_turn, open_epoch = p_open_epoch, open_token = p_open_token,
                      next_number = next_number + p_opened, title = coalesce(title, p_title),
                      updated_at = v_at, active_at = CASE WHEN p_active THEN v_at ELSE active_at END
    WHERE id = p_session;
  RETURN p_seq + v_count;
END $$;
