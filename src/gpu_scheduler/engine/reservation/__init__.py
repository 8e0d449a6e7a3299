"""Reservations: start times kept for blocked jobs, backfill, and advance reservations."""
