-- Statements of the semantic index; rules that branch under a lock are functions of migration 0001.

-- name: available
SELECT to_regclass('memory_chunks') IS NOT NULL AS available

-- name: register
SELECT other FROM index_register_v1(%(profile)s, %(description)s) AS other

-- name: retire
UPDATE index_profiles SET active = false WHERE profile = %(profile)s AND active RETURNING profile

-- name: owe
SELECT index_owe_v1(%(profile)s, %(namespace)s, %(id)s, %(owner)s) AS job_id

-- name: owe_missing
SELECT owed, next_namespace, next_id
  FROM index_owe_missing_v1(%(profile)s, %(namespace)s::text, %(id)s::text, %(limit)s::int)

-- name: load
SELECT p.description, p.active, s.namespace, s.id, s.owner, s.generation, s.revision, s.locator, s.withdrawn, s.chunks
  FROM index_sources s JOIN index_profiles p ON p.profile = s.profile WHERE s.job_id = %(job)s

-- name: replace
SELECT index_replace_v1(%(job)s, %(epoch)s::bigint, %(token)s, %(profile)s, %(namespace)s, %(id)s, %(generation)s::bigint,
  %(revision)s, %(locator)s, %(passages)s::text[], %(starts)s::int[], %(ends)s::int[], %(texts)s::text[],
  %(vectors)s::text[]) AS answer

-- name: drop
SELECT index_drop_v1(%(job)s, %(epoch)s::bigint, %(token)s, %(profile)s, %(namespace)s, %(id)s, %(generation)s::bigint,
  %(revision)s, %(locator)s) AS answer

-- name: search
SELECT scanned, source_id, generation, revision, locator, ordinal, passage_id, start_byte, end_byte, chunk, score
  FROM index_search_v1(%(profile)s, %(namespace)s, %(vector)s, %(limit)s::int, %(max_scanned)s::int)

-- name: progress
-- A job whose last refresh succeeded is idle.
SELECT p.profile, p.active, count(s.id)::int AS sources, coalesce(sum(s.chunks), 0)::bigint AS chunks,
       count(*) FILTER (WHERE s.withdrawn)::int AS withdrawn,
       count(*) FILTER (WHERE j.status IN ('ready', 'running'))::int AS owed,
       count(*) FILTER (WHERE j.status = 'parked')::int AS parked,
       count(*) FILTER (WHERE j.status = 'idle' AND s.generation IS NOT NULL AND NOT s.withdrawn)::int AS ready
  FROM index_profiles p
  LEFT JOIN index_sources s ON s.profile = p.profile AND (%(owner)s::text IS NULL OR s.owner = %(owner)s)
  LEFT JOIN jobs j ON j.pool = 'index' AND j.id = s.job_id
  GROUP BY p.profile ORDER BY NOT p.active, p.profile
