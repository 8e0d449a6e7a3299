"""High availability: leader election, the lease, the roles of a server, leader and standby.

`election` decides when to take the lease, `postgres_lease` stores it in PostgreSQL, `role` changes
between `leader` and `standby`. Decisions about jobs belong to `control`, the proxy to `api.ha`.
"""
