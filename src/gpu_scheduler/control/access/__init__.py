"""Permissions of callers, tokens of users and nodes, and the audit log.

Authentication (sockets, headers, certificates) is not here: a `Caller` comes in authenticated.
"""
