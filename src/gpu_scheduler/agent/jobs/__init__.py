"""What the agent does for jobs: it translates orders, probes services, serves logs and terminals.

Processes of jobs are started and supervised by the launcher, not here.
"""
