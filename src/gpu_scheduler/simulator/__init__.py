"""The simulator: the engine and the control core on virtual time, with traces or generated jobs.

This package reads jobs, advances the clock, carries out the control core's orders like an ideal
cluster, and computes metrics. It contains no scheduling rule. `world` runs one partition,
`experiment` compares policies, `metrics` measures runs; `tables` and `report` show them.
"""
