"""Starting processes: the fork server, pre-forked children, and a child until its exec.

`child` and `fork_server` import next to nothing, because each page that they touch is copied for
every job. Nothing here knows attempts, the journal or the agent.
"""
