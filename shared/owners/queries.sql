-- Statements about owners: their API keys and their limits.

-- name: add_key
WITH owner AS (INSERT INTO owners (id) VALUES (%(owner)s) ON CONFLICT DO NOTHING)
INSERT INTO api_keys (id, owner, name, digest) VALUES (%(id)s, %(owner)s, %(name)s, %(digest)s) ON CONFLICT DO NOTHING

-- name: find_key
SELECT owner, digest FROM api_keys WHERE id = %(id)s AND revoked_at IS NULL

-- name: list_keys
SELECT id, owner, name, created_at, revoked_at FROM api_keys
  WHERE %(owner)s::text IS NULL OR owner = %(owner)s::text ORDER BY created_at, id LIMIT %(limit)s

-- name: revoke_key
UPDATE api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE id = %(id)s RETURNING id

-- name: read_limits
SELECT running_max, queued_max, writes_per_s, writes_burst, body_max_bytes FROM owners WHERE id = %(owner)s

-- name: set_limits
INSERT INTO owners AS o (id, running_max, queued_max, writes_per_s, writes_burst, body_max_bytes)
  VALUES (%(owner)s, %(running_max)s, %(queued_max)s, %(writes_per_s)s, %(writes_burst)s, %(body_max_bytes)s)
  ON CONFLICT (id) DO UPDATE SET
    running_max = coalesce(excluded.running_max, o.running_max),
    queued_max = coalesce(excluded.queued_max, o.queued_max),
    writes_per_s = coalesce(excluded.writes_per_s, o.writes_per_s),
    writes_burst = coalesce(excluded.writes_burst, o.writes_burst),
    body_max_bytes = coalesce(excluded.body_max_bytes, o.body_max_bytes)
  RETURNING running_max, queued_max, writes_per_s, writes_burst, body_max_bytes

-- name: reset_limits
UPDATE owners SET running_max = NULL, queued_max = NULL, writes_per_s = NULL, writes_burst = NULL, body_max_bytes = NULL
  WHERE id = %(owner)s RETURNING id

-- name: list_limits
SELECT id, running_max, queued_max, writes_per_s, writes_burst, body_max_bytes FROM owners
  WHERE id > %(after)s AND num_nonnulls(running_max, queued_max, writes_per_s, writes_burst, body_max_bytes) > 0
  ORDER BY id LIMIT %(limit)s
