"""The ways to run a job: as a process, in a session (tmux, screen, terminal), in a container.

A runner makes command lines and starts nothing. `shim`, `terminal_host` and `terminal_use` run in
the job's session: they are copied there as text, so they import nothing of this package.
"""
