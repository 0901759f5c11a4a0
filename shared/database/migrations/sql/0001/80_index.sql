-- The semantic index: profiles, what they owe, and the swap of a source's chunks under its job's fence. The functions exist
-- without pgvector too, and then nobody calls them: whoever uses the index looks for memory_chunks first.

CREATE INDEX index_sources_of_owner ON index_sources (owner, profile);

-- Makes a profile active. Whoever wrote a document without seeing that has committed by then, because writers of documents
-- are waited for; so what is looked at afterwards for missing entries is complete.
CREATE FUNCTION index_register_v1(p_profile text, p_description text) RETURNS SETOF text
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM index_profiles WHERE profile = p_profile AND active) THEN
    LOCK TABLE memory_documents IN SHARE MODE;
    INSERT INTO index_profiles (profile, description) VALUES (p_profile, p_description)
      ON CONFLICT (profile) DO UPDATE SET active = true;
  END IF;
  RETURN QUERY SELECT profile FROM index_profiles WHERE active AND profile <> p_profile ORDER BY profile;
END $$;

CREATE FUNCTION index_owe_v1(p_profile text, p_namespace text, p_id text, p_owner text) RETURNS text
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_job text;
BEGIN
  INSERT INTO index_sources (profile, namespace, id, owner, job_id)
    VALUES (p_profile, p_namespace, p_id, p_owner, gen_random_uuid()::text)
    ON CONFLICT (profile, namespace, id) DO NOTHING;
  SELECT s.job_id INTO v_job FROM index_sources s
    WHERE s.profile = p_profile AND s.namespace = p_namespace AND s.id = p_id;
  PERFORM job_owe_v1('index', v_job, p_owner);
  RETURN v_job;
END $$;

-- Looks at the next documents in the order of their key and owes those that the profile lacks and nobody owes yet. One row:
-- how many were owed, and the last key looked at when there may be more.
CREATE FUNCTION index_owe_missing_v1(p_profile text, p_namespace text, p_id text, p_limit int)
RETURNS TABLE (owed int, next_namespace text, next_id text)
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_document record; v_seen int := 0; v_owed int := 0;
BEGIN
  FOR v_document IN
    SELECT d.namespace, d.id, d.owner,
           (d.status = 'active' AND s.generation IS DISTINCT FROM d.generation
              OR d.status = 'withdrawn' AND s.job_id IS NOT NULL)
             AND s.withdrawn IS NOT TRUE AND coalesce(j.status, 'idle') = 'idle' AS lacking
      FROM (SELECT * FROM memory_documents m
              WHERE p_namespace IS NULL OR (m.namespace, m.id) > (p_namespace, p_id)
              ORDER BY m.namespace, m.id LIMIT p_limit) d
      LEFT JOIN index_sources s ON s.profile = p_profile AND s.namespace = d.namespace AND s.id = d.id
      LEFT JOIN jobs j ON j.pool = 'index' AND j.id = s.job_id
      ORDER BY d.namespace, d.id
  LOOP
    v_seen := v_seen + 1;
    IF v_document.lacking THEN
      PERFORM index_owe_v1(p_profile, v_document.namespace, v_document.id, v_document.owner);
      v_owed := v_owed + 1;
    END IF;
  END LOOP;
  IF v_seen < p_limit THEN
    RETURN QUERY SELECT v_owed, NULL::text, NULL::text;
  ELSE
    RETURN QUERY SELECT v_owed, v_document.namespace::text, v_document.id::text;
  END IF;
END $$;

-- Whether this job may change its source's entry to this generation: 'held', or why not. Locks the entry.
CREATE FUNCTION index_hold_v1(p_job text, p_epoch bigint, p_token uuid, p_profile text, p_namespace text, p_id text,
                              p_generation bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE v_source index_sources;
BEGIN
  IF NOT job_hold_v1('index', p_job, p_epoch, p_token) THEN RETURN 'lost'; END IF;
  SELECT * INTO v_source FROM index_sources WHERE job_id = p_job FOR NO KEY UPDATE;
  IF v_source.profile IS DISTINCT FROM p_profile THEN RETURN 'profile'; END IF;
  IF (v_source.namespace, v_source.id) IS DISTINCT FROM (p_namespace, p_id) THEN RETURN 'source'; END IF;
  RETURN CASE WHEN v_source.generation > p_generation THEN 'older' ELSE 'held' END;
END $$;

-- Swaps all chunks of a source. Vectors come as text: what pgvector reads.
CREATE FUNCTION index_replace_v1(
  p_job text, p_epoch bigint, p_token uuid, p_profile text, p_namespace text, p_id text, p_generation bigint,
  p_revision text, p_locator text, p_passages text[], p_starts int[], p_ends int[], p_texts text[], p_vectors text[])
RETURNS text
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_answer text; v_source index_sources;
BEGIN
  v_answer := index_hold_v1(p_job, p_epoch, p_token, p_profile, p_namespace, p_id, p_generation);
  IF v_answer <> 'held' THEN RETURN v_answer; END IF;
  SELECT * INTO v_source FROM index_sources WHERE job_id = p_job;
  IF v_source.withdrawn THEN RETURN 'withdrawn'; END IF;
  IF v_source.generation = p_generation
     AND (v_source.revision, v_source.locator) IS DISTINCT FROM (p_revision, p_locator) THEN RETURN 'identity'; END IF;
  DELETE FROM memory_chunks WHERE profile = p_profile AND namespace = p_namespace AND source_id = p_id;
  INSERT INTO memory_chunks (profile, namespace, source_id, ordinal, generation, locator, passage_id, start_byte, end_byte,
                             text, embedding)
    SELECT p_profile, p_namespace, p_id, c.n - 1, p_generation, p_locator, c.passage, c.start_byte, c.end_byte, c.text,
           c.vector::halfvec
      FROM unnest(p_passages, p_starts, p_ends, p_texts, p_vectors) WITH ORDINALITY
             AS c (passage, start_byte, end_byte, text, vector, n);
  UPDATE index_sources SET generation = p_generation, revision = p_revision, locator = p_locator,
      chunks = cardinality(p_passages), indexed_at = clock_timestamp() WHERE job_id = p_job;
  RETURN 'done';
END $$;

-- Drops all chunks of a source: for good (a tombstone with the generation that ended it), or, with `p_generation` NULL,
-- because it is not there now.
CREATE FUNCTION index_drop_v1(p_job text, p_epoch bigint, p_token uuid, p_profile text, p_namespace text, p_id text,
                              p_generation bigint, p_revision text, p_locator text) RETURNS text
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_answer text;
BEGIN
  v_answer := index_hold_v1(p_job, p_epoch, p_token, p_profile, p_namespace, p_id, p_generation);
  IF v_answer <> 'held' THEN RETURN v_answer; END IF;
  DELETE FROM memory_chunks WHERE profile = p_profile AND namespace = p_namespace AND source_id = p_id;
  UPDATE index_sources SET generation = p_generation, revision = p_revision, locator = p_locator,
      withdrawn = p_generation IS NOT NULL, chunks = 0, indexed_at = clock_timestamp()
    WHERE job_id = p_job AND NOT withdrawn;
  RETURN 'done';
END $$;

-- Exact search of one namespace: counts first, and ranks nothing when there are too many. STABLE: both see one state.
CREATE FUNCTION index_search_v1(p_profile text, p_namespace text, p_vector text, p_limit int, p_max_scanned int)
RETURNS TABLE (scanned int, source_id text, generation bigint, revision text, locator text, ordinal int, passage_id text,
               start_byte int, end_byte int, chunk text, score double precision)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE v_scanned int;
BEGIN
  SELECT count(*) INTO v_scanned FROM (
    SELECT 1 FROM memory_chunks c WHERE c.profile = p_profile AND c.namespace = p_namespace
      LIMIT p_max_scanned + 1) counted;
  IF v_scanned > p_max_scanned THEN
    RETURN QUERY SELECT v_scanned, NULL::text, NULL::bigint, NULL::text, NULL::text, NULL::int, NULL::text, NULL::int,
                        NULL::int, NULL::text, NULL::double precision;
    RETURN;
  END IF;
  RETURN QUERY
    SELECT v_scanned, best.source_id, best.generation, s.revision, best.locator, best.ordinal, best.passage_id,
           best.start_byte, best.end_byte, best.text, 1 - best.distance
      FROM (SELECT c.*, c.embedding <=> (SELECT p_vector::halfvec) AS distance FROM memory_chunks c
              WHERE c.profile = p_profile AND c.namespace = p_namespace
              ORDER BY distance, c.source_id COLLATE "C", c.ordinal LIMIT p_limit) best
      JOIN index_sources s ON s.profile = p_profile AND s.namespace = p_namespace AND s.id = best.source_id
      ORDER BY best.distance, best.source_id COLLATE "C", best.ordinal;
END $$;
