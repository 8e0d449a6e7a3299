"""The GPUs of a node: discovery, readings, health and the processes on them.

Device sources (`nvml`, `smi`, `declared`) implement the protocol in `source`; only they talk to a
driver. `discovery` chooses one, `monitor` polls it. Nothing here knows jobs beyond their ids.
"""
