-- Statements about owners and their API keys.

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
