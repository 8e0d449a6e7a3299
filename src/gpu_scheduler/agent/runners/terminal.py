"""A job on a terminal of its own that a person can come to, leave and come back to.

The terminal and the socket at which it is served belong to the job's user and live in the job's
scratch directory. Nothing needs to be installed, and nobody needs to be there.
"""

from __future__ import annotations

import os

from gpu_scheduler.agent.runners.session import SessionRunner, source
from gpu_scheduler.agent.work import Work

SOCKET = "terminal.sock"
SOURCES = ("terminal_host.py", "terminal_use.py")


class TerminalRunner(SessionRunner):
    """The shim itself holds the terminal."""

    name = "terminal"

    def __init__(self) -> None:
        self._program = "/dev/ptmx" if os.path.exists("/dev/ptmx") else ""

    def attach_command(self, work: Work) -> tuple[str, ...]:
        return ("tgpu", "attach", "--socket", f"{work.scratch_dir}/{SOCKET}")

    def _sources(self) -> dict[str, str]:
        return {**super()._sources(), **{name: source(name) for name in SOURCES}}

    def _argv(self, work: Work, shim: tuple[str, ...]) -> tuple[str, ...]:
        del work
        return shim
