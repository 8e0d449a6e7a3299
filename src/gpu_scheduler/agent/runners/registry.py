"""Every runner by its name."""

from __future__ import annotations

from gpu_scheduler.agent.runners.container import ContainerRunner
from gpu_scheduler.agent.runners.interface import Runner
from gpu_scheduler.agent.runners.process import ProcessRunner
from gpu_scheduler.agent.runners.session import ScreenRunner, TerminalRunner, TmuxRunner
from gpu_scheduler.agent.work import Work


def runners() -> dict[str, Runner]:
    """One of each; what is not installed says so when it is asked for."""
    found: list[Runner] = [
        ProcessRunner(),
        TmuxRunner(),
        ScreenRunner(),
        TerminalRunner(),
        ContainerRunner(),
    ]
    return {runner.name: runner for runner in found}


def attach_command(work: Work) -> tuple[str, ...]:
    """What a person runs on this node to look into the job; empty if there is no way."""
    runner = runners().get(work.runner)
    return runner.attach_command(work) if runner is not None else ()
