-- Statements about the schema itself.

-- name: read_version
SELECT version, compatible_from FROM schema

-- name: read_readiness
SELECT version, compatible_from, current_setting('synchronous_standby_names') <> '' AS has_standby,
       current_setting('synchronous_commit') AS synchronous_commit, pg_is_in_recovery() AS is_standby
  FROM schema

-- name: add_totals
SELECT pool_totals_add_v1(%(pools)s::text[], %(names)s::text[], %(counts)s::bigint[])

-- name: totals
SELECT pool, name, total FROM pool_totals ORDER BY pool, name
