-- Statements about the schema itself.

-- name: read_version
SELECT version, compatible_from FROM schema
