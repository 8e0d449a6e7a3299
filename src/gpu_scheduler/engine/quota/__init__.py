"""Quotas of tenants, users and pools: what is guaranteed, borrowed and reclaimed.

`rules` answers whether a job may start, and `usage` counts what a cycle starts. Fair share is not a
quota: it only changes the order of the queue (`engine.priority`).
"""
