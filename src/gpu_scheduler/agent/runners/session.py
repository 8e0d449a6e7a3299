"""A job in a tmux or screen session that a person can attach to.

The session belongs to the job's user and lives in the job's scratch directory. Inside runs the
shim; the job runs on a terminal of its own below it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from abc import abstractmethod

from gpu_scheduler.agent.runners.interface import Command, Ending, Runner
from gpu_scheduler.agent.runners.process import job_argv, job_files
from gpu_scheduler.agent.work import Work

GATE = "{gate}"
PYTHON = "{python}"
LONGEST_SOCKET = 100
MOST_DETAIL = 500
_KEPT = ("HOME", "LANG", "LC_ALL", "PATH", "SHELL", "USER")
_MARKS = ("TGPU_ALLOCATION_ID", "TGPU_MEMBER", "TGPU_LAUNCHER")


def session_name(work: Work) -> str:
    """`gpujob_<first GPU or cpu>_<name>_<job id>`, in characters that tmux and screen take."""
    first = str(work.devices[0].index) if work.devices else "cpu"
    identity = work.allocation_id if work.member == 0 else f"{work.allocation_id}-{work.member}"
    parts = ("gpujob", first, work.name or "job", work.job_id or identity)
    return re.sub(r"[^A-Za-z0-9_-]", "-", "_".join(parts))[:80]


class SessionRunner(Runner):
    """What tmux and screen have in common."""

    name = ""

    def __init__(self) -> None:
        self._program = _which(self.name)

    def missing(self, work: Work) -> str:
        if not self._program:
            return f"{self.name} is not installed on this node; install it or use another runner"
        if not work.scratch_dir:
            return f"the {self.name} runner needs a scratch directory"
        if len(work.scratch_dir) + len("/terminal.sock") > LONGEST_SOCKET:
            return f"the scratch directory's path is too long for a socket: {work.scratch_dir}"
        return ""

    def command(self, work: Work, environment: dict[str, str]) -> Command:
        kept = {name: environment[name] for name in (*_KEPT, *_MARKS) if name in environment}
        kept.update(TERM="xterm-256color", **self._own_environment(work))
        kept.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
        return Command(
            argv=self._argv(work, (PYTHON, "-I", "-S", f"{work.scratch_dir}/shim.py", GATE)),
            environment=kept,
            job=job_argv(work),
            python=_pythons(),
            files={**self._sources(), **job_files(work)},
        )

    def ending(self, work: Work, inspected: str) -> Ending:
        """What the shim wrote; a shim that was killed has written nothing."""
        del work
        try:
            left = json.loads(inspected)
            code = os.waitstatus_to_exitcode(left["status"])
            detail = str(left.get("detail", ""))[:MOST_DETAIL].encode(errors="replace").decode()
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return Ending(detail=f"the {self.name} session was killed: exit code unknown")
        if code < 0:
            return Ending(signal=-code, detail=detail)
        return Ending(exit_code=code, detail=detail)

    def _sources(self) -> dict[str, str]:
        """What the shim is made of."""
        return {"shim.py": source("shim.py")}

    def _own_environment(self, work: Work) -> dict[str, str]:
        del work
        return {}

    @abstractmethod
    def _argv(self, work: Work, shim: tuple[str, ...]) -> tuple[str, ...]:
        """What begins a session that runs the shim."""


class TmuxRunner(SessionRunner):
    """A tmux server of its own for each job, so that one session cannot harm another."""

    name = "tmux"

    def attach_command(self, work: Work) -> tuple[str, ...]:
        socket = f"{work.scratch_dir}/tmux.sock"
        return ("tmux", "-S", socket, "attach-session", "-t", session_name(work))

    def _argv(self, work: Work, shim: tuple[str, ...]) -> tuple[str, ...]:
        socket = f"{work.scratch_dir}/tmux.sock"
        begin = (self._program, "-S", socket, "-f", "/dev/null", "new-session", "-d")
        return (*begin, "-x", "200", "-y", "50", "-s", session_name(work), *shim)


class ScreenRunner(SessionRunner):
    """A screen that stays in the foreground of its own session."""

    name = "screen"

    def attach_command(self, work: Work) -> tuple[str, ...]:
        directory = f"SCREENDIR={work.scratch_dir}"
        return ("env", directory, "screen", "-r", session_name(work))

    def _own_environment(self, work: Work) -> dict[str, str]:
        return {"SCREENDIR": work.scratch_dir}

    def _argv(self, work: Work, shim: tuple[str, ...]) -> tuple[str, ...]:
        return (self._program, "-c", "/dev/null", "-D", "-m", "-S", session_name(work), *shim)


def source(name: str) -> str:
    """A file of this directory that runs in the session."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def _pythons() -> tuple[str, ...]:
    """The launcher's own interpreter may lie where the job's user cannot go."""
    own = (sys.executable, os.path.realpath(sys.executable))
    return tuple(dict.fromkeys((*own, "/usr/bin/python3", "/usr/local/bin/python3")))


def _which(name: str) -> str:
    for directory in os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":"):
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK):
            return path
    return ""


# --- A job on a terminal of its own that a person can come to, leave and come back to.
#
# The terminal and the socket at which it is served belong to the job's user and live in the job's
# scratch directory. Nothing needs to be installed, and nobody needs to be there.

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
