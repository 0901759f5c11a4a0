-- Removal of schema 3: with the inbox, and with what removed tasks owe to a parent that stays. Lock order: docs/core.md 2 and 3.

-- Removes a session and all its descendants: parent first, then its children by id, generation by generation. A child that
-- ends meanwhile holds its head: its debt is there when the heads are ours, and goes with its parent. A parent that stays
-- hears that its removed task is lost.
CREATE FUNCTION session_remove_v3(p_session text, p_owner text) RETURNS text[]
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_ids text[]; v_generation text[];
BEGIN
  PERFORM 1 FROM sessions WHERE id = p_session AND owner = p_owner FOR UPDATE;
  IF NOT FOUND THEN RETURN '{}'; END IF;
  v_ids := ARRAY[p_session];
  v_generation := v_ids;
  LOOP
    SELECT coalesce(array_agg(id), '{}') INTO v_generation
      FROM (SELECT id FROM sessions WHERE parent = ANY (v_generation) ORDER BY id FOR UPDATE) children;
    EXIT WHEN v_generation = '{}';
    v_ids := v_ids || v_generation;
  END LOOP;
  -- Only what was removed itself may owe a session that stays: the parents of the others go with them.
  UPDATE deliveries SET body = (body::jsonb || '{"lost": true}')::text WHERE child = p_session;
  INSERT INTO deliveries (child, parent, body)
    SELECT t.session_id, t.parent, jsonb_build_object('turn', t.id, 'meta', t.meta, 'agent', t.agent, 'revision', t.agent_revision,
                                                      'lost', true)::text
      FROM turns t WHERE t.session_id = p_session AND t.origin = 'task' AND t.status IN ('queued', 'ready', 'running', 'waiting')
    ON CONFLICT DO NOTHING;
  DELETE FROM deliveries WHERE parent = ANY (v_ids);
  DELETE FROM turns WHERE session_id = ANY (v_ids);
  DELETE FROM tool_calls WHERE session_id = ANY (v_ids);
  DELETE FROM session_keys WHERE session_id = ANY (v_ids);
  DELETE FROM media WHERE session_id = ANY (v_ids);
  DELETE FROM inbox_items WHERE session_id = ANY (v_ids);
  DELETE FROM jobs WHERE pool = 'activity' AND id IN (SELECT job_id FROM activity_progress WHERE session_id = ANY (v_ids));
  DELETE FROM activity_progress WHERE session_id = ANY (v_ids);
  DELETE FROM records WHERE session_id = ANY (v_ids);
  DELETE FROM sessions WHERE id = ANY (v_ids);
  RETURN v_ids;
END $$;

-- Code of schema 2 leaves nothing behind either.
CREATE OR REPLACE FUNCTION session_remove_v2(p_session text, p_owner text) RETURNS text[]
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN session_remove_v3(p_session, p_owner);
END $$;
