-- Items of the background pools: a loss counts as a try when the holder's process is gone, as a turn's does (core 7), and a
-- pass that moved its cursor begins its tries anew.

ALTER TABLE jobs ADD COLUMN alive_losses int NOT NULL DEFAULT 0;

-- Takes over what was lost, the oldest first, and parks what spent its tries. A loss counts when its holder's process is
-- gone: silent for one lease, counted from the later of last seen and the database's start. A holder that lives and loses its
-- lease (it was stopped, or without the database) is forgiven ten times in a row.
CREATE FUNCTION job_take_over_v1(p_pool text, p_worker text, p_places int, p_lease_s real, p_attempts_max int) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_silent_since timestamptz := v_now - make_interval(secs => p_lease_s);
  v_lost text[];
BEGIN
  SELECT coalesce(array_agg(l.id ORDER BY l.expires_at), '{}') INTO v_lost FROM (
    SELECT j.id, j.expires_at FROM jobs j WHERE j.pool = p_pool AND j.status = 'running' AND j.expires_at < v_now
      ORDER BY j.expires_at LIMIT p_places FOR NO KEY UPDATE SKIP LOCKED) l;
  IF v_lost = '{}' THEN RETURN v_lost; END IF;
  UPDATE jobs j SET
      attempts = j.attempts + counted.n,
      alive_losses = CASE WHEN counted.gone THEN 0 ELSE j.alive_losses + 1 END,
      status = CASE WHEN counted.spent THEN 'parked' ELSE 'running' END,
      last_failure = CASE WHEN counted.spent THEN coalesce(j.last_failure, 'lease lost') ELSE j.last_failure END,
      settled_at = CASE WHEN counted.spent THEN v_now ELSE j.settled_at END,
      epoch = j.epoch + (NOT counted.spent)::int,
      token = CASE WHEN NOT counted.spent THEN gen_random_uuid() END,
      lease_owner = CASE WHEN NOT counted.spent THEN p_worker END,
      expires_at = CASE WHEN NOT counted.spent THEN v_now + make_interval(secs => p_lease_s) END
    FROM (SELECT lost.id, lost.gone, lost.n, lost.n > 0 AND lost.attempts + lost.n >= p_attempts_max AS spent
            FROM (SELECT l.id, l.attempts, g.gone, (g.gone OR l.alive_losses >= 10)::int AS n
                    FROM jobs l CROSS JOIN LATERAL (
                      SELECT pg_postmaster_start_time() < v_silent_since
                             AND NOT EXISTS (SELECT 1 FROM workers w
                                               WHERE w.id = l.lease_owner AND w.last_seen > v_silent_since) AS gone) g
                    WHERE l.pool = p_pool AND l.id = ANY (v_lost)) lost) counted
    WHERE j.pool = p_pool AND j.id = counted.id;
  SELECT coalesce(array_agg(j.id ORDER BY taken.n), '{}') INTO v_lost
    FROM unnest(v_lost) WITH ORDINALITY AS taken (id, n) JOIN jobs j ON j.pool = p_pool AND j.id = taken.id
    WHERE j.status = 'running';
  RETURN v_lost;
END $$;

-- Hands out items: lost ones first (unless the caller was itself without the database), then due ones, an even share an
-- owner, in rotation from the caller's cursor.
CREATE FUNCTION job_claim_v2(p_pool text, p_worker text, p_places int, p_lease_s real, p_cursor text, p_attempts_max int,
                             p_takeovers bool)
RETURNS TABLE (job_id text, owner text, epoch bigint, token uuid, attempts int, waits int, lost bool)
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp(); v_lost text[] := '{}'; v_ids text[]; v_found text[]; v_owners text[];
  v_left int; v_share int; v_pass int; v_quota int;
BEGIN
  IF p_takeovers THEN v_lost := job_take_over_v1(p_pool, p_worker, p_places, p_lease_s, p_attempts_max); END IF;
  v_ids := v_lost;
  v_left := p_places - cardinality(v_ids);
  IF v_left > 0 THEN
    v_owners := job_owners_v1(p_pool, p_cursor, v_now);
    FOR v_pass IN 1 .. 2 LOOP
      FOR v_share IN 1 .. cardinality(v_owners) LOOP
        EXIT WHEN v_left <= 0;
        v_quota := CASE WHEN v_pass = 1 THEN ceil(v_left::numeric / (cardinality(v_owners) - v_share + 1)) ELSE v_left END;
        SELECT coalesce(array_agg(picked.id), '{}') INTO v_found FROM (
          SELECT j.id FROM jobs j WHERE j.pool = p_pool AND j.status = 'ready' AND j.owner = v_owners[v_share]
            AND j.due_at <= v_now AND j.id <> ALL (v_ids)
            ORDER BY j.due_at, j.id LIMIT v_quota FOR NO KEY UPDATE SKIP LOCKED) picked;
        IF v_found <> '{}' THEN
          UPDATE jobs j SET status = 'running', again = false, epoch = j.epoch + 1, token = gen_random_uuid(),
                            lease_owner = p_worker, expires_at = v_now + make_interval(secs => p_lease_s)
            WHERE j.pool = p_pool AND j.id = ANY (v_found);
          v_ids := v_ids || v_found;
          v_left := v_left - cardinality(v_found);
        END IF;
      END LOOP;
      EXIT WHEN v_left <= 0;
    END LOOP;
  END IF;
  RETURN QUERY SELECT j.id, j.owner, j.epoch, j.token, j.attempts, j.waits, j.id = ANY (v_lost)
    FROM unnest(v_ids) WITH ORDINALITY AS picked (id, n) JOIN jobs j ON j.pool = p_pool AND j.id = picked.id
    ORDER BY picked.n;
END $$;

-- Up to 16 owners with something due: from the cursor on, round once, 256 looked at at most; one index probe an owner.
CREATE FUNCTION job_owners_v1(p_pool text, p_cursor text, p_now timestamptz) RETURNS text[]
LANGUAGE sql STABLE AS $$
  WITH RECURSIVE seen (owner, looked, wrapped) AS (
    SELECT NULL::text, 0, false
    UNION ALL
    SELECT nxt.owner, s.looked + 1, nxt.wrapped
      FROM seen s CROSS JOIN LATERAL (
        SELECT coalesce(ahead.owner, CASE WHEN NOT s.wrapped THEN again.owner END) AS owner,
               s.wrapped OR ahead.owner IS NULL AS wrapped
          FROM (SELECT (SELECT j.owner FROM jobs j WHERE j.pool = p_pool AND j.status = 'ready'
                          AND j.owner > coalesce(s.owner, p_cursor) ORDER BY j.owner LIMIT 1) AS owner) ahead,
               (SELECT (SELECT j.owner FROM jobs j WHERE j.pool = p_pool AND j.status = 'ready'
                          ORDER BY j.owner LIMIT 1) AS owner) again) nxt
      WHERE s.looked < 256 AND nxt.owner IS NOT NULL AND NOT (nxt.wrapped AND nxt.owner > p_cursor)
  )
  SELECT coalesce(array_agg(fit.owner ORDER BY fit.looked), '{}') FROM (
    SELECT s.owner, s.looked FROM seen s WHERE s.owner IS NOT NULL
      AND EXISTS (SELECT 1 FROM jobs j WHERE j.pool = p_pool AND j.status = 'ready' AND j.owner = s.owner
                    AND j.due_at <= p_now)
    ORDER BY s.looked LIMIT 16) fit;
$$;

-- As in schema 1; whatever lets go of an item also ends the row of losses of a live holder.
CREATE OR REPLACE FUNCTION job_settle_v1(p_pool text, p_id text, p_epoch bigint, p_token uuid, p_how text, p_due_in_s real,
                                         p_failure text, p_attempts_max int) RETURNS text
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_status text; v_job jobs;
BEGIN
  IF NOT job_hold_v1(p_pool, p_id, p_epoch, p_token) THEN RETURN 'lost'; END IF;
  SELECT * INTO v_job FROM jobs WHERE pool = p_pool AND id = p_id;
  v_status := CASE WHEN p_how = 'done' AND v_job.again THEN 'ready' WHEN p_how = 'done' THEN 'idle'
                   WHEN p_how = 'park' OR (p_how = 'retry' AND v_job.attempts + 1 >= p_attempts_max) THEN 'parked'
                   ELSE 'ready' END;
  UPDATE jobs SET status = v_status, again = false, last_failure = coalesce(p_failure, last_failure), alive_losses = 0,
      attempts = CASE WHEN p_how = 'done' THEN 0 WHEN p_how IN ('release', 'wait') THEN attempts ELSE attempts + 1 END,
      waits = CASE WHEN p_how = 'wait' THEN waits + 1 WHEN p_how = 'release' THEN waits ELSE 0 END,
      due_at = clock_timestamp() + make_interval(secs => CASE WHEN v_status = 'ready' THEN p_due_in_s ELSE 0 END),
      settled_at = clock_timestamp(), lease_owner = NULL, token = NULL, expires_at = NULL
    WHERE pool = p_pool AND id = p_id;
  RETURN v_status;
END $$;

-- As in schema 1; a cursor that moved begins the tries anew: a session with more than one pass can hold is not parked for
-- having been cut at each of them.
CREATE OR REPLACE FUNCTION activity_advance_v1(p_job text, p_epoch bigint, p_token uuid, p_through bigint, p_to bigint,
                                               p_pending text)
RETURNS text
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_progress activity_progress;
BEGIN
  IF NOT job_hold_v1('activity', p_job, p_epoch, p_token) THEN RETURN 'lost'; END IF;
  SELECT * INTO v_progress FROM activity_progress WHERE job_id = p_job;
  IF v_progress.through_seq IS DISTINCT FROM p_through OR v_progress.pending IS DISTINCT FROM p_pending THEN RETURN 'lost'; END IF;
  UPDATE activity_progress SET through_seq = p_to, pending = NULL, advanced_at = clock_timestamp() WHERE job_id = p_job;
  UPDATE jobs SET attempts = 0, alive_losses = 0
    WHERE pool = 'activity' AND id = p_job AND (attempts <> 0 OR alive_losses <> 0);
  RETURN 'advanced';
END $$;
