"""Questions about the future: the plan of every GPU, and what a change would do to it.

`planner` copies the state of the control loop and starts `worker`, which answers in a process of
its own within a time limit, so that scheduling never waits for an answer.
"""
