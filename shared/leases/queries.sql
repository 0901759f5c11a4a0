-- Named leases: rules are functions of migration 0001.

-- name: acquire
SELECT acquired, epoch, token, expires_in_s FROM lease_acquire_v1(%(name)s, %(holder)s, %(lease_s)s::real)

-- name: renew
SELECT lease_renew_v1(%(name)s, %(epoch)s, %(token)s, %(lease_s)s::real) AS held

-- name: release
SELECT lease_release_v1(%(name)s, %(epoch)s, %(token)s) AS held
