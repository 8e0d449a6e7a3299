"""The launcher's parts joined and running."""

from __future__ import annotations

import gc

from gpu_scheduler.agent.launcher.context import Kit
from gpu_scheduler.agent.launcher.logs import own_log
from gpu_scheduler.agent.launcher.processes import become_subreaper
from gpu_scheduler.agent.launcher.recovery import recover
from gpu_scheduler.agent.launcher.rpc import Door
from gpu_scheduler.agent.launcher.supervisor import Supervisor
from gpu_scheduler.agent.spawn.fork_server import Zygote

LEFT_MS = 1_000
"""By then the children of a launcher that has died are gone as well."""
ALONE_MS = 600_000
"""A launcher without work to which no agent has come for this long is not needed any more."""


def serve(directory: str, zygote: Zygote | None) -> None:
    """Take over what a former launcher left, then work until asked to leave, or left alone.

    Ends that nobody has heard of are on disk, where the next launcher finds them.
    """
    own_log.open(directory)
    become_subreaper()
    kit = Kit(directory, zygote)
    door = Door(kit.loop, directory)
    kit.report = door.tell
    kit.journal.before_sync = door.flush
    kit.loop.catch_children()
    supervisor = Supervisor(kit)
    recover(kit, supervisor)
    kit.loop.after(LEFT_MS, kit.seats.remove_left)
    supervisor.settle()
    door.open(supervisor)
    # What is here stays; a collector that walked it would copy its pages after every fork.
    gc.collect()
    gc.freeze()
    while not door.stop_asked and not (door.alone_ms > ALONE_MS and supervisor.is_idle):
        kit.loop.turn()
        supervisor.settle()
        door.flush()
    door.close()
    kit.seats.clear()
    kit.spares.clear()
    kit.limits.leave()
