"""Why a device takes no new work, in a sentence for people."""

from __future__ import annotations

from gpu_scheduler.model.job import called
from gpu_scheduler.model.node import Device, ForeignUse, Health, Node, NodeState


def trouble_of(device: Device) -> str:
    """What keeps a device from new work, the gravest first; empty if nothing does."""
    if device.health is not Health.HEALTHY:
        return device.why or "it is not to be trusted"
    if device.quarantined:
        return "different jobs kept dying on it at once; resume-gpu gives it back"
    if device.paused:
        return "an admin has paused it"
    if device.foreign is not None:
        return _taken(device.foreign)
    if device.hot:
        # The reading of now stands beside it; it has to be well below the threshold again.
        return f"it became hot ({device.temperature_c} C) and rests until it has cooled down"
    return ""


def trouble_of_node(node: Node) -> str:
    """Why a node takes no new work; empty if it does."""
    if node.state is not NodeState.ONLINE:
        return "its node does not answer"
    closed = node.closed
    if closed is None:
        return ""
    who = "set aside" if closed.is_fault else f"closed by {closed.by or 'nobody'}"
    return f"its node is {who}" + (f": {closed.reason}" if closed.reason else "")


def _taken(use: ForeignUse) -> str:
    what = f"process {use.pid}" + (f" ({use.command})" if use.command else "")
    whose = f" of {use.user}" if use.user else ""
    memory = f" {use.memory_mb} MiB" if use.memory_mb else " it"
    if not use.leaked:
        if not use.pid:
            return f"somebody who cannot be seen from here holds{memory}"
        return f"{what}{whose} holds{memory}"
    if not use.pid:
        return f"{use.memory_mb} MiB were not given back by the last job, and no process holds them"
    job = called(use.job) if use.job else "the job"
    return f"{job} is over, and {what}{whose} still holds{memory}"
