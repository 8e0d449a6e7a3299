"""The launcher: a small process that starts jobs, watches them, and outlives agent and server.

Orders come in over a Unix socket (`rpc`), reports go out. `service` runs the process, `supervisor`
carries out the orders, and `lifecycle` has the steps of an attempt. The launcher imports only the
standard library and the packages beside it, so that it stays small; it never decides what runs, and
never runs anything twice.
"""
