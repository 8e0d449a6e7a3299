"""The ways to run a job: as a process, in a session (tmux, screen, terminal), in a container.

A runner makes command lines and starts nothing. `shim`, `terminal_host` and `terminal_use` run in
the job's session: they are copied there as text, so they import nothing of this package.
"""

from __future__ import annotations

from gpu_scheduler.agent.launcher_protocol import Work
from gpu_scheduler.agent.runners.container import ContainerRunner
from gpu_scheduler.agent.runners.interface import ProcessRunner, Runner
from gpu_scheduler.agent.runners.session import ScreenRunner, TerminalRunner, TmuxRunner


def runners() -> dict[str, Runner]:
    """One of each, by name. A runner whose program is not installed says so in `missing`."""
    found: list[Runner] = [
        ProcessRunner(),
        TmuxRunner(),
        ScreenRunner(),
        TerminalRunner(),
        ContainerRunner(),
    ]
    return {runner.name: runner for runner in found}


def attach_command(work: Work) -> tuple[str, ...]:
    """The command that attaches a terminal to a job on this node; empty if there is none."""
    runner = runners().get(work.runner)
    return runner.attach_command(work) if runner is not None else ()
