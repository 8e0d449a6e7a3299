"""The agent of a node: it detects devices, passes orders to the launcher and reports to the server.

`jobs` and `devices` belong to the agent process, with the modules of this folder. `launcher`,
`spawn`, `runners`, `cgroups` and `device_filter` belong to the launcher process, which starts and
supervises jobs and outlives the agent: they load no large library. `launcher_protocol` is the
protocol between the two. Nothing here decides which jobs run: the server does that.
"""
