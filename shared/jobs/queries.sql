-- Statements of the background pools' items; rules are functions of the migrations.

-- name: owe
SELECT job_owe_v1(%(pool)s, %(id)s, %(owner)s)

-- name: claim
SELECT job_id, owner, epoch, token, attempts, waits, lost FROM job_claim_v2(%(pool)s, %(worker)s, %(places)s::int,
  %(lease_s)s::real, %(cursor)s, %(attempts_max)s::int, %(takeovers)s)

-- name: renew
SELECT job_id, result FROM job_renew_v1(%(pool)s, %(ids)s::text[], %(tokens)s::uuid[], %(lease_s)s::real)

-- name: settle
SELECT job_settle_v1(%(pool)s, %(id)s, %(epoch)s::bigint, %(token)s, %(how)s, %(due_in_s)s::real, %(failure)s,
  %(attempts_max)s::int) AS status

-- name: backlog
SELECT (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE pool = %(pool)s AND status = 'ready' LIMIT 10000) x) AS ready,
       (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE pool = %(pool)s AND status = 'running' LIMIT 10000) x) AS running,
       (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE pool = %(pool)s AND status = 'parked' LIMIT 10000) x) AS parked,
       coalesce(greatest(0, (SELECT extract(epoch FROM clock_timestamp() - min(due_at)) FROM jobs
                              WHERE pool = %(pool)s AND status = 'ready')), 0)::double precision AS oldest_due_s

-- name: overdue
SELECT EXISTS (SELECT 1 FROM jobs WHERE pool = %(pool)s AND status = 'ready'
                 AND due_at < clock_timestamp() - make_interval(secs => %(older_s)s)) AS overdue

-- name: parked
SELECT id, owner, attempts, last_failure FROM jobs WHERE pool = %(pool)s AND status = 'parked'
  ORDER BY settled_at DESC LIMIT %(limit)s

-- name: retry
UPDATE jobs SET status = 'ready', attempts = 0, alive_losses = 0, due_at = clock_timestamp()
  WHERE pool = %(pool)s AND id = %(id)s AND status = 'parked' RETURNING id
