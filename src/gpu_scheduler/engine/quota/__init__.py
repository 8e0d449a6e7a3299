"""Quotas of tenants, users and pools: what is guaranteed, borrowed and reclaimed.

`admission` answers whether a job may start. `tree` and `resource_limits` are the quota tree,
`usage` counts what a cycle starts, and `node_shares` lists what each node holds. Fair share is not
a quota: it only changes the order of the queue (`engine.priority`).
"""
