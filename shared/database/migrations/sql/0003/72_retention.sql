-- Retention: what is old and owed to nobody leaves, in bounded batches (docs/core.md section 11). Heads are locked first, with SKIP
-- LOCKED; a new statement then judges and deletes. What is still owed is said once, here, and asked under the lock.

-- Keys and receipts are met by their time alone, in the order they were written: a summary of pages is enough, and costs
-- an insert nothing.
CREATE INDEX session_keys_made ON session_keys USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);
CREATE INDEX memory_receipts_made ON memory_receipts USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);

-- A finished row that must stay: the newest of its session (what the next inbox row is made of), one that an unfinished row
-- resumes, one of a child that still owes its result, one that items are claimed by.
CREATE FUNCTION turn_is_kept_v1(p_turn turns) RETURNS bool
LANGUAGE sql STABLE
RETURN NOT EXISTS (SELECT 1 FROM turns l WHERE l.session_id = p_turn.session_id AND l.position > p_turn.position)
    OR EXISTS (SELECT 1 FROM turns u WHERE u.session_id = p_turn.session_id AND u.resumes = p_turn.id
                 AND u.status IN ('queued', 'ready', 'running', 'waiting'))
    OR EXISTS (SELECT 1 FROM deliveries d WHERE d.child = p_turn.session_id)
    OR EXISTS (SELECT 1 FROM inbox_items i WHERE i.session_id = p_turn.session_id AND i.turn_id = p_turn.id);

-- A key that must stay: those of a turn leave with its row; an item that waits, a task that is unfinished or owes its result.
CREATE FUNCTION key_is_kept_v1(p_key session_keys) RETURNS bool
LANGUAGE sql STABLE
RETURN CASE p_key.space
  WHEN 'commit' THEN false
  WHEN 'inbox' THEN EXISTS (SELECT 1 FROM inbox_items i WHERE i.session_id = p_key.session_id AND i.id = p_key.key)
  WHEN 'task' THEN EXISTS (SELECT 1 FROM turns t WHERE t.session_id = p_key.key
                             AND t.status IN ('queued', 'ready', 'running', 'waiting'))
                OR EXISTS (SELECT 1 FROM deliveries d WHERE d.child = p_key.key)
  ELSE true END;

-- Whether anything of a session is owed, or younger than the moment: an unfinished row, an item, a delivery either way, or
-- activity that its processors have not read yet.
CREATE FUNCTION session_is_kept_v1(p_session sessions, p_before timestamptz) RETURNS bool
LANGUAGE sql STABLE
RETURN p_session.active_at >= p_before OR p_session.updated_at >= p_before OR p_session.open_turn IS NOT NULL
    OR EXISTS (SELECT 1 FROM turns t WHERE t.session_id = p_session.id AND t.status IN ('queued', 'ready', 'running', 'waiting'))
    OR EXISTS (SELECT 1 FROM inbox_items i WHERE i.session_id = p_session.id)
    OR EXISTS (SELECT 1 FROM deliveries d WHERE d.child = p_session.id)
    OR EXISTS (SELECT 1 FROM deliveries d WHERE d.parent = p_session.id)
    OR EXISTS (SELECT 1 FROM activity_progress p JOIN jobs j ON j.pool = 'activity' AND j.id = p.job_id
                 WHERE p.session_id = p_session.id AND j.status IN ('ready', 'running'));

-- One batch of finished turn rows that ended before the moment, behind the cursor, with their ledgers and their keys. With
-- p_dry they are only counted. Answers how many, and the cursor behind what was looked at (null at the end).
CREATE FUNCTION prune_turns_v1(p_before timestamptz, p_owner text, p_after timestamptz, p_after_id uuid, p_limit int, p_dry bool)
RETURNS TABLE (gone int, next_at timestamptz, next_id uuid)
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_ids uuid[]; v_sessions text[];
BEGIN
  -- The cursor moves over other owners' rows, and over those that stay, so that a pass meets each row once.
  SELECT max(b.ended_at), (array_agg(b.id ORDER BY b.ended_at DESC, b.id DESC))[1],
         coalesce(array_agg(b.id) FILTER (WHERE b.owner = coalesce(p_owner, b.owner)), '{}'),
         coalesce(array_agg(DISTINCT b.session_id) FILTER (WHERE b.owner = coalesce(p_owner, b.owner)), '{}')
    INTO next_at, next_id, v_ids, v_sessions
    FROM (SELECT t.id, t.session_id, t.ended_at, t.owner FROM turns t
            WHERE t.status IN ('ended', 'cancelled', 'refused', 'expired') AND t.ended_at < p_before
              AND t.ended_at >= p_after AND (t.ended_at, t.id) > (p_after, p_after_id)
            ORDER BY t.ended_at, t.id LIMIT p_limit) b;
  IF p_dry THEN
    SELECT count(*) INTO gone FROM turns t WHERE t.id = ANY (v_ids) AND NOT turn_is_kept_v1(t);
    RETURN NEXT; RETURN;
  END IF;
  SELECT coalesce(array_agg(l.id), '{}') INTO v_sessions FROM (
    SELECT s.id FROM sessions s WHERE s.id = ANY (v_sessions) ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED) l;
  SELECT coalesce(array_agg(t.id), '{}') INTO v_ids FROM turns t
    WHERE t.id = ANY (v_ids) AND t.session_id = ANY (v_sessions)
      AND t.status IN ('ended', 'cancelled', 'refused', 'expired') AND NOT turn_is_kept_v1(t);
  DELETE FROM session_keys k USING turns t WHERE t.id = ANY (v_ids) AND k.session_id = t.session_id
    AND k.space = 'turn' AND k.key = coalesce(t.key, t.id::text);
  DELETE FROM session_keys k USING turns t WHERE t.id = ANY (v_ids) AND k.session_id = t.session_id
    AND k.space = 'run' AND k.key = t.run_id;
  DELETE FROM tool_calls c USING turns t WHERE t.id = ANY (v_ids) AND c.session_id = t.session_id AND c.turn_id = t.id;
  DELETE FROM turns WHERE id = ANY (v_ids);
  gone := cardinality(v_ids);
  RETURN NEXT;
END $$;

-- One batch of keys of commits, deliveries and tasks that were made before the moment and that nothing stands behind any more.
CREATE FUNCTION prune_keys_v1(p_before timestamptz, p_owner text, p_limit int) RETURNS int
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_sessions text[]; v_gone int;
BEGIN
  SELECT coalesce(array_agg(DISTINCT b.session_id), '{}') INTO v_sessions FROM (
    SELECT k.session_id FROM session_keys k WHERE k.created_at < p_before AND NOT key_is_kept_v1(k)
      AND (p_owner IS NULL OR EXISTS (SELECT 1 FROM sessions s WHERE s.id = k.session_id AND s.owner = p_owner))
      LIMIT p_limit) b;
  SELECT coalesce(array_agg(l.id), '{}') INTO v_sessions FROM (
    SELECT s.id FROM sessions s WHERE s.id = ANY (v_sessions) ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED) l;
  DELETE FROM session_keys WHERE ctid = ANY (ARRAY(
    SELECT k.ctid FROM session_keys k WHERE k.session_id = ANY (v_sessions) AND k.created_at < p_before
      AND NOT key_is_kept_v1(k) LIMIT p_limit));
  GET DIAGNOSTICS v_gone = ROW_COUNT;
  RETURN v_gone;
END $$;

-- Up to when receipts of the memory store may leave: none that unfinished work could still ask for (decision 14).
CREATE FUNCTION receipts_floor_v1(p_before timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE
RETURN least(p_before,
  (SELECT min(i.created_at) FROM memory_intents i WHERE i.progress <> 'completed'),
  (SELECT min(coalesce(p.advanced_at, j.created_at)) FROM activity_progress p JOIN jobs j ON j.pool = 'activity' AND j.id = p.job_id
     WHERE p.pending IS NOT NULL AND j.status IN ('ready', 'running', 'parked')));

CREATE FUNCTION prune_receipts_v1(p_before timestamptz, p_owner text, p_limit int) RETURNS int
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_gone int; v_floor timestamptz := receipts_floor_v1(p_before);
BEGIN
  DELETE FROM memory_receipts WHERE (namespace, operation_id) IN (
    SELECT r.namespace, r.operation_id FROM memory_receipts r WHERE r.created_at < v_floor
      AND (p_owner IS NULL OR EXISTS (SELECT 1 FROM memory_documents d
             WHERE d.namespace = r.namespace AND d.id = r.id AND d.owner = p_owner))
      LIMIT p_limit FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS v_gone = ROW_COUNT;
  RETURN v_gone;
END $$;

-- One owner's remembering intents that were completed before the moment, with the items of the pool that they leave.
CREATE FUNCTION prune_intents_v1(p_before timestamptz, p_owner text, p_limit int) RETURNS int
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_jobs text[];
BEGIN
  SELECT coalesce(array_agg(b.job_id), '{}') INTO v_jobs FROM (
    SELECT i.job_id FROM memory_intents i JOIN jobs j ON j.pool = 'remember' AND j.id = i.job_id
      WHERE i.owner = p_owner AND i.created_at < p_before AND i.progress = 'completed' AND i.completed_at < p_before
        AND j.status = 'idle'
      ORDER BY i.created_at LIMIT p_limit FOR UPDATE OF j SKIP LOCKED) b;
  DELETE FROM memory_intents WHERE job_id = ANY (v_jobs) AND progress = 'completed';
  DELETE FROM jobs WHERE pool = 'remember' AND id = ANY (v_jobs) AND status = 'idle';
  RETURN cardinality(v_jobs);
END $$;

-- Removes one session with its descendants when all of them are older than the moment and none is owed anything; judged
-- under the locks of all their heads. Answers how many went; with p_dry one for each that would.
CREATE FUNCTION prune_session_v1(p_session text, p_owner text, p_before timestamptz, p_dry bool) RETURNS int
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_ids text[]; v_generation text[]; v_one sessions;
BEGIN
  IF p_dry THEN
    -- Asked of each old session by itself.
    RETURN (WITH RECURSIVE tree AS (SELECT s.* FROM sessions s WHERE s.id = p_session AND s.owner = p_owner
              UNION ALL SELECT c.* FROM sessions c JOIN tree t ON c.parent = t.id)
            SELECT CASE WHEN bool_or(session_is_kept_v1(x, p_before)) THEN 0 ELSE 1 END
              FROM (SELECT s FROM sessions s WHERE s.id IN (SELECT id FROM tree)) y (x));
  END IF;
  PERFORM 1 FROM sessions WHERE id = p_session AND owner = p_owner FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN RETURN 0; END IF;
  v_ids := ARRAY[p_session];
  v_generation := v_ids;
  LOOP
    SELECT coalesce(array_agg(id), '{}') INTO v_generation
      FROM (SELECT id FROM sessions WHERE parent = ANY (v_generation) ORDER BY id FOR UPDATE) children;
    EXIT WHEN v_generation = '{}';
    v_ids := v_ids || v_generation;
  END LOOP;
  PERFORM 1 FROM sessions s WHERE s.id = ANY (v_ids) AND session_is_kept_v1(s, p_before);
  IF FOUND THEN RETURN 0; END IF;
  RETURN cardinality(session_remove_v3(p_session, p_owner));
END $$;
