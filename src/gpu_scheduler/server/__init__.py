"""The server process: settings in, and all components connected and kept running.

`assembly` starts everything; `ha` has the roles of a server, `background` its periodic tasks, and
`in_process` a scheduler inside a Python program. Decisions belong to `control`, requests to `api`.
"""
