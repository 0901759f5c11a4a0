-- Statements of groups. What a member may be, and how it is judged, is the function's.

-- name: group
SELECT member, result, seq, number, started_seq, revision, promoted, pending, turn_id, run_id, turn_position, status, after_seq,
       detail, held, holders
  FROM turn_group_v1(%(sessions)s::text[], %(owners)s::text[], %(members)s::json)
