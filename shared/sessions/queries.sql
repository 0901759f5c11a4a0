-- Statements of the session log. Rules that branch under the head's lock are functions of migration 0001.

-- name: create_session
SELECT result, session_id FROM session_create_v1(%(id)s, %(owner)s, %(key)s, %(print)s, %(title)s, %(meta)s, %(tail)s)

-- name: read_head
SELECT id, owner, parent, parent_through, title, meta, state, seq, revision, tail, next_number - 1 AS turns, next_position - 1 AS admitted, open_turn, open_epoch,
       open_token, inbox_waiting, created_at, updated_at, active_at, clock_timestamp() AS now
  FROM sessions WHERE id = %(id)s AND owner = %(owner)s

-- name: list_heads
-- Keyset pages over (active_at, id), newest first.
SELECT id, owner, parent, parent_through, title, meta, state, seq, revision, tail, next_number - 1 AS turns, next_position - 1 AS admitted, open_turn, open_epoch,
       open_token, inbox_waiting, created_at, active_at AS updated_at, active_at, clock_timestamp() AS now
  FROM sessions
  WHERE owner = %(owner)s AND (%(before_at)s::timestamptz IS NULL OR (active_at, id) < (%(before_at)s::timestamptz, %(before_id)s::text))
  ORDER BY active_at DESC, id DESC LIMIT %(limit)s

-- name: read_records
-- The oldest records of a log may be archived, always a prefix of it: both forms are read in one statement. For a session
-- without archives that is a look at one index more.
SELECT session_id, seq, turn, kind, at, data, digest FROM (
  (SELECT a.session_id, a.seq, a.turn, a.kind, a.at, a.data, a.digest
     FROM (SELECT session_id FROM record_archives WHERE session_id = %(id)s AND last_seq > %(after)s LIMIT 1) held
          CROSS JOIN LATERAL archive_read_v1(held.session_id, %(after)s, %(limit)s, '{}', NULL, NULL) a
     ORDER BY a.seq LIMIT %(limit)s)
  UNION ALL
  (SELECT session_id, seq, turn, kind, at, data, digest FROM records
     WHERE session_id = %(id)s AND seq > %(after)s ORDER BY seq LIMIT %(limit)s)) log
  ORDER BY seq LIMIT %(limit)s

-- name: read_records_of_kinds
SELECT session_id, seq, turn, kind, at, data, digest FROM (
  (SELECT a.session_id, a.seq, a.turn, a.kind, a.at, a.data, a.digest
     FROM (SELECT session_id FROM record_archives WHERE session_id = %(id)s AND last_seq > %(after)s LIMIT 1) held
          CROSS JOIN LATERAL archive_read_v1(held.session_id, %(after)s, %(limit)s, %(kinds)s::text[], %(turn)s::int, NULL) a
     ORDER BY a.seq LIMIT %(limit)s)
  UNION ALL
  (SELECT session_id, seq, turn, kind, at, data, digest FROM records
     WHERE session_id = %(id)s AND seq > %(after)s AND (kind = ANY (%(kinds)s::text[]) OR cardinality(%(kinds)s::text[]) = 0)
       AND (%(turn)s::int IS NULL OR turn = %(turn)s::int) ORDER BY seq LIMIT %(limit)s)) log
  ORDER BY seq LIMIT %(limit)s

-- name: read_pages
-- As above, of each session from its cursor on, up to and with the record that fills the page. Sizes are known without reading
-- what is stored out of line.
SELECT page.* FROM unnest(%(sessions)s::text[], %(cursors)s::bigint[]) WITH ORDINALITY AS asked (session, after, n)
  CROSS JOIN LATERAL (
    SELECT session_id, seq, turn, kind, at, data, digest
      FROM (SELECT r.*, sum(octet_length(data)) OVER (ORDER BY seq) - octet_length(data) AS before
              FROM (SELECT session_id, seq, turn, kind, at, data, digest FROM (
                      (SELECT a.session_id, a.seq, a.turn, a.kind, a.at, a.data, a.digest
                         FROM (SELECT session_id FROM record_archives
                                 WHERE session_id = asked.session AND last_seq > asked.after LIMIT 1) held
                              CROSS JOIN LATERAL archive_read_v1(held.session_id, asked.after, %(limit)s, %(kinds)s::text[],
                                                                 %(turn)s::int, %(max_bytes)s::bigint) a
                         ORDER BY a.seq LIMIT %(limit)s)
                      UNION ALL
                      (SELECT session_id, seq, turn, kind, at, data, digest FROM records
                         WHERE session_id = asked.session AND seq > asked.after
                           AND (kind = ANY (%(kinds)s::text[]) OR cardinality(%(kinds)s::text[]) = 0)
                           AND (%(turn)s::int IS NULL OR turn = %(turn)s::int)
                         ORDER BY seq LIMIT %(limit)s)) log
                      ORDER BY seq LIMIT %(limit)s) r) sized
      WHERE before < %(max_bytes)s::bigint) page
  ORDER BY asked.n, page.seq

-- name: read_pages_back
-- Backwards along the primary key: the newest ones first, without a look at the others, and at the archive only when the
-- live records are not enough. Of each session before its cursor; from the end where that is NULL.
SELECT page.* FROM unnest(%(sessions)s::text[], %(cursors)s::bigint[]) WITH ORDINALITY AS asked (session, before, n)
  CROSS JOIN LATERAL (
    SELECT session_id, seq, turn, kind, at, data, digest FROM (
      (SELECT session_id, seq, turn, kind, at, data, digest FROM records
         WHERE session_id = asked.session AND seq < coalesce(asked.before, 9223372036854775807)
           AND (kind = ANY (%(kinds)s::text[]) OR cardinality(%(kinds)s::text[]) = 0) ORDER BY seq DESC LIMIT %(limit)s)
      UNION ALL
      (SELECT a.session_id, a.seq, a.turn, a.kind, a.at, a.data, a.digest
         FROM (SELECT session_id FROM record_archives
                 WHERE session_id = asked.session AND first_seq < coalesce(asked.before, 9223372036854775807) LIMIT 1) held
              CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT 1 FROM records r
                 WHERE r.session_id = held.session_id AND seq < coalesce(asked.before, 9223372036854775807)
                   AND (kind = ANY (%(kinds)s::text[]) OR cardinality(%(kinds)s::text[]) = 0) LIMIT %(limit)s) enough) live
              CROSS JOIN LATERAL archive_read_back_v1(CASE WHEN live.n < %(limit)s THEN held.session_id END,
                 coalesce(asked.before, 9223372036854775807), %(limit)s, %(kinds)s::text[]) a
         ORDER BY a.seq DESC LIMIT %(limit)s)) log
      ORDER BY seq DESC LIMIT %(limit)s) page
  ORDER BY asked.n, page.seq DESC

-- name: commit_records
SELECT result, revision, seq, now FROM session_commit_v1(%(id)s, %(owner)s, %(commit)s, %(print)s, %(expect)s::bigint,
  %(not_after)s::timestamptz, %(kinds)s::text[], %(texts)s::text[], %(digests)s::bytea[], %(state)s)

-- name: retain_records
SELECT result, revision, seq, now FROM session_retain_v1(%(id)s, %(owner)s, %(create_print)s, %(first_tail)s, %(title)s,
  %(tail)s, %(commit)s, %(print)s, %(kinds)s::text[], %(texts)s::text[], %(digests)s::bytea[])

-- name: remove_session
SELECT unnest(session_remove_v3(%(id)s, %(owner)s)) AS id

-- name: read_seqs
SELECT id, seq FROM sessions WHERE id = ANY (%(ids)s::text[])

-- name: fork_session
SELECT session_fork_v1(%(id)s, %(parent)s, %(owner)s, %(print)s, %(tail)s, %(inherit)s) AS result

-- name: find_turn
SELECT k.answer AS turn FROM sessions s
  LEFT JOIN session_keys k ON k.session_id = s.id AND k.space = 'turn' AND k.key = %(key)s
  WHERE s.id = %(id)s AND s.owner = %(owner)s
