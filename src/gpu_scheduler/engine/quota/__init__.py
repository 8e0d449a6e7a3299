"""Quota checks: what a tenant, user or pool may hold, and what it holds in one cycle."""
