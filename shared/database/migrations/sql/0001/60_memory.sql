-- The document store: authoritative documents, every generation of them, and the receipts of operations.

-- How each document stands. What it says is its newest version's document; `body` is that text while it may be found.
-- A tsvector holds at most 1 MiB, so words are looked for in the first 100,000 characters; nothing is refused for it.
CREATE TABLE memory_documents (
  namespace        text NOT NULL,
  id               text NOT NULL,
  owner            text NOT NULL,
  generation       bigint NOT NULL,
  status           text NOT NULL CHECK (status IN ('active', 'withdrawn')),
  locator          text NOT NULL,
  scopes           text[] NOT NULL DEFAULT '{}',
  body             text NOT NULL DEFAULT '',
  reason           text,
  modified_at      timestamptz NOT NULL,
  search           tsvector GENERATED ALWAYS AS (to_tsvector('simple'::regconfig, left(body, 100000))) STORED,
  PRIMARY KEY (namespace, id),
  CONSTRAINT memory_documents_whole CHECK ((status = 'withdrawn') = (reason IS NOT NULL)
                                           AND (status = 'active' OR (body = '' AND scopes = '{}')))
);
CREATE INDEX memory_documents_search ON memory_documents USING gin (search) WHERE status = 'active';
CREATE INDEX memory_documents_of_owner ON memory_documents (owner, namespace);

CREATE TABLE memory_versions (
  namespace        text NOT NULL,
  id               text NOT NULL,
  generation       bigint NOT NULL,
  document         text NOT NULL,
  PRIMARY KEY (namespace, id, generation)
);

-- `command` is the SHA-256 of the encoded command; its result is the version named here.
CREATE TABLE memory_receipts (
  namespace        text NOT NULL,
  operation_id     text NOT NULL,
  id               text NOT NULL,
  generation       bigint NOT NULL,
  command          bytea NOT NULL,
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (namespace, operation_id)
);

-- The canonical JSON of a document, version 1: keys in order, strings escaped as JSON has to (PostgreSQL escapes the same
-- characters in the same way). Every answer is read back by the adapter, which refuses any other text.
CREATE FUNCTION memory_document_v1(p_namespace text, p_id text, p_generation bigint, p_modified_at timestamptz, p_locator text,
                                   p_previous_locator text, p_content text, p_scopes text[], p_reason text) RETURNS text
LANGUAGE sql STABLE AS $$
  SELECT concat(
    '{"content":', coalesce(p_content, 'null'),
    ',"generation":', p_generation,
    ',"key":{"id":', to_json(p_id), ',"namespace":', to_json(p_namespace),
    '},"modified_at":', floor(extract(epoch FROM p_modified_at) * 1000)::bigint,
    ',"predecessor":', CASE WHEN p_generation = 1 THEN 'null' ELSE
      concat('{"id":', to_json(p_id), ',"locator":', to_json(p_previous_locator), ',"revision":"', p_generation - 1, '"}') END,
    ',"reason":', coalesce(to_json(p_reason)::text, 'null'),
    ',"scopes":[', (SELECT string_agg(to_json(s.scope)::text, ',' ORDER BY s.place)
                      FROM unnest(p_scopes) WITH ORDINALITY AS s (scope, place)),
    '],"source":{"id":', to_json(p_id), ',"locator":', to_json(p_locator), ',"revision":"', p_generation,
    '"},"version":1}')
$$;

-- One conditional write: the receipt first, then terminal withdrawal, then the expected generation; document, version,
-- receipt and the debt to every index profile in one transaction. The function makes the document, so that its time is this
-- clock's and the predecessor's locator needs no earlier read. Results: written, replayed (the document of the receipt),
-- operation-conflict, withdrawn and conflict (the generation that stands, null when there is none), missing (nothing to
-- withdraw), too-large. Another owner's document looks like none, and its receipts are replayed to nobody else.
CREATE FUNCTION memory_write_v1(
  p_namespace text, p_id text, p_owner text, p_operation text, p_command bytea, p_kind text, p_expected bigint,
  p_locator text, p_scopes text[], p_content text, p_body text, p_reason text, p_max_bytes int)
RETURNS TABLE (result text, document text, generation bigint)
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
  v_receipt memory_receipts; v_head memory_documents; v_profile text; v_now timestamptz; v_locator text; v_document text;
  v_generation bigint := coalesce(p_expected, 0) + 1;
BEGIN
  -- The document may not exist yet, so there is no row to lock: the lock is on its name, for this transaction. Names that
  -- hash alike only wait for each other; a namespace is JSON and holds no line break, so no two names are joined alike.
  PERFORM pg_advisory_xact_lock(hashtextextended(p_namespace || E'\n' || p_id, 7));
  SELECT * INTO v_head FROM memory_documents WHERE namespace = p_namespace AND id = p_id;
  IF v_head.owner <> p_owner THEN
    RETURN QUERY SELECT CASE p_kind WHEN 'put' THEN 'conflict' ELSE 'missing' END, NULL::text, NULL::bigint; RETURN;
  END IF;
  SELECT * INTO v_receipt FROM memory_receipts WHERE namespace = p_namespace AND operation_id = p_operation;
  IF FOUND THEN
    IF v_receipt.id = p_id AND v_receipt.command = p_command THEN
      RETURN QUERY SELECT 'replayed'::text, (SELECT document FROM memory_versions
        WHERE namespace = p_namespace AND id = p_id AND generation = v_receipt.generation), v_receipt.generation; RETURN;
    END IF;
    RETURN QUERY SELECT 'operation-conflict'::text, NULL::text, NULL::bigint; RETURN;
  END IF;
  IF v_head.status = 'withdrawn' THEN RETURN QUERY SELECT 'withdrawn'::text, NULL::text, v_head.generation; RETURN; END IF;
  IF p_kind = 'withdraw' AND v_head.id IS NULL THEN
    RETURN QUERY SELECT 'missing'::text, NULL::text, NULL::bigint; RETURN;
  END IF;
  IF v_head.generation IS DISTINCT FROM p_expected THEN
    RETURN QUERY SELECT 'conflict'::text, NULL::text, v_head.generation; RETURN;
  END IF;
  v_now := clock_timestamp();
  v_locator := coalesce(p_locator, v_head.locator);
  v_document := memory_document_v1(p_namespace, p_id, v_generation, v_now, v_locator, v_head.locator, p_content, p_scopes,
                                   p_reason);
  IF octet_length(v_document) > p_max_bytes THEN
    RETURN QUERY SELECT 'too-large'::text, NULL::text, NULL::bigint; RETURN;
  END IF;
  -- The same operation id may be at work on another document, under that one's lock: the key waits for its end. If it was
  -- stored, this is another command, since a command names its document.
  INSERT INTO memory_receipts (namespace, operation_id, id, generation, command)
    VALUES (p_namespace, p_operation, p_id, v_generation, p_command) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN RETURN QUERY SELECT 'operation-conflict'::text, NULL::text, NULL::bigint; RETURN; END IF;
  INSERT INTO memory_documents (namespace, id, owner, generation, status, locator, scopes, body, reason, modified_at)
    VALUES (p_namespace, p_id, p_owner, v_generation, CASE p_kind WHEN 'put' THEN 'active' ELSE 'withdrawn' END, v_locator,
            p_scopes, p_body, p_reason, v_now)
    ON CONFLICT (namespace, id) DO UPDATE SET generation = excluded.generation, status = excluded.status,
      locator = excluded.locator, scopes = excluded.scopes, body = excluded.body, reason = excluded.reason,
      modified_at = excluded.modified_at;
  INSERT INTO memory_versions (namespace, id, generation, document) VALUES (p_namespace, p_id, v_generation, v_document);
  FOR v_profile IN SELECT profile FROM index_profiles WHERE active ORDER BY profile LOOP
    INSERT INTO index_sources (profile, namespace, id, owner, job_id)
      VALUES (v_profile, p_namespace, p_id, p_owner, gen_random_uuid()::text)
      ON CONFLICT (profile, namespace, id) DO NOTHING;
    PERFORM job_owe_v1('index', s.job_id, p_owner) FROM index_sources s
      WHERE s.profile = v_profile AND s.namespace = p_namespace AND s.id = p_id;
  END LOOP;
  RETURN QUERY SELECT 'written'::text, v_document, v_generation;
END $$;

-- The semantic index's own progress: which sources each profile owes or has ready. Vectors: see 70_vectors, functions: 80_index.
CREATE TABLE index_profiles (
  profile          text PRIMARY KEY,
  description      text NOT NULL,
  active           bool NOT NULL DEFAULT true
);

CREATE TABLE index_sources (
  profile          text NOT NULL,
  namespace        text NOT NULL,
  id               text NOT NULL,
  owner            text NOT NULL,
  job_id           text NOT NULL UNIQUE,
  generation       bigint,
  revision         text,
  locator          text,
  withdrawn        bool NOT NULL DEFAULT false,
  chunks           int NOT NULL DEFAULT 0,
  indexed_at       timestamptz,
  PRIMARY KEY (profile, namespace, id)
);

-- Activity processors that are switched on, and how far each is in each session.
CREATE TABLE activity_processors (
  processor        text NOT NULL,
  version          text NOT NULL,
  active           bool NOT NULL DEFAULT true,
  PRIMARY KEY (processor, version)
);

CREATE TABLE activity_progress (
  processor        text NOT NULL,
  version          text NOT NULL,
  session_id       text NOT NULL,
  owner            text NOT NULL,
  job_id           text NOT NULL UNIQUE,
  through_seq      bigint NOT NULL DEFAULT 0,
  pending          text,
  advanced_at      timestamptz,
  PRIMARY KEY (session_id, processor, version)
);

-- A session has new committed records: every active processor owes a pass. Called by whatever ends a turn, in its own
-- transaction.
CREATE FUNCTION activity_owe_v1(p_session text, p_owner text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_processor activity_processors; v_job text;
BEGIN
  FOR v_processor IN SELECT * FROM activity_processors WHERE active ORDER BY processor, version LOOP
    INSERT INTO activity_progress (processor, version, session_id, owner, job_id)
      VALUES (v_processor.processor, v_processor.version, p_session, p_owner, gen_random_uuid()::text)
      ON CONFLICT DO NOTHING;
    SELECT job_id INTO v_job FROM activity_progress
      WHERE session_id = p_session AND processor = v_processor.processor AND version = v_processor.version;
    PERFORM job_owe_v1('activity', v_job, p_owner);
  END LOOP;
END $$;

-- Remembering intents and how far each is. Every save is fenced by the intent's job and by `version`.
CREATE TABLE memory_intents (
  owner            text NOT NULL,
  id               text NOT NULL,
  job_id           text NOT NULL UNIQUE,
  intent           text NOT NULL,
  version          bigint NOT NULL DEFAULT 0,
  progress         text NOT NULL DEFAULT 'pending' CHECK (progress IN ('pending', 'proposed', 'prepared', 'completed')),
  proposal         text,
  command          text,
  attempt          int NOT NULL DEFAULT 0,
  outcome          text CHECK (outcome IN ('applied', 'no-change', 'rejected', 'suppressed')),
  why              text,
  applied          text,
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  completed_at     timestamptz,
  PRIMARY KEY (owner, id)
);
CREATE INDEX memory_intents_pending ON memory_intents (owner) WHERE progress <> 'completed';
CREATE INDEX memory_intents_newest ON memory_intents (owner, created_at DESC, id DESC);

CREATE FUNCTION intent_admit_v1(p_owner text, p_id text, p_intent text, p_owner_max int)
RETURNS TABLE (result text, job_id text)
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE v_known memory_intents; v_job text := gen_random_uuid()::text; v_owed int;
BEGIN
  INSERT INTO owners (id) VALUES (p_owner) ON CONFLICT DO NOTHING;
  SELECT * INTO v_known FROM memory_intents WHERE owner = p_owner AND id = p_id;
  IF NOT FOUND THEN
    SELECT count(*) INTO v_owed FROM (SELECT 1 FROM memory_intents WHERE owner = p_owner AND progress <> 'completed'
                                      LIMIT p_owner_max) owed;
    IF v_owed >= p_owner_max THEN RETURN QUERY SELECT 'full'::text, NULL::text; RETURN; END IF;
    INSERT INTO memory_intents (owner, id, job_id, intent) VALUES (p_owner, p_id, v_job, p_intent) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      PERFORM job_owe_v1('remember', v_job, p_owner);
      RETURN QUERY SELECT 'queued'::text, v_job; RETURN;
    END IF;
    SELECT * INTO v_known FROM memory_intents WHERE owner = p_owner AND id = p_id;
  END IF;
  RETURN QUERY SELECT CASE WHEN v_known.intent = p_intent THEN 'duplicate' ELSE 'conflict' END, v_known.job_id;
END $$;

-- One step of an intent, saved under its job's fence and only while nobody saved before (`p_version`).
CREATE FUNCTION intent_save_v1(p_job text, p_epoch bigint, p_token uuid, p_version bigint, p_progress text, p_proposal text,
                               p_command text, p_attempt int, p_outcome text, p_why text, p_applied text) RETURNS text
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
BEGIN
  IF NOT job_hold_v1('remember', p_job, p_epoch, p_token) THEN RETURN 'lost'; END IF;
  UPDATE memory_intents SET version = version + 1, progress = p_progress, proposal = coalesce(p_proposal, proposal),
      command = p_command, attempt = p_attempt, outcome = p_outcome, why = p_why, applied = coalesce(p_applied, applied),
      updated_at = clock_timestamp(), completed_at = CASE WHEN p_progress = 'completed' THEN clock_timestamp() END
    WHERE job_id = p_job AND version = p_version;
  RETURN CASE WHEN FOUND THEN 'saved' ELSE 'fenced' END;
END $$;

-- The activity pass: pin one output, or move the cursor by exactly one; both under the job's fence.
CREATE FUNCTION activity_pin_v1(p_job text, p_epoch bigint, p_token uuid, p_through bigint, p_pending text) RETURNS text
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_progress activity_progress;
BEGIN
  IF NOT job_hold_v1('activity', p_job, p_epoch, p_token) THEN RETURN 'lost'; END IF;
  SELECT * INTO v_progress FROM activity_progress WHERE job_id = p_job;
  IF v_progress.through_seq IS DISTINCT FROM p_through THEN RETURN 'lost'; END IF;
  IF v_progress.pending IS NOT NULL THEN
    RETURN CASE WHEN v_progress.pending = p_pending THEN 'pinned' ELSE 'work-conflict' END;
  END IF;
  UPDATE activity_progress SET pending = p_pending WHERE job_id = p_job;
  RETURN 'pinned';
END $$;

-- `p_through` is the cursor before; `p_skip` moves it over records that are nobody's input (nothing was pinned for them).
CREATE FUNCTION activity_advance_v1(p_job text, p_epoch bigint, p_token uuid, p_through bigint, p_to bigint, p_pending text)
RETURNS text
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE v_progress activity_progress;
BEGIN
  IF NOT job_hold_v1('activity', p_job, p_epoch, p_token) THEN RETURN 'lost'; END IF;
  SELECT * INTO v_progress FROM activity_progress WHERE job_id = p_job;
  IF v_progress.through_seq IS DISTINCT FROM p_through OR v_progress.pending IS DISTINCT FROM p_pending THEN RETURN 'lost'; END IF;
  UPDATE activity_progress SET through_seq = p_to, pending = NULL, advanced_at = clock_timestamp() WHERE job_id = p_job;
  RETURN 'advanced';
END $$;
