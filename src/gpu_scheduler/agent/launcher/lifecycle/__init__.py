"""The life of an attempt: start, gate, session, stop, cleanup.

Each module reads alone: it takes the launcher's context, and reports through `AttemptEvents` to the
supervisor, which is the only one to call them.
"""
