"""Decide: the cluster state in, a plan out.

Pure: no clock, no chance, no I/O, no logging, no async. The same state, policy and `now` give the
same plan, byte for byte, in any process. Nothing here changes anything that outlives the call.

How a decision is made: `queue` and `priority` give the next job, `quota` checks whether it may
start, `placement` finds a free place, `reservation` keeps places free for blocked jobs, and
`preemption` chooses victims. `decide` joins them. `explain` says why a job waits, `forecast` until
when.
"""
