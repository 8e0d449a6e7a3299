"""Reservations: start times that the engine keeps for blocked jobs, and backfill around them.

`calendar` books them on the `timeline` of each node, and `backfill` remembers jobs that would delay
them. Advance reservations, which admins make, are in `advance` (which devices are closed to a job)
and `reserved_devices` (which devices one can get). Storing them is the task of `control`.
"""
