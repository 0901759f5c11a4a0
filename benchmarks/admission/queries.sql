-- The plain route, and what nobody runs.

-- name: create
CREATE TABLE IF NOT EXISTS plain (id uuid PRIMARY KEY, session text NOT NULL, message text NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp())

-- name: insert
INSERT INTO plain (id, session, message) VALUES (%(id)s, %(session)s, %(message)s) RETURNING at

-- name: forget_plain
TRUNCATE plain

-- name: forget_turns
-- No worker runs here: what was admitted would only grow. None of it was opened, so heads and logs know nothing of it.
TRUNCATE turns, session_keys CASCADE
