"""Domain values: jobs, tenants, nodes, devices, allocations, states, reasons, plans.

Only values belong here: frozen, slotted, keyword-only, with integers for every amount
(1 GPU = 1000 milli-GPU, memory in MiB, CPU in milli-cores, time in milliseconds).
Nothing in this package reads a clock, draws a random number or does I/O.
"""
