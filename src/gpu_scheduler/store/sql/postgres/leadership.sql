-- The leader's lease, the list of servers and the secret that they share.

-- name: read_lease
SELECT term, holder, address, agents,
       extract(epoch FROM until - clock_timestamp())::float8,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM leadership WHERE name = %s

-- Terms grow with the clock, so that they also grow after a backup is restored.
-- name: acquire
UPDATE leadership
SET term = greatest(term + 1, extract(epoch FROM clock_timestamp())::bigint),
    holder = %(holder)s, address = %(address)s, agents = %(agents)s,
    until = clock_timestamp() + make_interval(secs => %(valid_s)s)
WHERE name = %(name)s AND (until <= clock_timestamp() OR holder = '')
RETURNING term

-- name: renew
UPDATE leadership SET until = clock_timestamp() + make_interval(secs => %s)
WHERE name = %s AND term = %s AND holder = %s

-- name: release
UPDATE leadership SET holder = '', until = clock_timestamp()
WHERE name = %s AND term = %s AND holder = %s

-- Changes no row while a live server of another installation has the name.
-- name: heartbeat
INSERT INTO servers (name, address, version, home, seen)
VALUES (%(name)s, %(address)s, %(version)s, %(home)s, clock_timestamp())
ON CONFLICT (name) DO UPDATE
SET address = excluded.address, version = excluded.version, home = excluded.home,
    seen = excluded.seen
WHERE servers.home IN ('', excluded.home)
   OR servers.seen < clock_timestamp() - make_interval(secs => %(window_s)s)

-- name: same_name
SELECT address, extract(epoch FROM seen)::float8,
       extract(epoch FROM clock_timestamp() - seen)::float8
FROM servers WHERE name = %s

-- name: live_servers
SELECT name, address, version, extract(epoch FROM clock_timestamp() - seen)::float8
FROM servers WHERE seen > clock_timestamp() - make_interval(secs => %s) ORDER BY name

-- Ends the transactions of a former leader that is stuck.
-- name: terminate_writers
SELECT pg_terminate_backend(activity.pid)
FROM pg_stat_activity AS activity, leadership
WHERE leadership.name = 'scheduler' AND leadership.until <= clock_timestamp()
  AND left(activity.application_name, length(%s)) = %s
  AND activity.pid <> pg_backend_pid() AND activity.datname = current_database()
  AND activity.xact_start < clock_timestamp() - make_interval(secs => %s)

-- name: unregister
DELETE FROM servers WHERE name = %s AND home = %s

-- name: delete_stale_servers
DELETE FROM servers WHERE seen < clock_timestamp() - make_interval(secs => %s)

-- The first statement of every commit. No row means that the term has ended.
-- name: check_term
SELECT 1 FROM leadership WHERE name = 'scheduler' AND term = %s FOR KEY SHARE

-- name: make_secret
INSERT INTO cluster_secrets (name, secret) VALUES (%s, %s) ON CONFLICT DO NOTHING

-- name: read_secret
SELECT secret FROM cluster_secrets WHERE name = %s
