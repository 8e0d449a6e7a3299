"""Worlds in which something was wrong once. They run with every test, beside the first 200."""

KEPT: dict[int, str] = {}
"""Seeds, each with what was found in its world."""
