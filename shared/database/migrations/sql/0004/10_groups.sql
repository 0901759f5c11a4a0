-- Group commit: members of several sessions share one statement and one commit, and each is judged by the function that a
-- statement of its own would call. Rules: docs/core.md 6, decision 0022.

-- Each member is of another session; p_owners says whose an admission's must be. No head is waited for: the member of one that
-- is held is answered 'skipped', with nothing done for it, and leaves for a statement of its own, which may wait. So no group
-- waits for another, in whatever order they come. An error of one member is the error of all, and nothing of any is stored.
CREATE FUNCTION turn_group_v1(p_sessions text[], p_owners text[], p_members json)
RETURNS TABLE (member int, result text, seq bigint, number int, started_seq bigint, revision bigint, promoted uuid, pending int,
               turn_id uuid, run_id text, turn_position bigint, status text, after_seq bigint, detail uuid, held uuid[],
               holders text[])
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE m record; v_heads text[];
BEGIN
  SELECT array_agg(h.id) INTO v_heads FROM (
    SELECT s.id FROM sessions s WHERE s.id = ANY (p_sessions)
        AND s.owner = coalesce(p_owners[array_position(p_sessions, s.id)], s.owner)
      ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED) h;
  -- The heads are ours: each function below locks its own once more, and judges in new statements.
  FOR m IN SELECT * FROM json_to_recordset(p_members) AS x (
      what text, id uuid, session text, epoch bigint, token uuid, "commit" text, title text, kinds text[], texts text[],
      digests bytea[], claims text[], look bool, stepped bool, calls text, expect bigint, extend_s real, outcome text, code text,
      failure text, usage text, counts bool, owner text, key text, print text, run text, message text, command text, meta text,
      agent text, revision text, on_busy text, on_worker_loss text, priority int, deadline timestamptz, max_duration_s real,
      resumes int, session_max int, owner_max int, is_full bool, attempts_max int) LOOP
    member := coalesce(member + 1, 0);
    IF m.session <> ALL (coalesce(v_heads, '{}')) THEN
      RETURN QUERY SELECT member, 'skipped'::text, NULL::bigint, NULL::int, NULL::bigint, NULL::bigint, NULL::uuid, NULL::int,
        NULL::uuid, NULL::text, NULL::bigint, NULL::text, NULL::bigint, NULL::uuid, NULL::uuid[], NULL::text[];
      CONTINUE;
    END IF;
    CASE m.what
      WHEN 'append' THEN
        RETURN QUERY SELECT member, a.result, a.seq, NULL::int, NULL::bigint, a.revision, NULL::uuid, NULL::int,
          NULL::uuid, NULL::text, NULL::bigint, NULL::text, NULL::bigint, NULL::uuid, NULL::uuid[], NULL::text[]
          FROM turn_append_v2(m.id, m.session, m.epoch, m.token, m."commit", m.stepped, m.kinds, m.texts, m.digests,
                              m.calls::jsonb, m.expect, m.extend_s) a;
      WHEN 'open' THEN
        RETURN QUERY SELECT member, o.result, o.seq, o.number, o.started_seq, NULL::bigint, NULL::uuid, NULL::int,
          NULL::uuid, NULL::text, NULL::bigint, NULL::text, NULL::bigint, NULL::uuid, NULL::uuid[], NULL::text[]
          FROM turn_open_v3(m.id, m.session, m.epoch, m.token, m."commit", m.title, m.kinds, m.texts, m.digests, m.claims,
                            m.look) o;
      WHEN 'end' THEN
        RETURN QUERY SELECT member, e.result, e.seq, NULL::int, NULL::bigint, NULL::bigint, e.promoted, e.pending,
          NULL::uuid, NULL::text, NULL::bigint, NULL::text, NULL::bigint, NULL::uuid, NULL::uuid[], NULL::text[]
          FROM turn_end_v3(m.id, m.session, m.epoch, m.token, m."commit", m.kinds, m.texts, m.digests, m.calls::jsonb,
                           m.outcome, m.code, m.failure, m.usage, m.counts) e;
      WHEN 'admit' THEN
        RETURN QUERY SELECT member, t.result, NULL::bigint, NULL::int, NULL::bigint, NULL::bigint, NULL::uuid, NULL::int,
          t.turn_id, t.run_id, t.turn_position, t.status, t.after_seq, t.detail, t.held, t.holders
          FROM turn_admit_v3(m.id, m.session, m.owner, m.key, m.print, m.run, m.message, m.command, m.meta, m.agent, m.revision,
                             m.on_busy, m.on_worker_loss, m.priority, m.deadline, m.max_duration_s, m.resumes, m.session_max,
                             m.owner_max, m.is_full, m.attempts_max) t;
    END CASE;
  END LOOP;
END $$;
