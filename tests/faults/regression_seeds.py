"""Seeds that once found a bug. They run with every test, beside the first 200."""

KEPT: dict[int, str] = {
    263: "a job that was retried after a restart did not wait for what it depends on",
    600: "a task that was cancelled between two attempts waited for ever after a failover",
    4514: "a place was kept for a job that waited for the end of a service, and stopped its update",
    4653: "a stream that came after the next one took its place, and work begun since was given up",
    1607: "a node that came back kept the record of a gang that had ended with another dead node",
    17479: "a server whose lead had run out refused what it had not heard of yet",
    19400: "a reservation moved to GPUs of a job that was on its way, which was blamed for it",
    2371: "a loop that was deposed with a timer due turned without a pause",
}
"""Seeds, each with the bug found in its world."""
