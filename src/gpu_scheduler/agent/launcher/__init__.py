"""A small process that runs jobs, watches them, and outlives everybody who asked it to.

Orders come in over a Unix socket, reports go out over it. It imports only the standard library and
`agent.work`, so that it stays small; it never decides what runs, and never runs anything twice.
"""
