"""Preemption: for which reason a running job may be evicted, and which victims are chosen."""
