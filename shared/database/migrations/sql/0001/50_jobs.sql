-- Work of the background pools (activity, remember, index): one row an item, with its own lease and fence.
-- What an item does and how far it is stands in its pool's own table; every save of it is fenced by the row here.

CREATE TABLE jobs (
  pool             text NOT NULL CHECK (pool IN ('activity', 'remember', 'index')),
  id               text NOT NULL,
  owner            text NOT NULL,
  status           text NOT NULL DEFAULT 'ready' CHECK (status IN ('ready', 'running', 'idle', 'parked')),
  due_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
  again            bool NOT NULL DEFAULT false,
  attempts         int NOT NULL DEFAULT 0,
  waits            int NOT NULL DEFAULT 0,
  last_failure     text,
  lease_owner      text,
  epoch            bigint NOT NULL DEFAULT 0,
  token            uuid,
  expires_at       timestamptz,
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  settled_at       timestamptz,
  PRIMARY KEY (pool, id),
  CONSTRAINT jobs_leased CHECK (status <> 'running'
                                OR (token IS NOT NULL AND expires_at IS NOT NULL AND lease_owner IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX jobs_ready ON jobs (pool, owner, due_at, id) WHERE status = 'ready';
CREATE INDEX jobs_due ON jobs (pool, due_at) WHERE status = 'ready';
CREATE INDEX jobs_expiring ON jobs (pool, expires_at) WHERE status = 'running';
CREATE INDEX jobs_held ON jobs (lease_owner) WHERE status = 'running';
CREATE INDEX jobs_parked ON jobs (pool, settled_at) WHERE status = 'parked';

-- Says that an item is owed. A running one is done again afterwards; a parked one stays parked until it is retried.
CREATE FUNCTION job_owe_v1(p_pool text, p_id text, p_owner text) RETURNS void
LANGUAGE sql AS $$
  INSERT INTO jobs (pool, id, owner) VALUES (p_pool, p_id, p_owner)
    ON CONFLICT (pool, id) DO UPDATE
      SET status = CASE WHEN jobs.status = 'idle' THEN 'ready' ELSE jobs.status END,
          due_at = CASE WHEN jobs.status = 'idle' THEN clock_timestamp() ELSE jobs.due_at END,
          attempts = CASE WHEN jobs.status = 'idle' THEN 0 ELSE jobs.attempts END,
          again = jobs.again OR jobs.status = 'running';
$$;

-- Hands out items: lost ones first, then due ones, an even share an owner, in rotation from the caller's cursor.
CREATE FUNCTION job_claim_v1(p_pool text, p_worker text, p_places int, p_lease_s real, p_cursor text,
                             p_attempts_max int)
RETURNS TABLE (job_id text, owner text, epoch bigint, token uuid, attempts int, waits int, lost bool)
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp(); v_ids text[] := '{}'; v_lost text[]; v_found text[]; v_owners text[];
  v_left int; v_share int; v_pass int; v_quota int;
BEGIN
  -- A lease that ran out counts as a try; the last one parks the item, so that it takes no more workers with it.
  WITH spent AS (
    SELECT j.id FROM jobs j WHERE j.pool = p_pool AND j.status = 'running' AND j.expires_at < v_now
      AND j.attempts + 1 >= p_attempts_max ORDER BY j.expires_at LIMIT 16 FOR NO KEY UPDATE SKIP LOCKED)
  UPDATE jobs j SET status = 'parked', attempts = j.attempts + 1, last_failure = coalesce(j.last_failure, 'lease lost'),
                    settled_at = v_now, lease_owner = NULL, token = NULL, expires_at = NULL
    FROM spent WHERE j.pool = p_pool AND j.id = spent.id;
  SELECT coalesce(array_agg(l.id ORDER BY l.expires_at), '{}') INTO v_lost FROM (
    SELECT j.id, j.expires_at FROM jobs j WHERE j.pool = p_pool AND j.status = 'running' AND j.expires_at < v_now
      AND j.attempts + 1 < p_attempts_max
      ORDER BY j.expires_at LIMIT p_places FOR NO KEY UPDATE SKIP LOCKED) l;
  IF v_lost <> '{}' THEN
    UPDATE jobs j SET attempts = j.attempts + 1, epoch = j.epoch + 1, token = gen_random_uuid(), lease_owner = p_worker,
                      expires_at = v_now + make_interval(secs => p_lease_s)
      WHERE j.pool = p_pool AND j.id = ANY (v_lost);
    v_ids := v_lost;
  END IF;
  v_left := p_places - cardinality(v_ids);
  IF v_left > 0 THEN
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
    SELECT coalesce(array_agg(fit.owner ORDER BY fit.looked), '{}') INTO v_owners FROM (
      SELECT s.owner, s.looked FROM seen s WHERE s.owner IS NOT NULL
        AND EXISTS (SELECT 1 FROM jobs j WHERE j.pool = p_pool AND j.status = 'ready' AND j.owner = s.owner
                      AND j.due_at <= v_now)
      ORDER BY s.looked LIMIT 16) fit;
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
  RETURN QUERY SELECT j.id, j.owner, j.epoch, j.token, j.attempts, j.waits, j.id = ANY (coalesce(v_lost, '{}'))
    FROM unnest(v_ids) WITH ORDINALITY AS picked (id, n) JOIN jobs j ON j.pool = p_pool AND j.id = picked.id
    ORDER BY picked.n;
END $$;

-- Whether this fence may save now. Locks the row, then a new statement judges by one clock reading; a save follows in the
-- caller's own transaction, so that a takeover's saves wait for it.
CREATE FUNCTION job_hold_v1(p_pool text, p_id text, p_epoch bigint, p_token uuid) RETURNS bool
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_job jobs;
BEGIN
  SELECT * INTO v_job FROM jobs WHERE pool = p_pool AND id = p_id FOR NO KEY UPDATE;
  RETURN coalesce(v_job.status = 'running' AND v_job.epoch = p_epoch AND v_job.token = p_token
                  AND v_job.expires_at >= clock_timestamp(), false);
END $$;

CREATE FUNCTION job_renew_v1(p_pool text, p_ids text[], p_tokens uuid[], p_lease_s real)
RETURNS TABLE (job_id text, result text)
LANGUAGE plpgsql AS $$
DECLARE v_locked text[]; v_renewed text[]; v_now timestamptz;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  SELECT coalesce(array_agg(l.id), '{}') INTO v_locked FROM (
    SELECT j.id FROM jobs j WHERE j.pool = p_pool AND j.id = ANY (p_ids) ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED) l;
  v_now := clock_timestamp();
  WITH held AS (
    UPDATE jobs j SET expires_at = v_now + make_interval(secs => p_lease_s)
      FROM unnest(p_ids, p_tokens) AS mine (id, token)
      WHERE j.pool = p_pool AND j.id = mine.id AND j.token = mine.token AND j.status = 'running'
        AND j.expires_at >= v_now AND j.id = ANY (v_locked)
      RETURNING j.id)
  SELECT coalesce(array_agg(id), '{}') INTO v_renewed FROM held;
  RETURN QUERY SELECT mine.id, CASE WHEN mine.id = ANY (v_renewed) THEN 'renewed'
                                    WHEN mine.id = ANY (v_locked) THEN 'lost'
                                    WHEN EXISTS (SELECT 1 FROM jobs j WHERE j.pool = p_pool AND j.id = mine.id
                                                   AND j.token = mine.token AND j.status = 'running') THEN 'skipped'
                                    ELSE 'lost' END
    FROM unnest(p_ids, p_tokens) AS mine (id, token);
END $$;

-- Lets go of an item: done (idle, or ready at once when more came meanwhile), retry (due later, a try counted), wait (due
-- later because something outside is away: never parks), release (uncounted, a drain) or park.
CREATE FUNCTION job_settle_v1(p_pool text, p_id text, p_epoch bigint, p_token uuid, p_how text, p_due_in_s real,
                              p_failure text, p_attempts_max int) RETURNS text
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_status text; v_job jobs;
BEGIN
  IF NOT job_hold_v1(p_pool, p_id, p_epoch, p_token) THEN RETURN 'lost'; END IF;
  SELECT * INTO v_job FROM jobs WHERE pool = p_pool AND id = p_id;
  v_status := CASE WHEN p_how = 'done' AND v_job.again THEN 'ready' WHEN p_how = 'done' THEN 'idle'
                   WHEN p_how = 'park' OR (p_how = 'retry' AND v_job.attempts + 1 >= p_attempts_max) THEN 'parked'
                   ELSE 'ready' END;
  UPDATE jobs SET status = v_status, again = false, last_failure = coalesce(p_failure, last_failure),
      attempts = CASE WHEN p_how = 'done' THEN 0 WHEN p_how IN ('release', 'wait') THEN attempts ELSE attempts + 1 END,
      waits = CASE WHEN p_how = 'wait' THEN waits + 1 WHEN p_how = 'release' THEN waits ELSE 0 END,
      due_at = clock_timestamp() + make_interval(secs => CASE WHEN v_status = 'ready' THEN p_due_in_s ELSE 0 END),
      settled_at = clock_timestamp(), lease_owner = NULL, token = NULL, expires_at = NULL
    WHERE pool = p_pool AND id = p_id;
  RETURN v_status;
END $$;
