"""A job in a session that a user can attach to: tmux, screen, or the shim's own terminal.

The session belongs to the job's user, and its sockets are in the job's scratch directory. The shim
runs in it; the job runs below the shim, on a terminal of its own.
"""

from __future__ import annotations

import json
import os
import re
import sys
from abc import abstractmethod

from gpu_scheduler.agent.launcher_protocol import Work
from gpu_scheduler.agent.runners.interface import (
    Command,
    Ending,
    Runner,
    find_program,
    job_argv,
    job_files,
)

GATE = "{gate}"
PYTHON = "{python}"
SOCKET = "terminal.sock"
TERMINAL_SOURCES = ("terminal_host.py", "terminal_use.py")
MAX_SOCKET_PATH = 100
MAX_DETAIL = 500
_KEPT_VARIABLES = ("HOME", "LANG", "LC_ALL", "PATH", "SHELL", "USER")
_MARKS = ("TGPU_ALLOCATION_ID", "TGPU_MEMBER", "TGPU_LAUNCHER")


def session_name(work: Work) -> str:
    """`gpujob_<first GPU or cpu>_<name>_<job id>`, in characters that tmux and screen accept."""
    first = str(work.devices[0].index) if work.devices else "cpu"
    identity = work.allocation_id if work.member == 0 else f"{work.allocation_id}-{work.member}"
    parts = ("gpujob", first, work.name or "job", work.job_id or identity)
    return re.sub(r"[^A-Za-z0-9_-]", "-", "_".join(parts))[:80]


class SessionRunner(Runner):
    """What all sessions have in common."""

    name = ""

    def __init__(self) -> None:
        self._program = find_program(self.name)

    def missing(self, work: Work) -> str:
        if not self._program:
            return f"{self.name} is not installed on this node; install it or use another runner"
        if not work.scratch_dir:
            return f"the {self.name} runner needs a scratch directory"
        if len(work.scratch_dir) + len("/terminal.sock") > MAX_SOCKET_PATH:
            return f"the scratch directory's path is too long for a socket: {work.scratch_dir}"
        return ""

    def command(self, work: Work, environment: dict[str, str]) -> Command:
        kept = {
            name: environment[name] for name in (*_KEPT_VARIABLES, *_MARKS) if name in environment
        }
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
        """Parse what the shim wrote at the end; a shim that was killed has written nothing."""
        del work
        try:
            left = json.loads(inspected)
            code = os.waitstatus_to_exitcode(left["status"])
            detail = str(left.get("detail", ""))[:MAX_DETAIL].encode(errors="replace").decode()
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return Ending(detail=f"the {self.name} session was killed: exit code unknown")
        if code < 0:
            return Ending(signal=-code, detail=detail)
        return Ending(exit_code=code, detail=detail)

    def _sources(self) -> dict[str, str]:
        """The source files of the shim."""
        return {"shim.py": source("shim.py")}

    def _own_environment(self, work: Work) -> dict[str, str]:
        del work
        return {}

    @abstractmethod
    def _argv(self, work: Work, shim: tuple[str, ...]) -> tuple[str, ...]:
        """The command that opens a session with the shim in it."""


class TmuxRunner(SessionRunner):
    """Starts one tmux server for each job, so that sessions do not affect each other."""

    name = "tmux"

    def attach_command(self, work: Work) -> tuple[str, ...]:
        socket = f"{work.scratch_dir}/tmux.sock"
        return ("tmux", "-S", socket, "attach-session", "-t", session_name(work))

    def _argv(self, work: Work, shim: tuple[str, ...]) -> tuple[str, ...]:
        socket = f"{work.scratch_dir}/tmux.sock"
        begin = (self._program, "-S", socket, "-f", "/dev/null", "new-session", "-d")
        return (*begin, "-x", "200", "-y", "50", "-s", session_name(work), *shim)


class ScreenRunner(SessionRunner):
    """Runs screen in the foreground of its own session."""

    name = "screen"

    def attach_command(self, work: Work) -> tuple[str, ...]:
        directory = f"SCREENDIR={work.scratch_dir}"
        return ("env", directory, "screen", "-r", session_name(work))

    def _own_environment(self, work: Work) -> dict[str, str]:
        return {"SCREENDIR": work.scratch_dir}

    def _argv(self, work: Work, shim: tuple[str, ...]) -> tuple[str, ...]:
        return (self._program, "-c", "/dev/null", "-D", "-m", "-S", session_name(work), *shim)


class TerminalRunner(SessionRunner):
    """The shim itself holds the terminal and serves it at a socket, so nothing is installed."""

    name = "terminal"

    def __init__(self) -> None:
        self._program = "/dev/ptmx" if os.path.exists("/dev/ptmx") else ""

    def attach_command(self, work: Work) -> tuple[str, ...]:
        return ("tgpu", "attach", "--socket", f"{work.scratch_dir}/{SOCKET}")

    def _sources(self) -> dict[str, str]:
        return {**super()._sources(), **{name: source(name) for name in TERMINAL_SOURCES}}

    def _argv(self, work: Work, shim: tuple[str, ...]) -> tuple[str, ...]:
        del work
        return shim


def source(name: str) -> str:
    """Read a source file of this directory that runs in the session."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def _pythons() -> tuple[str, ...]:
    """Several, as the launcher's own interpreter may be in a directory closed to the user."""
    own = (sys.executable, os.path.realpath(sys.executable))
    return tuple(dict.fromkeys((*own, "/usr/bin/python3", "/usr/local/bin/python3")))
