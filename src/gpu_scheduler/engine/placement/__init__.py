"""Placement: which nodes and devices are feasible for a request, and which of them rank best.

`placer` searches for a job or gang, `anti_affinity` says which nodes it must not or should not
share, `gpu_choice` picks the GPUs of a node, `scoring` has the rankings, `capacity` tells what
could ever run. Whether a job may start at all (quotas, reservations, preemption) does not belong
here.
"""
