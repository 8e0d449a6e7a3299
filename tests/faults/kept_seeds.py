"""Worlds in which something was wrong once. They run with every test, beside the first 200."""

KEPT: dict[int, str] = {
    2371: "a loop that was deposed with a timer due turned without a pause",
}
"""Seeds, each with what was found in its world."""
