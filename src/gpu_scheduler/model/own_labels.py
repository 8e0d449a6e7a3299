"""Labels that nodes have from us, for what they offer, and that we ask for in a job's name.

Nobody typed them, so they are told in words, and only where they matter.
"""

from __future__ import annotations

RUNNER_LABEL = "tgpu.runner."
"""Nodes have a label for each way of running jobs that they offer."""
TERMINAL_LABEL = "tgpu.terminals"
"""Nodes have this one if the terminals of their jobs can be reached through the server."""
_RUNNERS = {"container": "a container engine"}


def runner_label(runner: str) -> str:
    """The label of nodes that can run jobs in this way."""
    return f"{RUNNER_LABEL}{runner}"


def offer_of(label: str) -> str:
    """What a node offers that has one of these labels; empty for any other label."""
    if label == TERMINAL_LABEL:
        return "terminals through the server"
    if not label.startswith(RUNNER_LABEL):
        return ""
    runner = label.removeprefix(RUNNER_LABEL)
    return _RUNNERS.get(runner, runner)
