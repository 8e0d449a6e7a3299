"""Commands of an administrator: start and stop, settings, database, tokens, audit, doctor, demo.

They run on the machine of a server or agent, or need the role of an administrator. Commands about
nodes, GPUs and services are in `cluster`.
"""
