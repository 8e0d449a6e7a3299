"""Reservations: start times that the engine keeps for blocked jobs, and backfill around them.

`backfill_calendar` books them on the timelines of nodes (`node_timeline`) and tells which nodes a
later job may use. `reservation_order` has the order of booking and the jobs that would delay a
reservation. Advance reservations, which admins make, are in `advance_reservations` (which devices
are closed to a job) and `reserved_devices` (which devices one can get). Storing them is the task of
`control`.
"""
