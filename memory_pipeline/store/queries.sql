-- Statements of the document store; the rules of a write are a function of migration 0001.

-- name: write
SELECT result, document, generation FROM memory_write_v1(%(namespace)s, %(id)s, %(owner)s, %(operation)s, %(command)s::bytea,
  %(kind)s, %(expected)s::bigint, %(locator)s, %(scopes)s::text[], %(content)s, %(body)s, %(reason)s, %(max_bytes)s::int)

-- name: read
-- One row a key, in their order; all columns are null where there never was a document.
SELECT d.generation, d.status, d.locator, d.scopes, v.document
  FROM unnest(%(namespaces)s::text[], %(ids)s::text[]) WITH ORDINALITY AS k (namespace, id, place)
  LEFT JOIN memory_documents d ON d.namespace = k.namespace AND d.id = k.id
  LEFT JOIN memory_versions v ON v.namespace = d.namespace AND v.id = d.id AND v.generation = d.generation
  ORDER BY k.place

-- name: search
-- Any word of the query will do, best rank first; a query without a word matches nothing, since nothing matches null.
WITH asked AS (
  SELECT string_agg('''' || replace(replace(word.lexeme, '\', '\\'), '''', '''''') || '''', ' | ')::tsquery AS words
    FROM (SELECT w.lexeme FROM unnest(to_tsvector('simple', %(query)s)) w
            WHERE w.lexeme <> ALL (%(stop_words)s::text[]) ORDER BY w.positions[1] LIMIT %(max_words)s) word),
  best AS (
  SELECT d.*, ts_rank(d.search, (SELECT words FROM asked)) AS rank
    FROM memory_documents d
    WHERE d.namespace = %(namespace)s AND d.status = 'active' AND %(scope)s = ANY (d.scopes)
      AND d.search @@ (SELECT words FROM asked)
    ORDER BY rank DESC, d.id COLLATE "C" LIMIT %(limit)s)
SELECT d.generation, d.status, d.locator, d.scopes, v.document
  FROM best d LEFT JOIN memory_versions v ON v.namespace = d.namespace AND v.id = d.id AND v.generation = d.generation
  ORDER BY d.rank DESC, d.id COLLATE "C"

-- name: history
SELECT document FROM memory_versions WHERE namespace = %(namespace)s AND id = %(id)s
  ORDER BY generation DESC LIMIT %(limit)s

-- name: list
SELECT d.generation, d.status, d.locator, d.scopes, v.document
  FROM memory_documents d
  LEFT JOIN memory_versions v ON v.namespace = d.namespace AND v.id = d.id AND v.generation = d.generation
  WHERE d.namespace = %(namespace)s AND (%(after)s::text IS NULL OR d.id COLLATE "C" > %(after)s)
  ORDER BY d.id COLLATE "C" LIMIT %(limit)s
