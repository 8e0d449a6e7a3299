"""The agent of a node: it detects devices, passes orders to the launcher and reports to the server.

`jobs` and `devices` belong to the agent process. `launcher`, `spawn`, `cgroups` and `runners`
belong to the launcher process, which starts and supervises jobs and outlives the agent.
"""
