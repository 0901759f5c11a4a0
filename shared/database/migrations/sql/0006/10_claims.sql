-- A claim tells how its session's log stands, so that a worker which remembers the history up to there reads it no more.
-- Rules: docs/core.md 5, decision 0025.

-- Hands out work: lost rows first, then ready and due ones in fair order over the owners. Takes no head. The last statement begins
-- after the rows were taken: no record of another turn of theirs can follow the tails that it reads, while their fences hold.
CREATE FUNCTION turn_claim_v4(
  p_worker text, p_pool text, p_revisions text[], p_places int, p_background int, p_lease_s real, p_cursor text,
  p_hints uuid[], p_oldest_first bool, p_takeovers bool, p_suspects int, p_attempts_max int, p_running_max int, p_users_only bool)
RETURNS TABLE (turn_id uuid, session_id text, owner text, epoch bigint, token uuid, number int, origin text, run_id text,
               key text, message text, command text, meta text, agent text, agent_revision text, on_worker_loss text,
               priority int, attempts int, suspect bool, lost bool, max_duration_s real, open_for_s double precision,
               parent text, deadline_in_s double precision, resumes int, inherits bool, tail bytea)
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
      t.parent, extract(epoch FROM t.deadline - clock_timestamp())::double precision, t.resumes_number,
      s.parent_through IS NOT NULL, s.tail
    FROM turns t JOIN unnest(v_ids) WITH ORDINALITY AS picked (id, n) ON picked.id = t.id
         LEFT JOIN sessions s ON s.id = t.session_id ORDER BY picked.n;
END $$;

-- For code of schema 3 to 5.
CREATE OR REPLACE FUNCTION turn_claim_v3(
  p_worker text, p_pool text, p_revisions text[], p_places int, p_background int, p_lease_s real, p_cursor text,
  p_hints uuid[], p_oldest_first bool, p_takeovers bool, p_suspects int, p_attempts_max int, p_running_max int, p_users_only bool)
RETURNS TABLE (turn_id uuid, session_id text, owner text, epoch bigint, token uuid, number int, origin text, run_id text,
               key text, message text, command text, meta text, agent text, agent_revision text, on_worker_loss text,
               priority int, attempts int, suspect bool, lost bool, max_duration_s real, open_for_s double precision,
               parent text, deadline_in_s double precision, resumes int)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY SELECT c.turn_id, c.session_id, c.owner, c.epoch, c.token, c.number, c.origin, c.run_id, c.key, c.message, c.command,
      c.meta, c.agent, c.agent_revision, c.on_worker_loss, c.priority, c.attempts, c.suspect, c.lost, c.max_duration_s, c.open_for_s,
      c.parent, c.deadline_in_s, c.resumes
    FROM turn_claim_v4(p_worker, p_pool, p_revisions, p_places, p_background, p_lease_s, p_cursor, p_hints, p_oldest_first,
                       p_takeovers, p_suspects, p_attempts_max, p_running_max, p_users_only) c;
END $$;
