"""Worlds in which something was wrong once. They run with every test."""

KEPT: dict[int, str] = {}
"""Seeds, each with what was found in its world."""
