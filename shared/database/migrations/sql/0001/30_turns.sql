-- The turn queue: admission, claim, open, append, end, cancel, release, renew, reap, expire.
-- Lock order: head, then the turn row. Rules and their reasons: docs/core.md sections 2 to 8.

-- Ready is a session's first unfinished row, when none is live. The caller holds the head's lock.
CREATE FUNCTION turn_promote_v1(p_session text) RETURNS uuid
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

-- The canonical text of a turn.ended that the database itself writes (cancel, reap): keys in order, unset ones left out.
CREATE FUNCTION turn_ended_text_v1(p_reason text, p_code text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN '{' || coalesce('"code":' || to_json(p_code)::text || ',', '') || '"reason":' || to_json(p_reason)::text || ',"v":1}';

-- Ends the turn that the head names as open, with the head and the row locked by the caller.
CREATE FUNCTION turn_close_open_v1(p_turn turns, p_reason text, p_code text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_text text := turn_ended_text_v1(p_reason, p_code);
BEGIN
  PERFORM log_append_v1(p_turn.session_id, p_turn.number, NULL, ARRAY['turn.ended'], ARRAY[v_text],
                        ARRAY[record_digest_v1('turn.ended', v_text)], true);
  UPDATE turns SET status = 'ended', outcome = p_reason, code = p_code, ended_at = clock_timestamp(),
                   lease_owner = NULL, token = NULL, expires_at = NULL WHERE id = p_turn.id;
  UPDATE sessions SET open_turn = NULL, open_epoch = NULL, open_token = NULL WHERE id = p_turn.session_id;
  PERFORM activity_owe_v1(p_turn.session_id, p_turn.owner);
  PERFORM turn_promote_v1(p_turn.session_id);
END $$;

-- The outcome of a stored reply of this turn, or NULL. Reads what the log holds since the turn started, not before.
CREATE FUNCTION turn_reply_outcome_v1(p_turn turns) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT data::jsonb ->> 'outcome' FROM records
            WHERE session_id = p_turn.session_id AND seq >= p_turn.started_seq AND turn = p_turn.number AND kind = 'turn.reply'
            ORDER BY seq DESC LIMIT 1);
END $$;

-- Nobody may go on with this row: its lease ran out, and its policy or its spent attempts forbid another try.
CREATE FUNCTION turn_is_dead_v1(p_turn turns, p_now timestamptz, p_attempts_max int) RETURNS bool
LANGUAGE sql IMMUTABLE
RETURN p_turn.status = 'running' AND p_turn.expires_at < p_now
   AND (p_turn.on_worker_loss = 'interrupt' OR p_turn.history = 'whole-turn'
        OR ((p_turn.suspect OR p_turn.alive_losses >= 10) AND p_turn.attempts >= p_attempts_max - 1)
        OR p_turn.expires_at < p_now - interval '1 hour');

-- Reaps a dead row; head and row are locked and turn_is_dead holds. Answers what it did.
CREATE FUNCTION turn_reap_locked_v1(p_turn turns, p_open uuid, p_attempts_max int) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE v_reply text;
BEGIN
  IF p_open = p_turn.id THEN
    v_reply := turn_reply_outcome_v1(p_turn);
    IF v_reply IS NOT NULL THEN PERFORM turn_close_open_v1(p_turn, v_reply, NULL); RETURN 'replied'; END IF;
    PERFORM turn_close_open_v1(p_turn, 'interrupted', 'turn.lease');
    RETURN 'interrupted';
  END IF;
  IF p_turn.attempts >= p_attempts_max - 1 OR p_turn.expires_at < clock_timestamp() - interval '1 hour' THEN
    UPDATE turns SET status = 'ended', outcome = 'interrupted', code = 'turn.lease', attempts = attempts + 1,
                     ended_at = clock_timestamp(), lease_owner = NULL, token = NULL, expires_at = NULL
      WHERE id = p_turn.id;
    PERFORM turn_promote_v1(p_turn.session_id);
    RETURN 'spent';
  END IF;
  -- Never opened: nothing of it is in the log, so it may simply wait again. The loss counts all the same.
  UPDATE turns SET status = 'ready', attempts = attempts + p_turn.suspect::int, suspect = true,
                   lease_owner = NULL, token = NULL, expires_at = NULL
    WHERE id = p_turn.id;
  RETURN 'ready';
END $$;

CREATE FUNCTION turn_admit_v1(
  p_id uuid, p_session text, p_owner text, p_key text, p_print text, p_run text, p_message text, p_command text,
  p_meta text, p_agent text, p_revision text, p_on_busy text, p_on_worker_loss text, p_priority int,
  p_deadline timestamptz, p_max_duration_s real, p_session_max int, p_owner_max int, p_attempts_max int)
RETURNS TABLE (result text, turn_id uuid, run_id text, turn_position bigint, status text, after_seq bigint, detail uuid)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_key session_keys; v_live turns; v_count int; v_owed int; v_limit int; v_now timestamptz;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session AND owner = p_owner FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'missing'::text, NULL::uuid, NULL::text, NULL::bigint, NULL::text, NULL::bigint, NULL::uuid; RETURN;
  END IF;
  v_now := clock_timestamp();
  -- The key first: it answers whatever else stands in the way now. Without a key the pre-minted id is the key.
  SELECT * INTO v_key FROM session_keys WHERE session_id = p_session AND space = 'turn' AND key = coalesce(p_key, p_id::text);
  IF FOUND THEN
    IF v_key.fingerprint <> p_print THEN
      RETURN QUERY SELECT 'key-conflict'::text, v_key.answer::uuid, NULL::text, NULL::bigint, NULL::text, NULL::bigint, NULL::uuid; RETURN;
    END IF;
    RETURN QUERY SELECT 'duplicate'::text, t.id, t.run_id, t.position, t.status, t.admitted_seq, NULL::uuid
      FROM turns t WHERE t.id = v_key.answer::uuid; RETURN;
  END IF;
  PERFORM 1 FROM session_keys WHERE session_id = p_session AND space = 'run' AND key = p_run;
  IF FOUND THEN
    RETURN QUERY SELECT 'run-reused'::text, NULL::uuid, NULL::text, NULL::bigint, NULL::text, NULL::bigint, NULL::uuid; RETURN;
  END IF;
  SELECT * INTO v_live FROM turns WHERE session_id = p_session AND status IN ('ready', 'running', 'waiting');
  IF v_live.id IS NOT NULL AND turn_is_dead_v1(v_live, v_now, p_attempts_max) THEN
    SELECT * INTO v_live FROM turns WHERE id = v_live.id FOR NO KEY UPDATE;
    IF turn_is_dead_v1(v_live, clock_timestamp(), p_attempts_max) THEN
      PERFORM turn_reap_locked_v1(v_live, v_head.open_turn, p_attempts_max);
      SELECT * INTO v_live FROM turns WHERE session_id = p_session AND status IN ('ready', 'running', 'waiting');
    END IF;
  END IF;
  SELECT count(*) INTO v_count FROM (SELECT 1 FROM turns WHERE session_id = p_session
    AND status IN ('queued', 'ready', 'running', 'waiting') LIMIT p_session_max + 1) unfinished;
  IF p_on_busy = 'reject' AND v_count > 0 THEN
    RETURN QUERY SELECT 'busy'::text, NULL::uuid, NULL::text, NULL::bigint, NULL::text, NULL::bigint, v_live.id; RETURN;
  END IF;
  SELECT queued_max INTO v_limit FROM owners WHERE id = p_owner;
  v_limit := coalesce(v_limit, p_owner_max);
  SELECT count(*) INTO v_owed FROM (SELECT 1 FROM turns WHERE owner = p_owner AND status IN ('queued', 'ready')
                                    LIMIT v_limit) owed;
  IF v_count >= p_session_max OR v_owed >= v_limit THEN
    RETURN QUERY SELECT CASE WHEN v_count >= p_session_max THEN 'session-full' ELSE 'owner-full' END,
      NULL::uuid, NULL::text, NULL::bigint, NULL::text, NULL::bigint, NULL::uuid; RETURN;
  END IF;
  UPDATE sessions SET next_position = next_position + 1 WHERE id = p_session;
  INSERT INTO turns (id, session_id, owner, position, origin, status, key, fingerprint, message, command, meta, run_id,
                     agent, agent_revision, on_worker_loss, priority, due_at, deadline, admitted_at, admitted_seq, max_duration_s)
    VALUES (p_id, p_session, p_owner, v_head.next_position, 'user', CASE WHEN v_live.id IS NULL THEN 'ready' ELSE 'queued' END,
            p_key, p_print, p_message, p_command, p_meta, p_run, p_agent, p_revision, p_on_worker_loss, p_priority, v_now,
            p_deadline, v_now, v_head.seq, p_max_duration_s);
  INSERT INTO session_keys (session_id, space, key, fingerprint, answer)
    VALUES (p_session, 'turn', coalesce(p_key, p_id::text), p_print, p_id::text),
           (p_session, 'run', p_run, '', p_id::text);
  IF v_live.id IS NOT NULL AND p_priority < 2 THEN
    -- What waits before an urgent row must not hold it back: the rows before it are lifted to its priority.
    UPDATE turns SET priority = p_priority
      WHERE session_id = p_session AND status IN ('queued', 'ready', 'running', 'waiting') AND priority > p_priority;
  END IF;
  RETURN QUERY SELECT 'admitted'::text, p_id, p_run, v_head.next_position,
    CASE WHEN v_live.id IS NULL THEN 'ready' ELSE 'queued' END, v_head.seq, NULL::uuid;
END $$;

-- Takeovers: lost rows that may be tried again, oldest first, outside the owners' caps (they are counted there already).
-- A process holds few rows that may have killed their last holder, so that one of them cannot spend the others.
CREATE FUNCTION turn_take_over_v1(p_worker text, p_pool text, p_revisions text[], p_places int, p_lease_s real,
                                  p_attempts_max int) RETURNS uuid[]
LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_silent_since timestamptz := v_now - make_interval(secs => p_lease_s);
  v_lost uuid[];
BEGIN
  SELECT coalesce(array_agg(l.id ORDER BY l.expires_at), '{}') INTO v_lost FROM (
    SELECT id, expires_at FROM turns WHERE status = 'running' AND expires_at < v_now
      AND expires_at >= v_now - interval '1 hour' AND on_worker_loss = 'continue' AND history = 'per-step'
      AND pool = p_pool AND agent_revision = ANY (p_revisions)
      AND NOT ((suspect OR alive_losses >= 10) AND attempts >= p_attempts_max - 1)
      ORDER BY expires_at LIMIT p_places FOR NO KEY UPDATE SKIP LOCKED) l;
  IF v_lost = '{}' THEN RETURN v_lost; END IF;
  UPDATE turns t SET
      attempts = t.attempts + CASE WHEN gone.yes THEN t.suspect::int ELSE (t.alive_losses >= 10)::int END,
      alive_losses = CASE WHEN gone.yes THEN 0 ELSE t.alive_losses + 1 END,
      suspect = t.suspect OR gone.yes,
      epoch = t.epoch + 1, token = gen_random_uuid(), lease_owner = p_worker, stepped = false,
      expires_at = v_now + make_interval(secs => p_lease_s)
    FROM (SELECT l.id, pg_postmaster_start_time() < v_silent_since
                       AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = l.lease_owner AND w.last_seen > v_silent_since) AS yes
          FROM turns l WHERE l.id = ANY (v_lost)) gone
    WHERE t.id = gone.id;
  RETURN v_lost;
END $$;

-- Up to 16 owners with something due and room below their cap: from the cursor on, round once, 256 looked at at most.
-- One index probe an owner, and none behind the sixteenth. It only proposes: room is judged under the owners' locks.
CREATE FUNCTION turn_owners_v1(p_pool text, p_revisions text[], p_cursor text, p_running_max int) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_owners text[] := '{}'; v_at text := p_cursor; v_wrapped bool := false; v_fits bool;
BEGIN
  FOR v_look IN 1 .. 256 LOOP
    SELECT min(o.owner) INTO v_at FROM unnest(p_revisions) AS r (revision) CROSS JOIN LATERAL (
      SELECT t.owner FROM turns t WHERE t.status = 'ready' AND t.pool = p_pool AND t.agent_revision = r.revision
        AND t.owner > v_at ORDER BY t.owner LIMIT 1) o;
    IF v_at IS NULL AND NOT v_wrapped THEN
      v_wrapped := true; v_at := ''; CONTINUE;
    END IF;
    EXIT WHEN v_at IS NULL OR (v_wrapped AND v_at > p_cursor);
    SELECT EXISTS (SELECT 1 FROM unnest(p_revisions) AS r (revision) CROSS JOIN LATERAL (
               SELECT 1 FROM turns t WHERE t.status = 'ready' AND t.pool = p_pool AND t.agent_revision = r.revision
                 AND t.owner = v_at AND t.due_at <= v_now LIMIT 1) due)
           AND (SELECT count(*) FROM turns t WHERE t.owner = v_at AND t.status = 'running')
               < coalesce((SELECT o.running_max FROM owners o WHERE o.id = v_at), p_running_max) INTO v_fits;
    IF v_fits THEN v_owners := v_owners || v_at; END IF;
    EXIT WHEN cardinality(v_owners) = 16;
  END LOOP;
  RETURN v_owners;
END $$;

-- Takes up to p_share due rows of one owner whose row the caller has locked: by priority, due time, id, below its cap.
CREATE FUNCTION turn_take_ready_v1(p_worker text, p_pool text, p_revisions text[], p_owner text, p_share int, p_lease_s real,
                                   p_running_max int) RETURNS uuid[]
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp(); v_room int; v_taken uuid[];
BEGIN
  SELECT least(p_share, coalesce((SELECT o.running_max FROM owners o WHERE o.id = p_owner), p_running_max)
                        - (SELECT count(*) FROM turns t WHERE t.owner = p_owner AND t.status = 'running')) INTO v_room;
  IF v_room <= 0 THEN RETURN '{}'; END IF;
  WITH picked AS (
    SELECT t.id FROM turns t WHERE t.status = 'ready' AND t.due_at <= v_now AND t.id IN (
        SELECT first.id FROM unnest(p_revisions) AS r (revision) CROSS JOIN LATERAL (
            SELECT c.id, c.priority, c.due_at FROM turns c WHERE c.status = 'ready' AND c.pool = p_pool
              AND c.agent_revision = r.revision AND c.owner = p_owner AND c.due_at <= v_now
              ORDER BY c.priority, c.due_at, c.id LIMIT v_room) first
          ORDER BY first.priority, first.due_at, first.id LIMIT v_room)
      FOR NO KEY UPDATE SKIP LOCKED),
  taken AS (
    UPDATE turns t SET status = 'running', epoch = t.epoch + 1, token = gen_random_uuid(), lease_owner = p_worker,
                       stepped = false, expires_at = v_now + make_interval(secs => p_lease_s)
      FROM picked WHERE t.id = picked.id RETURNING t.id, t.priority, t.due_at)
  SELECT coalesce(array_agg(id ORDER BY priority, due_at, id), '{}') INTO v_taken FROM taken;
  RETURN v_taken;
END $$;

-- Hands out work: lost rows first, then ready and due ones in fair order over the owners. Takes no head.
CREATE FUNCTION turn_claim_v1(
  p_worker text, p_pool text, p_revisions text[], p_places int, p_lease_s real, p_cursor text, p_hints uuid[],
  p_takeovers bool, p_suspects int, p_attempts_max int, p_running_max int)
RETURNS TABLE (turn_id uuid, session_id text, owner text, epoch bigint, token uuid, number int, origin text, run_id text,
               key text, message text, command text, meta text, agent text, agent_revision text, on_worker_loss text,
               attempts int, suspect bool, lost bool, max_duration_s real, open_for_s double precision)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_lost uuid[] := '{}'; v_ids uuid[] := '{}'; v_taken uuid[]; v_owners text[]; v_again text[] := '{}'; v_hinted text;
  v_left int; v_share int;
BEGIN
  IF p_takeovers THEN
    v_lost := turn_take_over_v1(p_worker, p_pool, p_revisions, least(p_places, p_suspects), p_lease_s, p_attempts_max);
    v_ids := v_lost;
  END IF;
  v_left := p_places - cardinality(v_ids);
  IF v_left > 0 THEN
    v_owners := turn_owners_v1(p_pool, p_revisions, p_cursor, p_running_max);
    IF cardinality(p_hints) > 0 THEN
      SELECT t.owner INTO v_hinted FROM turns t WHERE t.id = ANY (p_hints) AND t.status = 'ready'
        AND t.pool = p_pool AND t.agent_revision = ANY (p_revisions) AND t.due_at <= clock_timestamp() LIMIT 1;
      IF FOUND THEN v_owners := v_hinted || array_remove(v_owners, v_hinted); END IF;
    END IF;
    -- Their rows are locked by id; then new statements pick, so that two claims cannot overshoot a cap together.
    PERFORM 1 FROM owners o WHERE o.id = ANY (v_owners) ORDER BY o.id FOR NO KEY UPDATE;
    -- First an even share of the places to each; then whatever is left to those who had more, in the same order.
    FOR v_n IN 1 .. cardinality(v_owners) LOOP
      EXIT WHEN v_left = 0;
      v_share := ceil(v_left::numeric / (cardinality(v_owners) - v_n + 1));
      v_taken := turn_take_ready_v1(p_worker, p_pool, p_revisions, v_owners[v_n], v_share, p_lease_s, p_running_max);
      v_ids := v_ids || v_taken;
      v_left := v_left - cardinality(v_taken);
      IF cardinality(v_taken) = v_share THEN v_again := v_again || v_owners[v_n]; END IF;
    END LOOP;
    FOR v_n IN 1 .. cardinality(v_again) LOOP
      EXIT WHEN v_left = 0;
      v_taken := turn_take_ready_v1(p_worker, p_pool, p_revisions, v_again[v_n], v_left, p_lease_s, p_running_max);
      v_ids := v_ids || v_taken;
      v_left := v_left - cardinality(v_taken);
    END LOOP;
  END IF;
  IF v_ids = '{}' THEN RETURN; END IF;
  RETURN QUERY SELECT t.id, t.session_id, t.owner, t.epoch, t.token, t.number, t.origin, t.run_id, t.key, t.message,
      t.command, t.meta, t.agent, t.agent_revision, t.on_worker_loss, t.attempts, t.suspect, t.id = ANY (v_lost),
      t.max_duration_s, extract(epoch FROM clock_timestamp() - t.opened_at)::double precision
    FROM turns t JOIN unnest(v_ids) WITH ORDINALITY AS picked (id, n) ON picked.id = t.id ORDER BY picked.n;
END $$;

-- Whether this fence may write now: the row is running under it and its lease has not passed (one clock reading).
CREATE FUNCTION turn_fence_holds_v1(p_turn turns, p_epoch bigint, p_token uuid, p_now timestamptz) RETURNS bool
LANGUAGE sql IMMUTABLE
RETURN p_turn.status = 'running' AND p_turn.epoch = p_epoch AND p_turn.token = p_token AND p_turn.expires_at >= p_now;

-- Why a fence does not hold, in the words of TurnClosed: ended by cancel, reap or its own end, or merely lost.
CREATE FUNCTION turn_loss_v1(p_turn turns) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN p_turn.id IS NULL THEN 'removed'
            WHEN p_turn.status = 'cancelled' OR p_turn.outcome = 'cancelled' THEN 'cancelled'
            WHEN p_turn.outcome = 'interrupted' THEN 'interrupted'
            WHEN p_turn.status IN ('ended', 'refused', 'expired') THEN 'ended'
            ELSE 'lost' END;

CREATE FUNCTION turn_open_v1(p_id uuid, p_session text, p_epoch bigint, p_token uuid, p_commit text,
                             p_title text, p_kinds text[], p_texts text[], p_digests bytea[])
RETURNS TABLE (result text, number int, seq bigint)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_turn turns; v_now timestamptz; v_seq bigint;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN QUERY SELECT 'removed'::text, NULL::int, NULL::bigint; RETURN; END IF;
  SELECT * INTO v_turn FROM turns WHERE id = p_id FOR NO KEY UPDATE;
  v_now := clock_timestamp();
  IF NOT coalesce(v_turn.session_id = p_session AND turn_fence_holds_v1(v_turn, p_epoch, p_token, v_now), false) THEN
    RETURN QUERY SELECT turn_loss_v1(v_turn), NULL::int, NULL::bigint; RETURN;
  END IF;
  IF v_head.open_turn = p_id THEN
    IF v_head.open_epoch = p_epoch AND v_head.open_token = p_token THEN
      RETURN QUERY SELECT 'adopted'::text, v_turn.number, v_head.seq; RETURN;
    END IF;
    UPDATE sessions SET open_epoch = p_epoch, open_token = p_token, last_commit = NULL, last_seq = NULL WHERE id = p_session;
    RETURN QUERY SELECT 'took-over'::text, v_turn.number, v_head.seq; RETURN;
  END IF;
  IF v_head.open_turn IS NOT NULL THEN
    -- Cannot happen while turns_one_live holds; if it does, the row waits and nothing is counted.
    UPDATE turns SET status = 'ready', due_at = v_now + interval '1 second', lease_owner = NULL, token = NULL,
                     expires_at = NULL WHERE id = p_id;
    RETURN QUERY SELECT 'busy'::text, NULL::int, NULL::bigint; RETURN;
  END IF;
  IF v_turn.deadline < v_now THEN
    UPDATE turns SET status = 'expired', code = 'turn.deadline', ended_at = v_now, lease_owner = NULL, token = NULL,
                     expires_at = NULL WHERE id = p_id;
    PERFORM turn_promote_v1(p_session);
    RETURN QUERY SELECT 'expired'::text, NULL::int, NULL::bigint; RETURN;
  END IF;
  v_seq := log_append_v1(p_session, v_head.next_number, p_commit, p_kinds, p_texts, p_digests, true);
  UPDATE sessions SET open_turn = p_id, open_epoch = p_epoch, open_token = p_token, next_number = next_number + 1,
      title = coalesce(title, p_title)
    WHERE id = p_session;
  UPDATE turns SET number = v_head.next_number, opened_at = v_now, started_seq = v_head.seq + 1 WHERE id = p_id;
  RETURN QUERY SELECT 'opened'::text, v_head.next_number, v_seq;
END $$;

-- Writes what changed in the tool ledger, in the transaction of the records that say so.
CREATE FUNCTION turn_ledger_v1(p_session text, p_turn uuid, p_calls jsonb, p_seq bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tool_calls (session_id, turn_id, invocation_id, step, ordinal, name, argument_digest, token, state, result,
                          result_seq, started_at, settled_at)
    SELECT p_session, p_turn, c.invocation_id, c.step, c.ordinal, c.name, c.argument_digest, c.token, c.state, c.result,
           CASE WHEN c.state IN ('done', 'failed', 'unknown') THEN p_seq END,
           CASE WHEN c.state <> 'planned' THEN clock_timestamp() END,
           CASE WHEN c.state IN ('done', 'failed', 'unknown') THEN clock_timestamp() END
      FROM jsonb_to_recordset(p_calls) AS c (invocation_id text, step int, ordinal int, name text, argument_digest text,
                                             token text, state text, result text)
    ON CONFLICT (session_id, turn_id, invocation_id) DO UPDATE
      SET state = excluded.state, result = excluded.result, result_seq = excluded.result_seq,
          started_at = coalesce(tool_calls.started_at, excluded.started_at), settled_at = excluded.settled_at
      WHERE tool_calls.state IN ('planned', 'started');
END $$;

CREATE FUNCTION turn_append_v1(p_id uuid, p_session text, p_epoch bigint, p_token uuid, p_commit text, p_stepped bool,
                               p_kinds text[], p_texts text[], p_digests bytea[], p_calls jsonb)
RETURNS TABLE (result text, seq bigint)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_turn turns; v_now timestamptz; v_seq bigint;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN QUERY SELECT 'removed'::text, NULL::bigint; RETURN; END IF;
  -- The row is read without a lock: a claim that commits after this judgement waits for the head at its takeover.
  SELECT * INTO v_turn FROM turns WHERE id = p_id;
  v_now := clock_timestamp();
  IF NOT coalesce(v_head.open_turn = p_id AND v_head.open_epoch = p_epoch AND v_head.open_token = p_token
                  AND turn_fence_holds_v1(v_turn, p_epoch, p_token, v_now), false) THEN
    RETURN QUERY SELECT turn_loss_v1(v_turn), NULL::bigint; RETURN;
  END IF;
  IF v_head.last_commit = p_commit THEN RETURN QUERY SELECT 'appended'::text, v_head.last_seq; RETURN; END IF;
  v_seq := log_append_v1(p_session, v_turn.number, p_commit, p_kinds, p_texts, p_digests, false);
  IF p_calls IS NOT NULL THEN PERFORM turn_ledger_v1(p_session, p_id, p_calls, v_seq); END IF;
  IF p_stepped AND (v_turn.attempts <> 0 OR v_turn.suspect OR v_turn.alive_losses <> 0 OR NOT v_turn.stepped) THEN
    -- A claim may have taken the row since it was judged: the loss that it counted stays counted.
    UPDATE turns SET attempts = 0, suspect = false, alive_losses = 0, stepped = true WHERE id = p_id AND epoch = p_epoch;
  END IF;
  RETURN QUERY SELECT 'appended'::text, v_seq;
END $$;

-- Answers 'stored', or why the fence does not hold; 'ended' is one of those reasons: another end was stored.
CREATE FUNCTION turn_end_v1(p_id uuid, p_session text, p_epoch bigint, p_token uuid, p_commit text,
                            p_kinds text[], p_texts text[], p_digests bytea[], p_calls jsonb,
                            p_outcome text, p_code text, p_failure text, p_usage text)
RETURNS TABLE (result text, seq bigint, promoted uuid)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_head sessions; v_turn turns; v_now timestamptz; v_seq bigint;
BEGIN
  SELECT * INTO v_head FROM sessions WHERE id = p_session FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN QUERY SELECT 'removed'::text, NULL::bigint, NULL::uuid; RETURN; END IF;
  SELECT * INTO v_turn FROM turns WHERE id = p_id FOR NO KEY UPDATE;
  v_now := clock_timestamp();
  IF NOT coalesce(v_head.open_turn = p_id AND v_head.open_epoch = p_epoch AND v_head.open_token = p_token
                  AND turn_fence_holds_v1(v_turn, p_epoch, p_token, v_now), false) THEN
    -- An end whose answer was lost is found on the row, also after later turns opened.
    IF v_turn.end_commit = p_commit THEN
      -- The next turn is named only while it still waits to be rung for.
      RETURN QUERY SELECT 'stored'::text, max(r.seq),
          (SELECT t.id FROM turns t WHERE t.session_id = p_session AND t.status = 'ready') FROM records r
        WHERE r.session_id = p_session AND r.seq >= v_turn.started_seq AND r.turn = v_turn.number; RETURN;
    END IF;
    RETURN QUERY SELECT turn_loss_v1(v_turn), NULL::bigint, NULL::uuid; RETURN;
  END IF;
  v_seq := log_append_v1(p_session, v_turn.number, p_commit, p_kinds, p_texts, p_digests, true);
  IF p_calls IS NOT NULL THEN PERFORM turn_ledger_v1(p_session, p_id, p_calls, v_seq); END IF;
  UPDATE turns SET status = 'ended', outcome = p_outcome, code = p_code, last_failure = coalesce(p_failure, last_failure),
                   usage = p_usage, end_commit = p_commit, ended_at = v_now, lease_owner = NULL, token = NULL,
                   expires_at = NULL WHERE id = p_id;
  UPDATE sessions SET open_turn = NULL, open_epoch = NULL, open_token = NULL WHERE id = p_session;
  PERFORM activity_owe_v1(p_session, v_turn.owner);
  RETURN QUERY SELECT 'stored'::text, v_seq, turn_promote_v1(p_session);
END $$;

CREATE FUNCTION turn_cancel_v1(p_id uuid, p_owner text, p_attempts_max int)
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
  IF v_turn.status IN ('ended', 'cancelled', 'refused', 'expired') THEN
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

-- Gives a row back uncounted (a drain): stays inside the live set, so it takes the row's lock only.
CREATE FUNCTION turn_release_v1(p_id uuid, p_epoch bigint, p_token uuid, p_due_in_s real) RETURNS bool
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_turn turns;
BEGIN
  SELECT * INTO v_turn FROM turns WHERE id = p_id FOR NO KEY UPDATE;
  IF NOT coalesce(turn_fence_holds_v1(v_turn, p_epoch, p_token, clock_timestamp()), false) THEN RETURN false; END IF;
  UPDATE turns SET status = 'ready', lease_owner = NULL, token = NULL, expires_at = NULL,
                   due_at = CASE WHEN p_due_in_s > 0 THEN clock_timestamp() + make_interval(secs => p_due_in_s) ELSE due_at END
    WHERE id = p_id;
  RETURN true;
END $$;

-- Renews all that a process holds, in one statement; a row locked by someone else is answered 'skipped'.
CREATE FUNCTION turn_renew_v1(p_ids uuid[], p_tokens uuid[], p_lease_s real)
RETURNS TABLE (turn_id uuid, result text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_locked uuid[]; v_renewed uuid[]; v_now timestamptz;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  SELECT coalesce(array_agg(l.id), '{}') INTO v_locked FROM (
    SELECT t.id FROM turns t WHERE t.id = ANY (p_ids) ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED) l;
  v_now := clock_timestamp();
  WITH held AS (
    UPDATE turns t SET expires_at = v_now + make_interval(secs => p_lease_s)
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

-- What a process must hear of: held rows that are no longer its own, and rows it owns without knowing.
CREATE FUNCTION turn_watch_v1(p_worker text, p_ids uuid[], p_tokens uuid[])
RETURNS TABLE (turn_id uuid, result text, epoch bigint, token uuid)
LANGUAGE sql STABLE AS $$
  SELECT mine.id, turn_loss_v1(t), NULL::bigint, NULL::uuid
    FROM unnest(p_ids, p_tokens) AS mine (id, token) LEFT JOIN turns t ON t.id = mine.id
    WHERE t.id IS NULL OR t.status <> 'running' OR t.token IS DISTINCT FROM mine.token
  UNION ALL
  SELECT t.id, 'orphan', t.epoch, t.token FROM turns t
    WHERE t.lease_owner = p_worker AND t.status = 'running' AND t.expires_at >= clock_timestamp()
      AND t.id <> ALL (p_ids);
$$;

-- Reaps one row if it is (still) dead. Sweeps skip a head that is busy: it is looked at again next time.
CREATE FUNCTION turn_reap_v1(p_id uuid, p_attempts_max int)
RETURNS TABLE (result text, session_id text, owner text)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_session text; v_head sessions; v_turn turns;
BEGIN
  SELECT t.session_id INTO v_session FROM turns t WHERE t.id = p_id;
  SELECT * INTO v_head FROM sessions s WHERE s.id = v_session FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN RETURN; END IF;
  SELECT * INTO v_turn FROM turns t WHERE t.id = p_id FOR NO KEY UPDATE;
  IF NOT coalesce(turn_is_dead_v1(v_turn, clock_timestamp(), p_attempts_max), false) THEN RETURN; END IF;
  RETURN QUERY SELECT turn_reap_locked_v1(v_turn, v_head.open_turn, p_attempts_max), v_session, v_turn.owner;
END $$;

-- Ends one unopened row whose deadline passed.
CREATE FUNCTION turn_expire_v1(p_id uuid) RETURNS TABLE (session_id text, owner text)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_session text; v_head sessions; v_turn turns;
BEGIN
  SELECT t.session_id INTO v_session FROM turns t WHERE t.id = p_id;
  SELECT * INTO v_head FROM sessions s WHERE s.id = v_session FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN RETURN; END IF;
  SELECT * INTO v_turn FROM turns t WHERE t.id = p_id FOR NO KEY UPDATE;
  IF v_turn.status NOT IN ('queued', 'ready') OR v_turn.number IS NOT NULL OR v_head.open_turn IS NOT DISTINCT FROM p_id
     OR v_turn.deadline IS NULL OR v_turn.deadline >= clock_timestamp() THEN RETURN; END IF;
  UPDATE turns t SET status = 'expired', code = 'turn.deadline', ended_at = clock_timestamp() WHERE t.id = p_id;
  PERFORM turn_promote_v1(v_session);
  RETURN QUERY SELECT v_session, v_turn.owner;
END $$;
