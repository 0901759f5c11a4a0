-- Statements about the schema itself.

-- name: read_version
SELECT version, compatible_from FROM schema

-- name: read_readiness
SELECT version, compatible_from, current_setting('synchronous_standby_names') <> '' AS has_standby,
       current_setting('synchronous_commit') AS synchronous_commit, pg_is_in_recovery() AS is_standby
  FROM schema
