-- Claims of schema 3: a claim tells its task's parent and how long it may take. Code of schema 2 cannot run an inbox item or
-- a task: the function that it calls hands out user turns only. Rules: docs/core.md 5 and 7.

-- Takeovers: lost rows that may be tried again, oldest first, outside the owners' caps (they are counted there already).
-- A process holds few rows that may have killed their last holder, so that one of them cannot spend the others.
CREATE FUNCTION turn_take_over_v2(p_worker text, p_pool text, p_revisions text[], p_places int, p_lease_s real,
                                             p_attempts_max int, p_users_only bool) RETURNS uuid[]
LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_silent_since timestamptz := v_now - make_interval(secs => p_lease_s);
  -- Rows that were lost before are dead; none is while the database itself has not been up for an hour.
  v_tried_since timestamptz := CASE WHEN database_started_v1() < v_now - interval '1 hour' THEN v_now - interval '1 hour'
                                    ELSE '-infinity' END;
  v_lost uuid[];
BEGIN
  SELECT coalesce(array_agg(l.id ORDER BY l.expires_at), '{}') INTO v_lost FROM (
    SELECT id, expires_at FROM turns WHERE status = 'running' AND expires_at < v_now
      AND expires_at >= v_tried_since AND on_worker_loss = 'continue' AND history = 'per-step'
      AND pool = p_pool AND agent_revision = ANY (p_revisions) AND (NOT p_users_only OR origin = 'user' AND resumes_number IS NULL)
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

-- Up to 16 owners with something due that may be taken and room below their cap: from the cursor on, round once, 256 looked
-- at at most. One index probe an owner, and none behind the sixteenth. It only proposes: room is judged under the owners'
-- locks. `p_priority_max` leaves out owners who have background rows only, when no place is left for those.
CREATE FUNCTION turn_owners_v3(p_pool text, p_revisions text[], p_cursor text, p_running_max int, p_priority_max int,
                               p_users_only bool)
RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_owners text[] := '{}'; v_at text := p_cursor; v_wrapped bool := false; v_fits bool;
BEGIN
  FOR v_look IN 1 .. 256 LOOP
    SELECT min(o.owner) INTO v_at FROM unnest(p_revisions) AS r (revision) CROSS JOIN LATERAL (
      SELECT t.owner FROM turns t WHERE t.status = 'ready' AND t.pool = p_pool AND t.agent_revision = r.revision
        AND t.owner > v_at AND (NOT p_users_only OR t.origin = 'user' AND t.resumes_number IS NULL) ORDER BY t.owner LIMIT 1) o;
    IF v_at IS NULL AND NOT v_wrapped THEN
      v_wrapped := true; v_at := ''; CONTINUE;
    END IF;
    EXIT WHEN v_at IS NULL OR (v_wrapped AND v_at > p_cursor);
    SELECT EXISTS (SELECT 1 FROM unnest(p_revisions) AS r (revision) CROSS JOIN LATERAL (
               SELECT 1 FROM turns t WHERE t.status = 'ready' AND t.pool = p_pool AND t.agent_revision = r.revision
                 AND t.owner = v_at AND t.priority <= p_priority_max AND t.due_at <= v_now
                 AND (NOT p_users_only OR t.origin = 'user' AND t.resumes_number IS NULL) LIMIT 1) due)
           AND (SELECT count(*) FROM turns t WHERE t.owner = v_at AND t.status = 'running')
               < coalesce((SELECT o.running_max FROM owners o WHERE o.id = v_at), p_running_max) INTO v_fits;
    IF v_fits THEN v_owners := v_owners || v_at; END IF;
    EXIT WHEN cardinality(v_owners) = 16;
  END LOOP;
  RETURN v_owners;
END $$;

-- The oldest due row whose owner has room, of any priority that may be taken; at most 16 a revision are looked at.
CREATE FUNCTION turn_oldest_v2(p_pool text, p_revisions text[], p_running_max int, p_priority_max int, p_users_only bool)
RETURNS TABLE (id uuid, owner text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz := clock_timestamp(); v_fits bool;
BEGIN
  FOR id, owner IN SELECT o.id, o.owner FROM unnest(p_revisions) AS r (revision) CROSS JOIN LATERAL (
      SELECT t.id, t.owner, t.due_at FROM turns t WHERE t.status = 'ready' AND t.pool = p_pool
        AND t.agent_revision = r.revision AND t.due_at <= v_now AND t.priority <= p_priority_max
        AND (NOT p_users_only OR t.origin = 'user' AND t.resumes_number IS NULL)
        ORDER BY t.due_at, t.id LIMIT 16) o
    ORDER BY o.due_at, o.id LOOP
    SELECT (SELECT count(*) FROM turns t WHERE t.owner = turn_oldest_v2.owner AND t.status = 'running')
           < coalesce((SELECT w.running_max FROM owners w WHERE w.id = turn_oldest_v2.owner), p_running_max) INTO v_fits;
    IF v_fits THEN RETURN NEXT; RETURN; END IF;
  END LOOP;
END $$;

-- Takes up to p_share due rows of one owner whose row the caller has locked: by priority, due time, id, below its cap, and
-- at most p_background of the background. p_first is taken before the others, if it can be.
CREATE FUNCTION turn_take_ready_v3(p_worker text, p_pool text, p_revisions text[], p_owner text, p_share int,
                                   p_background int, p_first uuid, p_lease_s real, p_running_max int, p_users_only bool)
RETURNS TABLE (taken uuid[], background int)
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := clock_timestamp(); v_room int;
BEGIN
  SELECT least(p_share, coalesce((SELECT o.running_max FROM owners o WHERE o.id = p_owner), p_running_max)
                        - (SELECT count(*) FROM turns t WHERE t.owner = p_owner AND t.status = 'running')) INTO v_room;
  taken := '{}'; background := 0;
  IF v_room <= 0 THEN RETURN NEXT; RETURN; END IF;
  WITH due AS (
    SELECT urgent.id, urgent.priority, urgent.due_at FROM unnest(p_revisions) AS r (revision) CROSS JOIN LATERAL (
        SELECT c.id, c.priority, c.due_at FROM turns c WHERE c.status = 'ready' AND c.pool = p_pool
          AND c.agent_revision = r.revision AND c.owner = p_owner AND c.priority < 2 AND c.due_at <= v_now AND (NOT p_users_only OR c.origin = 'user' AND c.resumes_number IS NULL)
          ORDER BY c.priority, c.due_at, c.id LIMIT v_room) urgent
    UNION ALL
    (SELECT later.id, later.priority, later.due_at FROM unnest(p_revisions) AS r (revision) CROSS JOIN LATERAL (
        SELECT c.id, c.priority, c.due_at FROM turns c WHERE c.status = 'ready' AND c.pool = p_pool
          AND c.agent_revision = r.revision AND c.owner = p_owner AND c.priority > 1 AND c.due_at <= v_now AND (NOT p_users_only OR c.origin = 'user' AND c.resumes_number IS NULL)
          ORDER BY c.priority, c.due_at, c.id LIMIT least(v_room, p_background)) later
      ORDER BY later.due_at, later.id LIMIT least(v_room, p_background))
    UNION ALL
    SELECT c.id, -1, c.due_at FROM turns c WHERE c.id = p_first AND c.status = 'ready' AND c.due_at <= v_now AND (NOT p_users_only OR c.origin = 'user' AND c.resumes_number IS NULL)
      AND (c.priority < 2 OR p_background > 0)),
  picked AS (
    SELECT t.id FROM turns t WHERE t.status = 'ready' AND t.due_at <= v_now AND t.id IN (
        SELECT first.id FROM (SELECT d.id, min(d.priority) AS priority, d.due_at FROM due d GROUP BY d.id, d.due_at) first
          ORDER BY first.priority, first.due_at, first.id LIMIT v_room)
      FOR NO KEY UPDATE SKIP LOCKED),
  held AS (
    UPDATE turns t SET status = 'running', epoch = t.epoch + 1, token = gen_random_uuid(), lease_owner = p_worker,
                       stepped = false, expires_at = v_now + make_interval(secs => p_lease_s)
      FROM picked WHERE t.id = picked.id RETURNING t.id, t.priority, t.due_at)
  SELECT coalesce(array_agg(h.id ORDER BY h.id IS DISTINCT FROM p_first, h.priority, h.due_at, h.id), '{}'),
         count(*) FILTER (WHERE h.priority = 2)
    INTO taken, background FROM held h;
  RETURN NEXT;
END $$;

-- Hands out work: lost rows first, then ready and due ones in fair order over the owners. Takes no head.
CREATE FUNCTION turn_claim_v3(
  p_worker text, p_pool text, p_revisions text[], p_places int, p_background int, p_lease_s real, p_cursor text,
  p_hints uuid[], p_oldest_first bool, p_takeovers bool, p_suspects int, p_attempts_max int, p_running_max int, p_users_only bool)
RETURNS TABLE (turn_id uuid, session_id text, owner text, epoch bigint, token uuid, number int, origin text, run_id text,
               key text, message text, command text, meta text, agent text, agent_revision text, on_worker_loss text,
               priority int, attempts int, suspect bool, lost bool, max_duration_s real, open_for_s double precision,
               parent text, deadline_in_s double precision, resumes int)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_lost uuid[] := '{}'; v_ids uuid[] := '{}'; v_taken uuid[]; v_owners text[]; v_again text[] := '{}'; v_hinted text;
  v_oldest uuid; v_oldest_owner text; v_left int; v_share int; v_background int := coalesce(p_background, p_places); v_more int;
BEGIN
  IF p_takeovers THEN
    v_lost := turn_take_over_v2(p_worker, p_pool, p_revisions, least(p_places, p_suspects), p_lease_s, p_attempts_max,
                                p_users_only);
    v_ids := v_lost;
    -- Lost background rows are taken whatever their share: they were running. They leave less for the waiting ones.
    SELECT v_background - count(*) INTO v_background FROM unnest(v_lost) AS l (id)
      WHERE (SELECT t.priority FROM turns t WHERE t.id = l.id) = 2;
  END IF;
  v_left := p_places - cardinality(v_ids);
  IF v_left > 0 THEN
    v_owners := turn_owners_v3(p_pool, p_revisions, p_cursor, p_running_max, CASE WHEN v_background > 0 THEN 2 ELSE 1 END, p_users_only);
    IF cardinality(p_hints) > 0 THEN
      SELECT t.owner INTO v_hinted FROM turns t WHERE t.id = ANY (p_hints) AND t.status = 'ready'
        AND t.pool = p_pool AND t.agent_revision = ANY (p_revisions) AND t.due_at <= clock_timestamp()
        AND (NOT p_users_only OR t.origin = 'user' AND t.resumes_number IS NULL) LIMIT 1;
      IF FOUND THEN v_owners := v_hinted || array_remove(v_owners, v_hinted); END IF;
    END IF;
    IF p_oldest_first THEN
      SELECT o.id, o.owner INTO v_oldest, v_oldest_owner
        FROM turn_oldest_v2(p_pool, p_revisions, p_running_max, CASE WHEN v_background > 0 THEN 2 ELSE 1 END, p_users_only) o;
      IF FOUND THEN v_owners := v_oldest_owner || array_remove(v_owners, v_oldest_owner); END IF;
    END IF;
    -- Their rows are locked by id; then new statements pick, so that two claims cannot overshoot a cap together.
    PERFORM 1 FROM owners o WHERE o.id = ANY (v_owners) ORDER BY o.id FOR NO KEY UPDATE;
    -- First an even share of the places to each; then whatever is left to those who had more, in the same order.
    FOR v_n IN 1 .. cardinality(v_owners) LOOP
      EXIT WHEN v_left = 0;
      v_share := ceil(v_left::numeric / (cardinality(v_owners) - v_n + 1));
      SELECT r.taken, r.background INTO v_taken, v_more FROM turn_take_ready_v3(
        p_worker, p_pool, p_revisions, v_owners[v_n], v_share, v_background, v_oldest, p_lease_s, p_running_max, p_users_only) r;
      v_ids := v_ids || v_taken;
      v_left := v_left - cardinality(v_taken);
      v_background := v_background - v_more;
      v_oldest := NULL;
      IF cardinality(v_taken) = v_share THEN v_again := v_again || v_owners[v_n]; END IF;
    END LOOP;
    FOR v_n IN 1 .. cardinality(v_again) LOOP
      EXIT WHEN v_left = 0;
      SELECT r.taken, r.background INTO v_taken, v_more FROM turn_take_ready_v3(
        p_worker, p_pool, p_revisions, v_again[v_n], v_left, v_background, NULL, p_lease_s, p_running_max, p_users_only) r;
      v_ids := v_ids || v_taken;
      v_left := v_left - cardinality(v_taken);
      v_background := v_background - v_more;
    END LOOP;
  END IF;
  IF v_ids = '{}' THEN RETURN; END IF;
  RETURN QUERY SELECT t.id, t.session_id, t.owner, t.epoch, t.token, t.number, t.origin, t.run_id, t.key, t.message,
      t.command, t.meta, t.agent, t.agent_revision, t.on_worker_loss, t.priority::int, t.attempts, t.suspect,
      t.id = ANY (v_lost), t.max_duration_s, extract(epoch FROM clock_timestamp() - t.opened_at)::double precision,
      t.parent, extract(epoch FROM t.deadline - clock_timestamp())::double precision, t.resumes_number
    FROM turns t JOIN unnest(v_ids) WITH ORDINALITY AS picked (id, n) ON picked.id = t.id ORDER BY picked.n;
END $$;

CREATE OR REPLACE FUNCTION turn_claim_v2(
  p_worker text, p_pool text, p_revisions text[], p_places int, p_background int, p_lease_s real, p_cursor text,
  p_hints uuid[], p_oldest_first bool, p_takeovers bool, p_suspects int, p_attempts_max int, p_running_max int)
RETURNS TABLE (turn_id uuid, session_id text, owner text, epoch bigint, token uuid, number int, origin text, run_id text,
               key text, message text, command text, meta text, agent text, agent_revision text, on_worker_loss text,
               priority int, attempts int, suspect bool, lost bool, max_duration_s real, open_for_s double precision)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY SELECT c.turn_id, c.session_id, c.owner, c.epoch, c.token, c.number, c.origin, c.run_id, c.key, c.message, c.command,
      c.meta, c.agent, c.agent_revision, c.on_worker_loss, c.priority, c.attempts, c.suspect, c.lost, c.max_duration_s, c.open_for_s
    FROM turn_claim_v3(p_worker, p_pool, p_revisions, p_places, p_background, p_lease_s, p_cursor, p_hints, p_oldest_first,
                       p_takeovers, p_suspects, p_attempts_max, p_running_max, true) c;
END $$;

-- Claims exactly this task's turn for a runner in its host's process, whatever the caps: if it is ready and due, or lost and
-- may be tried again. Moves inside the live set: the row's lock only. Without a lease it is held until it ends.
CREATE FUNCTION task_take_v1(p_task text, p_owner text, p_worker text, p_lease_s real, p_attempts_max int)
RETURNS TABLE (turn_id uuid, session_id text, owner text, epoch bigint, token uuid, number int, origin text, run_id text,
               key text, message text, command text, meta text, agent text, agent_revision text, on_worker_loss text,
               priority int, attempts int, suspect bool, lost bool, max_duration_s real, open_for_s double precision,
               parent text, deadline_in_s double precision, resumes int)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_turn turns; v_now timestamptz; v_lost bool;
BEGIN
  SELECT k.answer::uuid INTO turn_id FROM session_keys k WHERE k.session_id = p_task AND k.space = 'turn' AND k.key = p_task;
  SELECT t.* INTO v_turn FROM turns t WHERE t.id = turn_id AND t.owner = p_owner AND t.origin = 'task' FOR NO KEY UPDATE SKIP LOCKED;
  v_now := clock_timestamp();
  v_lost := v_turn.status = 'running' AND v_turn.expires_at < v_now AND NOT turn_is_dead_v1(v_turn, v_now, p_attempts_max);
  IF NOT coalesce(v_lost OR (v_turn.status = 'ready' AND v_turn.due_at <= v_now), false) THEN RETURN; END IF;
  UPDATE turns t SET status = 'running', epoch = t.epoch + 1, token = gen_random_uuid(), lease_owner = p_worker, stepped = false,
      attempts = t.attempts + (v_lost AND t.suspect)::int, suspect = t.suspect OR v_lost,
      expires_at = coalesce(v_now + make_interval(secs => p_lease_s), 'infinity')
    WHERE t.id = v_turn.id;
  RETURN QUERY SELECT t.id, t.session_id, t.owner, t.epoch, t.token, t.number, t.origin, t.run_id, t.key, t.message,
      t.command, t.meta, t.agent, t.agent_revision, t.on_worker_loss, t.priority::int, t.attempts, t.suspect,
      v_lost, t.max_duration_s, extract(epoch FROM clock_timestamp() - t.opened_at)::double precision,
      t.parent, extract(epoch FROM t.deadline - clock_timestamp())::double precision, t.resumes_number
    FROM turns t WHERE t.id = v_turn.id;
END $$;
