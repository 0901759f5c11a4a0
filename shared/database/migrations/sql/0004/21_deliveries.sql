-- An item that names who answers it says, too, what becomes of its turn when its worker is lost. Rules: docs/core.md 4.

ALTER TABLE inbox_items ADD COLUMN on_worker_loss text CHECK (on_worker_loss IN ('continue', 'interrupt'));

-- Inserts the next inbox turn, last in order, when items wait and none is unfinished. It is as its oldest item says, else as
-- the session's last turn.
CREATE OR REPLACE FUNCTION inbox_follow_v1(p_session text) RETURNS uuid
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
            coalesce(v_item.on_worker_loss, v_last.on_worker_loss, 'continue'), coalesce(v_last.history, 'per-step'), v_priority,
            v_head.seq, v_last.max_duration_s);
  INSERT INTO session_keys (session_id, space, key, fingerprint, answer) VALUES (p_session, 'run', v_run, '', v_id::text);
  IF v_priority < 2 THEN
    -- As at admission: what waits before it must not hold it back.
    UPDATE turns SET priority = v_priority
      WHERE session_id = p_session AND status IN ('queued', 'ready', 'running', 'waiting') AND priority > v_priority;
  END IF;
  RETURN v_id;
END $$;

-- Stores an item with its record and its key, and has it answered; answers the record's seq, also when it was there before.
CREATE FUNCTION inbox_put_v2(p_head sessions, p_id text, p_source text, p_content text, p_record_text text, p_record_digest bytea,
                             p_meta text, p_agent text, p_revision text, p_on_worker_loss text, p_attempts_max int) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE v_seq bigint;
BEGIN
  SELECT k.answer::bigint INTO v_seq FROM session_keys k WHERE k.session_id = p_head.id AND k.space = 'inbox' AND k.key = p_id;
  IF FOUND THEN RETURN v_seq; END IF;
  v_seq := log_append_v1(p_head.id, NULL, NULL, ARRAY['inbox.queued'], ARRAY[p_record_text], ARRAY[p_record_digest], true);
  INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
    VALUES (p_head.id, 'inbox', p_id, encode(p_record_digest, 'hex'), v_seq::text);
  INSERT INTO inbox_items (session_id, id, seq, source, content, attempts_max, agent, agent_revision, on_worker_loss, meta)
    VALUES (p_head.id, p_id, v_seq, p_source, p_content, p_attempts_max, p_agent, p_revision, p_on_worker_loss, p_meta);
  UPDATE sessions SET inbox_waiting = inbox_waiting + 1 WHERE id = p_head.id;
  PERFORM turn_promote_v1(p_head.id);
  RETURN v_seq;
END $$;

-- Whoever says nothing of that: a task's notice.
CREATE OR REPLACE FUNCTION inbox_put_v1(p_head sessions, p_id text, p_source text, p_content text, p_record_text text,
                                        p_record_digest bytea, p_meta text, p_agent text, p_revision text,
                                        p_attempts_max int DEFAULT 2) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
  RETURN inbox_put_v2(p_head, p_id, p_source, p_content, p_record_text, p_record_digest, p_meta, p_agent, p_revision, NULL,
                      p_attempts_max);
END $$;

-- One delivery, once per id. Judged in this order: the id, a dead turn (it is reaped), the bound.
CREATE FUNCTION inbox_deliver_v2(p_session text, p_owner text, p_id text, p_source text, p_content text, p_record_text text,
                                 p_record_digest bytea, p_meta text, p_agent text, p_revision text, p_on_worker_loss text,
                                 p_max_pending int, p_attempts_max int, p_turn_attempts_max int)
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
    seq := inbox_put_v2(v_head, p_id, p_source, p_content, p_record_text, p_record_digest, p_meta, p_agent, p_revision,
                        p_on_worker_loss, p_attempts_max);
    result := 'delivered';
  END IF;
  SELECT s.inbox_waiting, (SELECT t.id FROM turns t WHERE t.session_id = p_session AND t.status = 'ready' AND t.origin = 'inbox')
    INTO pending, turn_id FROM sessions s WHERE s.id = p_session;
  RETURN NEXT;
END $$;

-- The same of code of schema 3, which says nothing of that.
CREATE OR REPLACE FUNCTION inbox_deliver_v1(p_session text, p_owner text, p_id text, p_source text, p_content text,
                                            p_record_text text, p_record_digest bytea, p_meta text, p_agent text, p_revision text,
                                            p_max_pending int, p_attempts_max int, p_turn_attempts_max int)
RETURNS TABLE (result text, seq bigint, pending int, turn_id uuid)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY SELECT d.result, d.seq, d.pending, d.turn_id FROM inbox_deliver_v2(
    p_session, p_owner, p_id, p_source, p_content, p_record_text, p_record_digest, p_meta, p_agent, p_revision, NULL, p_max_pending,
    p_attempts_max, p_turn_attempts_max) d;
END $$;
