"""Notifications: events come in; messages go out by webhook, e-mail or program.

A notification waits in a table until it is delivered or expires. Nothing here makes scheduling
decisions, and a slow target does not delay other targets.
"""
