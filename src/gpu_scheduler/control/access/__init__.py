"""Permissions of callers, tokens of users and nodes, and the audit log."""
