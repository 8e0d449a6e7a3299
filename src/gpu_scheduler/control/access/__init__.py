"""Permissions of callers, credentials of users and nodes, and the audit log."""
