-- Archived ranges of a log: the oldest records of a session in bounded, compressed segments, always a prefix of its log.
-- A record keeps its seq, text and digest, and each segment both of its anchors in the digest chain (THR-104).
-- A segment is written only by its own session's transaction, under its head, so it may point at the head and leaves with it
-- whichever code removes the session (docs/core.md section 2, rule 2).

CREATE TYPE archived_record AS (seq bigint, turn int, kind text, at timestamptz, data text, digest bytea);

CREATE TABLE record_archives (
  session_id       text NOT NULL REFERENCES sessions ON DELETE CASCADE,
  first_seq        bigint NOT NULL,
  last_seq         bigint NOT NULL,
  tail_before      bytea NOT NULL,
  tail_after       bytea NOT NULL,
  bytes            bigint NOT NULL,
  body             archived_record[] NOT NULL,
  archived_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (session_id, last_seq),
  CONSTRAINT record_archives_range CHECK (first_seq BETWEEN 1 AND last_seq)
);

-- Moves the records p_first to p_through into one segment, in one transaction under the head's lock. The caller has verified
-- the log and says which anchors it found; both are computed anew here from the stored rows, so that nothing is moved that
-- does not verify. Results: archived, missing, moved (p_first is not the oldest live record, or an anchor of the segment
-- before is another), open (an open turn needs them, or nothing would stay live), large, corrupt.
CREATE FUNCTION archive_range_v1(p_session text, p_owner text, p_first bigint, p_through bigint, p_before bytea, p_after bytea,
                                 p_max_records int, p_max_bytes bigint) RETURNS text
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_head sessions; v_last bigint; v_tail bytea; v_open bigint; v_body archived_record[]; v_bytes bigint; v_sound bool;
        v_largest bigint; v_one archived_record;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session AND owner = p_owner FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN 'missing'; END IF;
  SELECT last_seq, tail_after INTO v_last, v_tail FROM record_archives WHERE session_id = p_session
    ORDER BY last_seq DESC LIMIT 1;
  v_tail := coalesce(v_tail, sha256(convert_to(p_session, 'UTF8')));
  IF p_first <> coalesce(v_last, 0) + 1 OR p_before <> v_tail THEN RETURN 'moved'; END IF;
  SELECT started_seq INTO v_open FROM turns WHERE id = v_head.open_turn;
  IF p_through < p_first OR p_through >= least(v_head.seq, coalesce(v_open, v_head.seq)) THEN RETURN 'open'; END IF;
  IF p_through - p_first >= p_max_records THEN RETURN 'large'; END IF;
  SELECT array_agg(ROW (seq, turn, kind, at, data, digest)::archived_record ORDER BY seq), sum(octet_length(data)),
         max(octet_length(data)), bool_and(digest = record_digest_v1(kind, data))
    INTO v_body, v_bytes, v_largest, v_sound
    FROM records WHERE session_id = p_session AND seq BETWEEN p_first AND p_through;
  IF v_bytes > p_max_bytes AND v_bytes <> v_largest THEN RETURN 'large'; END IF;
  IF coalesce(cardinality(v_body), 0) <> p_through - p_first + 1 OR NOT v_sound THEN RETURN 'corrupt'; END IF;
  FOREACH v_one IN ARRAY v_body LOOP
    v_tail := sha256(v_tail || int8send(v_one.seq) || int4send(coalesce(v_one.turn, 0)) || v_one.digest);
  END LOOP;
  IF v_tail <> p_after THEN RETURN 'corrupt'; END IF;
  INSERT INTO record_archives (session_id, first_seq, last_seq, tail_before, tail_after, bytes, body)
    VALUES (p_session, p_first, p_through, p_before, p_after, v_bytes, v_body);
  DELETE FROM records WHERE session_id = p_session AND seq BETWEEN p_first AND p_through;
  RETURN 'archived';
END $$;

-- Archived records in order, forwards from p_after or backwards from p_before, until p_limit of them, or until those answered
-- hold p_max_bytes together. Opens one segment after the other, and none past what is asked for.
CREATE FUNCTION archive_read_v1(p_session text, p_after bigint, p_limit int, p_kinds text[], p_turn int, p_max_bytes bigint)
RETURNS TABLE (session_id text, seq bigint, turn int, kind text, at timestamptz, data text, digest bytea)
LANGUAGE plpgsql STABLE ROWS 100 AS $$
#variable_conflict use_column
DECLARE v_body archived_record[]; v_one archived_record; v_count int := 0; v_bytes bigint := 0;
BEGIN
  FOR v_body IN SELECT s.body FROM record_archives s WHERE s.session_id = p_session AND s.last_seq > p_after
                  ORDER BY s.last_seq LOOP
    FOREACH v_one IN ARRAY v_body LOOP
      CONTINUE WHEN v_one.seq <= p_after OR NOT (v_one.kind = ANY (p_kinds) OR cardinality(p_kinds) = 0)
                    OR v_one.turn IS DISTINCT FROM coalesce(p_turn, v_one.turn);
      session_id := p_session; seq := v_one.seq; turn := v_one.turn; kind := v_one.kind; at := v_one.at; data := v_one.data;
      digest := v_one.digest;
      RETURN NEXT;
      v_count := v_count + 1;
      v_bytes := v_bytes + octet_length(v_one.data);
      IF v_count >= p_limit OR v_bytes >= p_max_bytes THEN RETURN; END IF;
    END LOOP;
  END LOOP;
END $$;

CREATE FUNCTION archive_read_back_v1(p_session text, p_before bigint, p_limit int, p_kinds text[])
RETURNS TABLE (session_id text, seq bigint, turn int, kind text, at timestamptz, data text, digest bytea)
LANGUAGE plpgsql STABLE ROWS 100 AS $$
#variable_conflict use_column
DECLARE v_body archived_record[]; v_one archived_record; v_count int := 0; v_place int;
BEGIN
  FOR v_body IN SELECT s.body FROM record_archives s WHERE s.session_id = p_session AND s.first_seq < p_before
                  ORDER BY s.last_seq DESC LOOP
    FOR v_place IN REVERSE cardinality(v_body) .. 1 LOOP
      v_one := v_body[v_place];
      CONTINUE WHEN v_one.seq >= p_before OR NOT (v_one.kind = ANY (p_kinds) OR cardinality(p_kinds) = 0);
      session_id := p_session; seq := v_one.seq; turn := v_one.turn; kind := v_one.kind; at := v_one.at; data := v_one.data;
      digest := v_one.digest;
      RETURN NEXT;
      v_count := v_count + 1;
      IF v_count >= p_limit THEN RETURN; END IF;
    END LOOP;
  END LOOP;
END $$;

-- As in 0002, and its last closed turn may lie in the archive.
CREATE OR REPLACE FUNCTION session_fork_v1(p_id text, p_parent text, p_owner text, p_print text, p_tail bytea, p_inherit bool)
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
    IF NOT FOUND THEN
      SELECT r.seq, r.turn INTO v_through, v_number
        FROM archive_read_back_v1(p_parent, v_parent.seq + 1, 1, ARRAY['turn.ended']) r;
    END IF;
    v_through := coalesce(v_through, 0);
    v_number := coalesce(v_number, v_parent.parent_number, 0);
  END IF;
  INSERT INTO sessions (id, owner, create_print, parent, parent_through, parent_number, next_number, tail)
    VALUES (p_id, p_owner, p_print, p_parent, v_through, v_number, coalesce(v_number, 0) + 1, p_tail)
    ON CONFLICT DO NOTHING;
  RETURN CASE WHEN FOUND THEN 'forked' ELSE 'exists' END;
END $$;
