"""Decide: the cluster state in, a plan out.

Pure: no clock, no chance, no I/O, no logging, no async. The same state, policy and `now` give the
same plan, byte for byte, in any process. Nothing here changes anything that outlives the call.

The way of a decision: `queue` and `order` say who is next, `admit` whether it may hold more,
`index` and `gang` where it fits, `reserve` what must be kept free for whom, `preempt` who must
yield, `decide` joins them, `explain` and `forecast` answer the two questions of those who wait.
"""
