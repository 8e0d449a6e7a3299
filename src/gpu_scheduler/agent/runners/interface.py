"""What every runner offers to the launcher.

Work comes in, command lines come out; the launcher runs them. A runner starts nothing itself and
keeps no state, so that a launcher that was started again can go on with the same work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from gpu_scheduler.agent.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What the launcher has to fork for a job.

    `as_user`: as the job's user and in its directory, else as the launcher's own. `job`: the
    command only opens a session; the job itself begins when the shim inside asks for it, at the
    socket that `{gate}` stands for. `python`: the first of these that the user may run takes the
    place of `{python}`.
    """

    argv: tuple[str, ...]
    environment: dict[str, str]
    as_user: bool = True
    job: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    stdin: str = ""
    """What it reads from its standard input; nothing else is there."""
    reachable: tuple[str, ...] = ()
    """Paths that the job's user must be able to read, though the command runs as the launcher."""
    root: str = ""
    """One more of them: a directory that is to be the job's root file system."""
    files: dict[str, str] = field(default_factory=dict)
    """Files to write into the scratch directory first, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a job ended, as its runner has learnt it. Both None: nobody knows."""

    exit_code: int | None = None
    signal: int | None = None
    ran: bool = True
    detail: str = ""


class Runner(ABC):
    """One way to run a job. Without a word of its own it is a process that speaks for itself."""

    name = ""

    @abstractmethod
    def missing(self, work: Work) -> str:
        """Why this work cannot run in this way here; "" if it can."""

    @abstractmethod
    def command(self, work: Work, environment: dict[str, str]) -> Command:
        """What to fork."""

    def attach_command(self, work: Work) -> tuple[str, ...]:
        """What a person runs to look into the job; empty if that is not possible."""
        del work
        return ()

    def signal_command(self, work: Work, name: str) -> tuple[str, ...]:
        """What delivers a signal such as "TERM"; empty if the launcher signals processes itself."""
        del work, name
        return ()

    def inspect_command(self, work: Work) -> tuple[str, ...]:
        """What tells how the job ended; empty if the process itself does."""
        del work
        return ()

    def ending(self, work: Work, inspected: str) -> Ending:
        """Read what the inspect command said, or what a session left behind."""
        del work, inspected
        return Ending()

    def clear_command(self, work: Work) -> tuple[str, ...]:
        """What removes all that the runner left on the host; empty if it leaves nothing."""
        del work
        return ()
