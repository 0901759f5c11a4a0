-- Statements of the session log. Rules that branch under the head's lock are functions of migration 0001.

-- name: create_session
SELECT result, session_id FROM session_create_v1(%(id)s, %(owner)s, %(key)s, %(print)s, %(title)s, %(meta)s, %(tail)s)

-- name: read_head
SELECT id, owner, parent, parent_through, title, meta, state, seq, revision, tail, next_number - 1 AS turns, open_turn, open_epoch,
       open_token, inbox_waiting, created_at, updated_at, active_at, clock_timestamp() AS now
  FROM sessions WHERE id = %(id)s AND owner = %(owner)s

-- name: list_heads
-- Keyset pages over (active_at, id), newest first.
SELECT id, owner, parent, parent_through, title, meta, state, seq, revision, tail, next_number - 1 AS turns, open_turn, open_epoch,
       open_token, inbox_waiting, created_at, active_at AS updated_at, active_at, clock_timestamp() AS now
  FROM sessions
  WHERE owner = %(owner)s AND (%(before_at)s::timestamptz IS NULL OR (active_at, id) < (%(before_at)s::timestamptz, %(before_id)s::text))
  ORDER BY active_at DESC, id DESC LIMIT %(limit)s

-- name: read_records
SELECT session_id, seq, turn, kind, at, data, digest FROM records
  WHERE session_id = %(id)s AND seq > %(after)s ORDER BY seq LIMIT %(limit)s

-- name: read_records_of_kinds
SELECT session_id, seq, turn, kind, at, data, digest FROM records
  WHERE session_id = %(id)s AND seq > %(after)s AND (kind = ANY (%(kinds)s::text[]) OR cardinality(%(kinds)s::text[]) = 0)
    AND (%(turn)s::int IS NULL OR turn = %(turn)s::int) ORDER BY seq LIMIT %(limit)s

-- name: read_page
-- As above, up to and with the record that fills it. Sizes are known without reading what is stored out of line.
SELECT session_id, seq, turn, kind, at, data, digest
  FROM (SELECT r.*, sum(octet_length(data)) OVER (ORDER BY seq) - octet_length(data) AS before
          FROM (SELECT session_id, seq, turn, kind, at, data, digest FROM records
                  WHERE session_id = %(id)s AND seq > %(after)s
                    AND (kind = ANY (%(kinds)s::text[]) OR cardinality(%(kinds)s::text[]) = 0)
                    AND (%(turn)s::int IS NULL OR turn = %(turn)s::int) ORDER BY seq LIMIT %(limit)s) r) page
  WHERE before < %(max_bytes)s::bigint ORDER BY seq

-- name: read_records_back
-- Backwards along the primary key: the newest ones first, without a look at the others.
SELECT session_id, seq, turn, kind, at, data, digest FROM records
  WHERE session_id = %(id)s AND seq < coalesce(%(before)s::bigint, 9223372036854775807)
    AND (kind = ANY (%(kinds)s::text[]) OR cardinality(%(kinds)s::text[]) = 0) ORDER BY seq DESC LIMIT %(limit)s

-- name: commit_records
SELECT result, revision, seq, now FROM session_commit_v1(%(id)s, %(owner)s, %(commit)s, %(print)s, %(expect)s::bigint,
  %(not_after)s::timestamptz, %(kinds)s::text[], %(texts)s::text[], %(digests)s::bytea[], %(state)s)

-- name: remove_session
SELECT unnest(session_remove_v2(%(id)s, %(owner)s)) AS id

-- name: read_seqs
SELECT id, seq FROM sessions WHERE id = ANY (%(ids)s::text[])

-- name: fork_session
SELECT session_fork_v1(%(id)s, %(parent)s, %(owner)s, %(print)s, %(tail)s, %(inherit)s) AS result

-- name: find_turn
SELECT k.answer AS turn FROM sessions s
  LEFT JOIN session_keys k ON k.session_id = s.id AND k.space = 'turn' AND k.key = %(key)s
  WHERE s.id = %(id)s AND s.owner = %(owner)s
