"""What every runner offers to the launcher, and the simplest one: a plain process.

Work comes in, command lines come out; the launcher runs them. A runner starts nothing itself and
keeps no state, so that a restarted launcher can go on with the same work.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from gpu_scheduler.agent.launcher_protocol import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What the launcher has to fork for a job.

    `as_user`: as the job's user and in its directory (or in `workdir`), else as the launcher's own
    user. `job`: the
    command only opens a session; the job itself begins when the shim inside connects to the socket
    `{gate}`. `python`: the first of these that the user may run replaces `{python}`. `stdin` is the
    whole standard input. The user must be able to read the paths `reachable` and `root` (the job's
    root file system), though the command runs as the launcher's user; with `stage` the child opens
    `reachable` as the user and binds them there, named by their numbers. `files` are written into
    the scratch directory first.
    """

    argv: tuple[str, ...]
    environment: dict[str, str]
    as_user: bool = True
    job: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    stdin: str = ""
    reachable: tuple[str, ...] = ()
    root: str = ""
    stage: str = ""
    workdir: str = ""
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a job ended. Exit code and signal are None if that is unknown.

    `image_digest` is that of the image that root's engine ran, if the engine told it.
    """

    exit_code: int | None = None
    signal: int | None = None
    ran: bool = True
    detail: str = ""
    image_digest: str = ""


class Runner(ABC):
    """One way to run a job. The defaults are those of a plain process."""

    name = ""

    @abstractmethod
    def missing(self, work: Work) -> str:
        """Why this runner cannot run this work on this node; "" if it can."""

    @abstractmethod
    def command(self, work: Work, environment: dict[str, str]) -> Command:
        """The command to fork."""

    def attach_command(self, work: Work) -> tuple[str, ...]:
        """The command that attaches a terminal to the job; empty if there is none."""
        del work
        return ()

    def signal_command(self, work: Work, name: str) -> tuple[str, ...]:
        """The command that sends a signal such as "TERM"; empty if the launcher sends it itself."""
        del work, name
        return ()

    def inspect_command(self, work: Work) -> tuple[str, ...]:
        """The command that reports how the job ended; empty if the process's exit status does."""
        del work
        return ()

    def image_command(self, work: Work) -> tuple[str, ...]:
        """The command that fails while the engine lacks the image; empty if there is no engine."""
        del work
        return ()

    def ending(self, work: Work, inspected: str) -> Ending:
        """Parse the output of the inspect command, or the file that a session has written."""
        del work, inspected
        return Ending()

    def clear_command(self, work: Work) -> tuple[str, ...]:
        """The command that removes what the runner leaves on the node; empty if nothing."""
        del work
        return ()


class ProcessRunner(Runner):
    """Runs the command itself as a child of the launcher."""

    name = "process"

    def missing(self, work: Work) -> str:
        if work.image:
            return "an image needs the container runner, and 'process' was requested"
        return ""

    def command(self, work: Work, environment: dict[str, str]) -> Command:
        return Command(argv=job_argv(work), environment=environment, files=job_files(work))


def job_argv(work: Work) -> tuple[str, ...]:
    """The command, or the interpreter and the script.

    The interpreter is named, because scratch directories are often mounted noexec.
    """
    if not work.script:
        return work.argv
    return (*interpreter(work.script), f"{work.scratch_dir}/script", *work.argv)


def job_files(work: Work) -> dict[str, str]:
    return {"script": work.script} if work.script else {}


def interpreter(script: str) -> tuple[str, ...]:
    """The interpreter of the first line, else a shell."""
    first = script.split("\n", 1)[0]
    if not first.startswith("#!") or not first[2:].strip():
        return ("/bin/sh",)
    return tuple(first[2:].strip().split(None, 1))


def find_program(name: str) -> str:
    """The path of a program, in PATH or in the usual directories; "" if it is not installed."""
    directories = os.environ.get("PATH", "") + ":/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin"
    for directory in filter(None, directories.split(":")):
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK):
            return path
    return ""
