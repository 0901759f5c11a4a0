-- The inbox: what a delivery stores, the turn that answers it, and what becomes of its items. Rules: docs/core.md 4.
-- The caller of each function but the last two holds the head's lock. Lock order: head, turn rows, items.

-- Only a session's first unfinished row is ready, when none is live.
CREATE FUNCTION turn_make_ready_v1(p_session text) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE v_id uuid;
BEGIN
  UPDATE turns SET status = 'ready'
    WHERE id = (SELECT id FROM turns WHERE session_id = p_session
                  AND status IN ('queued', 'ready', 'running', 'waiting') ORDER BY position LIMIT 1)
      AND status = 'queued'
      AND NOT EXISTS (SELECT 1 FROM turns WHERE session_id = p_session AND status IN ('ready', 'running', 'waiting'))
    RETURNING id INTO v_id;
  RETURN v_id;
END $$;

-- Inserts the next inbox turn, last in order, when items wait and none is unfinished. It is as its oldest item says, else as
-- the session's last turn.
CREATE FUNCTION inbox_follow_v1(p_session text) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE v_head sessions; v_item inbox_items; v_last turns; v_id uuid := gen_random_uuid(); v_run text := gen_random_uuid()::text; v_priority int;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session;
  IF v_head.inbox_waiting = 0 THEN RETURN NULL; END IF;
  PERFORM 1 FROM turns WHERE session_id = p_session AND origin = 'inbox' AND status IN ('queued', 'ready', 'running', 'waiting');
  IF FOUND THEN RETURN NULL; END IF;
  SELECT * INTO v_item FROM inbox_items WHERE session_id = p_session AND turn_id IS NULL ORDER BY seq LIMIT 1;
  IF NOT FOUND THEN RETURN NULL; END IF;
  SELECT * INTO v_last FROM turns WHERE session_id = p_session ORDER BY position DESC LIMIT 1;
  v_priority := coalesce(v_last.priority, 1);
  UPDATE sessions SET next_position = next_position + 1 WHERE id = p_session;
  INSERT INTO turns (id, session_id, owner, pool, position, origin, status, fingerprint, meta, run_id, agent, agent_revision,
                     on_worker_loss, history, priority, admitted_seq, max_duration_s)
    VALUES (v_id, p_session, v_head.owner, coalesce(v_last.pool, 'turns'), v_head.next_position, 'inbox', 'queued', '', v_item.meta, v_run,
            coalesce(v_item.agent, v_last.agent, ''), coalesce(v_item.agent_revision, v_last.agent_revision, '1'),
            coalesce(v_last.on_worker_loss, 'continue'), coalesce(v_last.history, 'per-step'), v_priority, v_head.seq, v_last.max_duration_s);
  INSERT INTO session_keys (session_id, space, key, fingerprint, answer) VALUES (p_session, 'run', v_run, '', v_id::text);
  IF v_priority < 2 THEN
    -- As at admission: what waits before it must not hold it back.
    UPDATE turns SET priority = v_priority
      WHERE session_id = p_session AND status IN ('queued', 'ready', 'running', 'waiting') AND priority > v_priority;
  END IF;
  RETURN v_id;
END $$;

-- Whatever moves a row out of the unfinished ones calls this: first the inbox turn that is owed, then the next is ready.
CREATE OR REPLACE FUNCTION turn_promote_v1(p_session text) RETURNS uuid
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM inbox_follow_v1(p_session);
  RETURN turn_make_ready_v1(p_session);
END $$;

-- Stores an item with its record and its key, and has it answered; answers the record's seq, also when it was there before.
CREATE FUNCTION inbox_put_v1(p_head sessions, p_id text, p_source text, p_content text, p_record_text text, p_record_digest bytea,
                             p_meta text, p_agent text, p_revision text, p_attempts_max int DEFAULT 2) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE v_seq bigint;
BEGIN
  SELECT k.answer::bigint INTO v_seq FROM session_keys k WHERE k.session_id = p_head.id AND k.space = 'inbox' AND k.key = p_id;
  IF FOUND THEN RETURN v_seq; END IF;
  v_seq := log_append_v1(p_head.id, NULL, NULL, ARRAY['inbox.queued'], ARRAY[p_record_text], ARRAY[p_record_digest], true);
  INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
    VALUES (p_head.id, 'inbox', p_id, encode(p_record_digest, 'hex'), v_seq::text);
  INSERT INTO inbox_items (session_id, id, seq, source, content, attempts_max, agent, agent_revision, meta)
    VALUES (p_head.id, p_id, v_seq, p_source, p_content, p_attempts_max, p_agent, p_revision, p_meta);
  UPDATE sessions SET inbox_waiting = inbox_waiting + 1 WHERE id = p_head.id;
  PERFORM turn_promote_v1(p_head.id);
  RETURN v_seq;
END $$;

-- Whether exactly these items wait: 'waiting', 'moved' for others, 'empty' when none does.
CREATE FUNCTION inbox_judge_v1(p_session text, p_claims text[]) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE v_waiting text[]; v_claims text[];
BEGIN
  SELECT array_agg(i.id ORDER BY i.id) INTO v_waiting FROM inbox_items i WHERE i.session_id = p_session AND i.turn_id IS NULL;
  SELECT array_agg(c ORDER BY c) INTO v_claims FROM unnest(p_claims) AS c;
  RETURN CASE WHEN v_waiting IS NULL THEN 'empty' WHEN v_waiting = v_claims THEN 'waiting' ELSE 'moved' END;
END $$;

-- Gives all that waits to an inbox turn that opens.
CREATE FUNCTION inbox_claim_v1(p_session text, p_turn uuid) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  UPDATE inbox_items SET turn_id = p_turn WHERE session_id = p_session AND turn_id IS NULL;
  UPDATE sessions SET inbox_waiting = 0 WHERE id = p_session;
END $$;

-- Drops what waits and was tried as often as it may be, each with a record outside any turn.
CREATE FUNCTION inbox_drop_spent_v1(p_session text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_texts text[];
BEGIN
  WITH spent AS (
    DELETE FROM inbox_items WHERE session_id = p_session AND turn_id IS NULL AND attempts >= attempts_max RETURNING id, seq, attempts)
  SELECT array_agg('{"attempts":' || s.attempts || ',"id":' || to_json(s.id)::text || ',"v":1}' ORDER BY s.seq) INTO v_texts FROM spent s;
  IF v_texts IS NULL THEN RETURN; END IF;
  PERFORM log_append_v1(p_session, NULL, NULL, array_fill('inbox.dropped'::text, ARRAY[cardinality(v_texts)]), v_texts,
                        (SELECT array_agg(record_digest_v1('inbox.dropped', t) ORDER BY n) FROM unnest(v_texts) WITH ORDINALITY AS x (t, n)), true);
  UPDATE sessions SET inbox_waiting = inbox_waiting - cardinality(v_texts) WHERE id = p_session;
END $$;

-- What becomes of the items of an inbox turn that ended: done, or waiting again, tried once more if the end counts. After its
-- turn.ended, before the next row is promoted.
CREATE FUNCTION inbox_settle_v1(p_turn turns, p_outcome text, p_counts bool) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_back int;
BEGIN
  IF p_turn.origin <> 'inbox' THEN RETURN; END IF;
  IF p_outcome IN ('completed', 'partial', 'cancelled') THEN
    DELETE FROM inbox_items WHERE session_id = p_turn.session_id AND turn_id = p_turn.id;
    RETURN;
  END IF;
  UPDATE inbox_items SET turn_id = NULL, attempts = attempts + p_counts::int, due_at = clock_timestamp() + interval '1 hour'
    WHERE session_id = p_turn.session_id AND turn_id = p_turn.id;
  GET DIAGNOSTICS v_back = ROW_COUNT;
  UPDATE sessions SET inbox_waiting = inbox_waiting + v_back WHERE id = p_turn.session_id;
  PERFORM inbox_drop_spent_v1(p_turn.session_id);
END $$;

-- Whether a turn wrote anything after it opened; how it ended is no such thing.
CREATE FUNCTION turn_wrote_v1(p_turn turns) RETURNS bool
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM records r WHERE r.session_id = p_turn.session_id AND r.seq > coalesce(p_turn.opened_seq, p_turn.started_seq)
    AND r.turn = p_turn.number AND r.kind <> 'turn.ended' LIMIT 1;
  RETURN FOUND;
END $$;

-- One delivery, once per id. Judged in this order: the id, a dead turn (it is reaped), the bound.
CREATE FUNCTION inbox_deliver_v1(p_session text, p_owner text, p_id text, p_source text, p_content text, p_record_text text,
                                 p_record_digest bytea, p_meta text, p_agent text, p_revision text, p_max_pending int,
                                 p_attempts_max int, p_turn_attempts_max int)
RETURNS TABLE (result text, seq bigint, pending int, turn_id uuid)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_key session_keys;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session AND owner = p_owner FOR NO KEY UPDATE;
  IF NOT FOUND THEN result := 'missing'; RETURN NEXT; RETURN; END IF;
  SELECT * INTO v_key FROM session_keys WHERE session_id = p_session AND space = 'inbox' AND key = p_id;
  IF FOUND THEN
    result := CASE WHEN v_key.fingerprint = encode(p_record_digest, 'hex') THEN 'duplicate' ELSE 'key-conflict' END;
    seq := v_key.answer::bigint;
  ELSE
    PERFORM turn_live_v1(v_head, p_turn_attempts_max);
    SELECT * INTO v_head FROM sessions WHERE id = p_session;
    IF v_head.inbox_waiting >= p_max_pending THEN result := 'full'; pending := v_head.inbox_waiting; RETURN NEXT; RETURN; END IF;
    seq := inbox_put_v1(v_head, p_id, p_source, p_content, p_record_text, p_record_digest, p_meta, p_agent, p_revision, p_attempts_max);
    result := 'delivered';
  END IF;
  SELECT s.inbox_waiting, (SELECT t.id FROM turns t WHERE t.session_id = p_session AND t.status = 'ready' AND t.origin = 'inbox')
    INTO pending, turn_id FROM sessions s WHERE s.id = p_session;
  RETURN NEXT;
END $$;

-- Inserts the inbox turn that these sessions are owed, if they are, each under its head; a head that is busy is skipped until
-- next time. What was looked at comes again in an hour.
CREATE FUNCTION inbox_recover_v1(p_sessions text[]) RETURNS SETOF uuid
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_session text;
BEGIN
  FOREACH v_session IN ARRAY p_sessions LOOP
    PERFORM 1 FROM sessions WHERE id = v_session FOR NO KEY UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    PERFORM turn_promote_v1(v_session);
    UPDATE inbox_items SET due_at = clock_timestamp() + interval '1 hour' WHERE session_id = v_session AND turn_id IS NULL;
    RETURN QUERY SELECT t.id FROM turns t WHERE t.session_id = v_session AND t.status = 'ready' AND t.origin = 'inbox';
  END LOOP;
END $$;
