"""Questions about the future: the plan of every GPU, and what a change would do to it.

`question` copies the state of the control loop, `worker` answers in a process of its own, so that
scheduling never waits for an answer, and `planner` runs that process within its time.
"""
