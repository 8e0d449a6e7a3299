"""Preemption: for which reason a running job may be evicted, and which victims are chosen.

`reasons` has the rules, `victims` the search over nodes, `same_tenant` the victims at a quota, and
`preemptor` joins them. Nothing is evicted here: the plan proposes it, and `control` does it.
"""
